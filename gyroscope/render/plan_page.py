"""A plan as one self-contained page: the judgement, the curves, the table and the facts with their formulas."""

from collections.abc import Sequence
from html import escape
from string import Template
from typing import Any

import numpy as np

from gyroscope.render import theme
from gyroscope.render.chart import RANGE
from gyroscope.render.html import FIGURES_SCRIPT, finding_items, html_table, picture, setting_lines
from gyroscope.render.page import standalone
from gyroscope.render.plan_text import HEADER, layer_row
from gyroscope.report.plan_data import PlanData, thinned
from gyroscope.theory.layer_prediction import LayerPrediction

# Layers that a picture shows, as many as it has colours; of more, some from the fastest start to the slowest.
DRAWN = 7
# Curves from top to bottom, and the titles of their axes.
PANELS = {"angular_update": "rotation<br>rad per step", "norm": "norm", "lr": "learning rate"}

BODY = Template("""<button class="theme" type="button">Dark</button>
<h1>$title</h1><p class="settings"><code>$settings</code></p>
<ul class="verdict">$findings</ul>
<h2>The predicted run</h2><div class="chart">$chart</div>
<h2>What it means</h2>$table<ul>$facts</ul>""")


def plan_page(plan: PlanData) -> str:
    """The whole page as HTML, with Plotly inside: it opens from disk, without a network."""
    body = BODY.substitute(
        title=escape(plan.title),
        settings=setting_lines(plan.settings),
        findings=finding_items(plan.findings),
        chart=_chart(plan.fastest_first(DRAWN)),
        table=html_table(HEADER, [layer_row(prediction) for prediction in plan.predictions])
        if len(plan.predictions) > 1
        else "",
        facts=finding_items(plan.facts),
    )
    return standalone(plan.title, body, script=FIGURES_SCRIPT)


def _chart(predictions: Sequence[LayerPrediction]) -> str:
    if not predictions:
        return "<p>No curves: an input is missing, see above.</p>"
    return picture(figure(predictions))


def figure(predictions: Sequence[LayerPrediction]) -> Any:
    """Rotation, norm and learning rate over the steps: solid what will happen, dashed the equilibrium at that rate."""
    from plotly.subplots import make_subplots  # heavy, and only pages need it

    drawn = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.04, row_heights=[0.45, 0.35, 0.2])
    for number, prediction in enumerate(predictions):
        _add_layer(drawn, prediction, theme.COLOURS[number % len(theme.COLOURS)])
    rates = predictions[0].forecast.lr if predictions[0].forecast is not None else np.zeros(1)
    kept = thinned(len(rates))
    grey = {"color": "#888888"}
    drawn.add_scatter(
        x=kept, y=rates[kept], mode="lines", name="learning rate", line=grey, showlegend=False, row=3, col=1
    )
    for row, title in enumerate(PANELS.values(), start=1):
        drawn.update_yaxes(title_text=title, exponentformat="power", row=row, col=1)
    for row, name in enumerate(("angular_update", "norm"), start=1):
        highest = max(float(getattr(prediction.forecast, name).max()) for prediction in predictions)
        if highest > 0:  # a layer that never turns has no logarithm
            drawn.update_yaxes(type="log", range=[np.log10(highest / RANGE), np.log10(2 * highest)], row=row, col=1)
    drawn.update_xaxes(title_text="step", row=3, col=1)
    drawn.update_layout(
        template="plotly_white",
        height=640,
        margin={"l": 80, "r": 20, "t": 30, "b": 50},
        legend={"orientation": "h", "y": 1.08},
    )
    return drawn


def _add_layer(drawn: Any, prediction: LayerPrediction, colour: str) -> None:
    """Rotation and norm of one layer, each with its equilibrium; the legend has each line once."""
    forecast = prediction.forecast
    assert forecast is not None
    kept = thinned(len(forecast.lr))
    label = escape(prediction.name)
    for row, name in enumerate(("angular_update", "norm"), start=1):
        lines = {label: (name, theme.SOLID), f"{label}, equilibrium": (f"equilibrium_{name}", theme.DASHED)}
        for title, (curve, style) in lines.items():
            drawn.add_scatter(
                x=kept,
                y=getattr(forecast, curve)[kept],
                mode="lines",
                name=title,
                legendgroup=label,
                line={"color": colour, **style},
                showlegend=row == 1,
                row=row,
                col=1,
            )
