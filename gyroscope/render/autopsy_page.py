"""An autopsy as one self-contained page: the judgement, the layers as bars, and the table."""

from collections.abc import Sequence
from html import escape
from string import Template
from typing import Any

import numpy as np

from gyroscope.advice.layer_view import CheckpointView
from gyroscope.render import theme
from gyroscope.render.html import FIGURES_SCRIPT, finding_items, html_table, picture, setting_lines
from gyroscope.render.page import standalone
from gyroscope.report.autopsy_data import DRIFT_HEADER, HEADER, LEGEND, MORE, AutopsyData, drift_row, layer_row

# Layers that the picture shows; of more, those that turn most and least and some between.
DRAWN = 60
# Panels from left to right: what a bar shows, and where the line of "as predicted" or "noise" stands.
PANELS = {
    "rotation_ratio": ("rotation ÷ equilibrium", 1.0),
    "norm_ratio": ("norm ÷ equilibrium", 1.0),
    "spread": ("spread of neurons ÷ noise", 1.0),
    "alignment": ("s: updates² ÷ noise", 1.0),
}

BODY = Template("""<button class="theme" type="button">Dark</button>
<h1>$title</h1><p class="settings"><code>$settings</code></p>
<ul class="verdict">$findings</ul>
<h2>The last step, layer by layer</h2><div class="chart">$chart</div>
<h2>All layers</h2>$table<p class="settings">$legend</p>$drifts""")


def autopsy_page(autopsy: AutopsyData) -> str:
    """The whole page as HTML, with Plotly inside: it opens from disk, without a network."""
    drifts = ""
    if autopsy.drifts:
        rows = html_table(DRIFT_HEADER, [drift_row(drift) for drift in autopsy.drifts])
        drifts = f"<h2>Since the first file</h2>{rows}"
    body = BODY.substitute(
        title=escape(autopsy.title),
        settings=setting_lines(autopsy.settings),
        findings=finding_items(autopsy.findings),
        chart=_chart(autopsy.layers),
        table=html_table(HEADER, [layer_row(layer) for layer in autopsy.layers]),
        legend=escape(LEGEND + MORE),
        drifts=drifts,
    )
    return standalone(autopsy.title, body, script=FIGURES_SCRIPT)


def _chart(layers: Sequence[CheckpointView]) -> str:
    shown = _drawn(layers)
    panels = {name: panel for name, panel in PANELS.items() if any(np.isfinite(getattr(each, name)) for each in shown)}
    if not panels:
        return "<p>No picture: the file says too little, see above.</p>"
    return picture(figure(shown, panels))


def _drawn(layers: Sequence[CheckpointView]) -> list[CheckpointView]:
    """All layers, or of many the same number evenly over the order of their rotation; in the model's order."""
    if len(layers) <= DRAWN:
        return list(layers)
    order = sorted(range(len(layers)), key=lambda place: np.nan_to_num(layers[place].rotation_ratio))
    kept = {order[place] for place in np.linspace(0, len(order) - 1, DRAWN).round().astype(int)}
    return [layer for place, layer in enumerate(layers) if place in kept]


def figure(layers: Sequence[CheckpointView], panels: dict[str, tuple[str, float]]) -> Any:
    """A row of bars for each layer, from the first at the top; a dashed line at what noise in equilibrium gives."""
    from plotly.subplots import make_subplots  # heavy, and only pages need it

    names = [escape(layer.name) for layer in layers]
    drawn = make_subplots(
        rows=1,
        cols=len(panels),
        shared_yaxes=True,
        horizontal_spacing=0.03,
        subplot_titles=[t for t, _ in panels.values()],
    )
    for column, (name, (_, line)) in enumerate(panels.items(), start=1):
        values = np.array([getattr(layer, name) for layer in layers])
        drawn.add_bar(
            x=values,
            y=names,
            orientation="h",
            # One colour for all: a second one, green or red, would be read as a judgement.
            marker={"color": theme.COLOURS[0]},
            hovertemplate="%{y}: %{x:.3g}<extra></extra>",
            row=1,
            col=column,
        )
        drawn.add_vline(x=line, line={"color": "#888888", **theme.DASHED}, row=1, col=column)
        drawn.update_xaxes(rangemode="tozero", nticks=5, row=1, col=column)
    drawn.update_yaxes(autorange="reversed", automargin=True, tickfont={"size": 11})
    drawn.update_annotations(font={"size": 12})
    drawn.update_layout(
        template="plotly_white",
        height=120 + 22 * len(layers),
        margin={"l": 10, "r": 20, "t": 40, "b": 40},
        showlegend=False,
        bargap=0.25,
    )
    return drawn
