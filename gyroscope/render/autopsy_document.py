"""An autopsy in a terminal and as a page: what it means, a dot for each layer, and the table."""

from collections.abc import Iterator, Sequence
from functools import partial
from html import escape
from math import isfinite
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from gyroscope.advice.layer_families import chart_labels, group_families, short_labels
from gyroscope.render import theme
from gyroscope.render.html import STRIPS_STYLE, dot_figure, family_table, finding_list, label, page_head, pictures
from gyroscope.render.rendered import Document
from gyroscope.render.terminal import family_table as terminal_table
from gyroscope.render.terminal import filled, findings_text, summary_text
from gyroscope.report.autopsy_data import LEGEND, AutopsyData, CheckpointLayer

# Pictures and the titles of their axes. The value of noise in equilibrium is 1 on each.
PANELS = {
    "rotation_ratio": "rotation ÷ equilibrium",
    "norm_ratio": "norm ÷ equilibrium",
    "spread": "spread of neurons ÷ noise",
    "alignment": "s: updates² ÷ noise",
}
# Largest length of a family's label, so that half of a phone's width is left for the dots.
MAX_LABEL = 24


def autopsy_document(autopsy: AutopsyData) -> Document:
    """Return an autopsy for people."""
    return Document(autopsy.title, partial(_lines, autopsy), partial(_body, autopsy), STRIPS_STYLE)


def _lines(autopsy: AutopsyData, width: int, explain: bool) -> Iterator[RenderableType]:
    yield from summary_text(autopsy.findings.summary, width)
    yield Text(autopsy.title, style="bold")
    for setting in autopsy.settings:
        yield Text(setting, style="dim")
    yield Text("")
    yield from findings_text(autopsy.findings, width, explain)
    yield Text("")
    yield from terminal_table(autopsy.table, width)
    yield Text(filled(LEGEND, width), style="dim")
    if autopsy.drifts:
        yield Text("")
        yield from terminal_table(autopsy.drift_table, width)


def _body(autopsy: AutopsyData) -> str:
    drifts = f"<h2>Since the first file</h2>{family_table(autopsy.drift_table)}" if autopsy.drifts else ""
    return f"""{page_head(autopsy.title, autopsy.findings.summary, autopsy.settings)}
{finding_list(autopsy.findings)}
<h2>The last step, layer by layer</h2><div class="strips">{_charts(autopsy.layers)}</div>
<p class="settings">One dot for each layer. The dashed line is noise in equilibrium.</p>
<h2>All layers</h2>{family_table(autopsy.table)}<p class="settings">{escape(LEGEND)}</p>{drifts}"""


def _charts(layers: Sequence[CheckpointLayer]) -> str:
    known = {name: [layer for layer in layers if isfinite(getattr(layer, name))] for name in PANELS}
    drawn = pictures(figure(members, name) for name, members in known.items() if members)
    return drawn or "<p>No picture, because the file contains too little.</p>"


def figure(layers: Sequence[CheckpointLayer], quantity: str) -> Any:
    """Return one dot for each layer, in the row of its family, and a dashed line at noise in equilibrium."""
    names = [layer.name for layer in layers]
    labels = short_labels(names)
    families = group_families(names)
    shown = zip(families, chart_labels(list(map(str, families)), MAX_LABEL), strict=True)
    rows = {member: row for family, row in shown for member in family.members}
    drawn = dot_figure(list(dict.fromkeys(rows[name] for name in names)), PANELS[quantity])
    drawn.add_scatter(
        x=[getattr(layer, quantity) for layer in layers],
        y=[label(rows[name]) for name in names],
        text=[label(labels[name]) for name in names],
        mode="markers",
        # One colour for all, because green or red would be read as a judgement.
        marker={"size": 9, "color": theme.COLOURS[0], "opacity": 0.6},
        hovertemplate="%{text}: %{x:.3g}<extra></extra>",
    )
    drawn.add_vline(x=1.0, line={"color": theme.GREY, **theme.DASHED})
    highest = max(1.0, *(getattr(layer, quantity) for layer in layers))
    drawn.update_xaxes(range=[min(0.0, *(getattr(layer, quantity) for layer in layers)), 1.08 * highest], nticks=6)
    return drawn
