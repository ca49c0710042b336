"""An autopsy as one self-contained page: what it means, the layers by family as dots, and the table."""

from collections.abc import Sequence
from html import escape
from math import isfinite
from string import Template
from typing import Any

from gyroscope.advice.layer_families import cut_middle, group_families, short_labels
from gyroscope.advice.layer_view import CheckpointView
from gyroscope.render import theme
from gyroscope.render.html import (
    FIGURES_SCRIPT,
    STRIPS_STYLE,
    dot_figure,
    family_table,
    finding_items,
    picture,
    setting_lines,
    summary_paragraph,
)
from gyroscope.render.page import standalone
from gyroscope.report.autopsy_data import LEGEND, AutopsyData

# Pictures, and the titles of their axes. Noise in equilibrium is at 1 on each.
PANELS = {
    "rotation_ratio": "rotation ÷ equilibrium",
    "norm_ratio": "norm ÷ equilibrium",
    "spread": "spread of neurons ÷ noise",
    "alignment": "s: updates² ÷ noise",
}
# Characters of a family's label, which leave half of a phone's width to the dots.
MAX_LABEL = 24

BODY = Template("""<button class="theme" type="button">Dark</button>
<h1>$title</h1>$summary<p class="settings"><code>$settings</code></p>
<ul class="verdict">$findings</ul>
<h2>The last step, layer by layer</h2><div class="strips">$chart</div>
<p class="settings">One dot for each layer. The dashed line is noise in equilibrium.</p>
<h2>All layers</h2>$table<p class="settings">$legend</p>$drifts""")


def autopsy_page(autopsy: AutopsyData) -> str:
    """Return the whole page as HTML, with Plotly inside: it opens from disk, without a network."""
    drifts = f"<h2>Since the first file</h2>{family_table(autopsy.drift_table)}" if autopsy.drifts else ""
    body = BODY.substitute(
        title=escape(autopsy.title),
        summary=summary_paragraph(autopsy.findings.summary),
        settings=setting_lines(autopsy.settings),
        findings=finding_items(autopsy.findings),
        chart=_charts(autopsy.layers),
        table=family_table(autopsy.table),
        legend=escape(LEGEND),
        drifts=drifts,
    )
    return standalone(autopsy.title, body, script=FIGURES_SCRIPT, style=STRIPS_STYLE)


def _charts(layers: Sequence[CheckpointView]) -> str:
    drawn: list[str] = []
    for name in PANELS:
        known = [layer for layer in layers if isfinite(getattr(layer, name))]
        if known:
            # Plotly's script is large, and one copy is enough for the page.
            drawn.append(f"<div>{picture(figure(known, name), with_script=not drawn)}</div>")
    return "".join(drawn) or "<p>No picture, because the file contains too little.</p>"


def figure(layers: Sequence[CheckpointView], quantity: str) -> Any:
    """Return one dot for each layer, in the row of its family, and a dashed line at noise in equilibrium."""
    names = [layer.name for layer in layers]
    labels = short_labels(names)
    families = group_families(names)
    rows = {member: cut_middle(str(family), MAX_LABEL) for family in families for member in family.members}
    drawn = dot_figure(list(dict.fromkeys(rows[name] for name in names)), PANELS[quantity])
    drawn.add_scatter(
        x=[getattr(layer, quantity) for layer in layers],
        y=[escape(rows[name]) for name in names],
        text=[escape(labels[name]) for name in names],
        mode="markers",
        # One colour for all: a second one, green or red, would be read as a judgement.
        marker={"size": 9, "color": theme.COLOURS[0], "opacity": 0.6},
        hovertemplate="%{text}: %{x:.3g}<extra></extra>",
    )
    drawn.add_vline(x=1.0, line={"color": theme.GREY, **theme.DASHED})
    highest = max(1.0, *(getattr(layer, quantity) for layer in layers))
    drawn.update_xaxes(range=[min(0.0, *(getattr(layer, quantity) for layer in layers)), 1.08 * highest], nticks=6)
    return drawn
