"""A plan in a terminal and as a page: the answer, the table of numbers, findings and the curves."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from gyroscope.advice.layer_families import short_labels
from gyroscope.advice.thresholds import MIN_RATE_SHARE
from gyroscope.render import theme
from gyroscope.render.chart import chart
from gyroscope.render.html import fact_table, family_table, finding_list, label, page_head, picture
from gyroscope.render.rendered import Document
from gyroscope.render.terminal import family_table as terminal_table
from gyroscope.render.terminal import filled, findings_text, summary_text
from gyroscope.report.plan_data import PlanData, thinned
from gyroscope.report.plan_facts import Fact
from gyroscope.theory.layer_prediction import LayerPrediction

# Layers that a picture shows, as many as it has colours. A selection covers the fastest start to the slowest.
DRAWN = 7
# Curves from top to bottom, and the titles of their axes.
PANELS = {"angular_update": "rotation<br>rad per step", "norm": "norm", "lr": "learning rate"}


def plan_document(plan: PlanData) -> Document:
    """Return a plan for people."""
    return Document(plan.title, partial(_lines, plan), partial(_body, plan))


def _lines(plan: PlanData, width: int, explain: bool) -> Iterator[RenderableType]:
    yield from summary_text(plan.findings.summary, width)
    yield Text("\n".join(filled(setting, width, hang=2) for setting in plan.settings), style="dim")
    yield from _facts(plan.facts, width, explain)
    if len(plan.predictions) > 1:
        yield Text("")
        yield from terminal_table(plan.table, width)
    findings = plan.findings if explain else plan.asking
    if findings:
        yield Text("")
        yield from findings_text(findings, width, explain)
    yield Text("")
    labels = short_labels([prediction.name for prediction in plan.predictions])
    for prediction in plan.fastest_first(1):
        lines = chart_lines(prediction)
        if lines and len(lines[0]) <= width:
            shown = f"rotation of {labels[prediction.name]}, radians per step"
            yield Text(filled(f"{shown} (dashed: equilibrium at that step's rate)", width))
            yield Text("\n".join(lines))
        elif lines:
            yield Text(filled(f"No chart in {width} columns.", width), style="dim")


def _facts(facts: Sequence[Fact], width: int, explain: bool) -> Iterator[RenderableType]:
    """Yield the table of one layer, with the formula below each value if `explain`."""
    indent = max((len(fact.quantity) for fact in facts), default=0) + 2
    for fact in facts:
        shown = filled(fact.quantity.ljust(indent) + fact.value, width, hang=indent)
        yield Text.assemble((shown[:indent], "bold"), shown[indent:])
        if explain:
            yield Text(filled(fact.formula, width, indent=indent), "italic cyan")


def chart_lines(prediction: LayerPrediction) -> list[str]:
    """Return a layer's rotation over the run, empty if it has no forecast or never rotates."""
    forecast = prediction.forecast
    return [] if forecast is None else chart(forecast.angular_update, forecast.equilibrium_angular_update)


def _body(plan: PlanData) -> str:
    drawn = plan.drawn_layers(DRAWN)
    chart = picture(figure(drawn)) if drawn else "<p>No curves, because an input is missing.</p>"
    table = family_table(plan.table) if len(plan.predictions) > 1 else fact_table(plan.facts)
    return f"""{page_head(plan.title, plan.findings.summary, plan.settings)}
{table}{finding_list(plan.findings)}
<h2>The predicted run</h2><div class="chart">{chart}</div>
<p class="settings">Solid: forecast. Dashed: equilibrium at the learning rate of that step.</p>"""


def figure(layers: Mapping[str, LayerPrediction]) -> Any:
    """Return rotation, norm and learning rate over the steps: solid the forecast, dashed the equilibrium."""
    from plotly.subplots import make_subplots  # heavy, and only pages need it

    drawn = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.04, row_heights=[0.45, 0.35, 0.2])
    for number, (name, prediction) in enumerate(layers.items()):
        _add_layer(drawn, prediction, label(name), theme.COLOURS[number % len(theme.COLOURS)])
    courses = [prediction.forecast.lr for prediction in layers.values() if prediction.forecast is not None]
    grey = {"color": theme.GREY}
    for rates in {course.tobytes(): course for course in courses}.values():  # one line for each group of layers
        kept = thinned(len(rates))
        drawn.add_scatter(
            x=kept, y=rates[kept], mode="lines", name="learning rate", line=grey, showlegend=False, row=3, col=1
        )
    for row, title in enumerate(PANELS.values(), start=1):
        drawn.update_yaxes(title_text=title, exponentformat="power", automargin=True, row=row, col=1)
    for row in (1, 2):
        curves = [np.array(trace.y, float) for trace in drawn.select_traces(row=row, col=1)]
        values = np.concatenate([curve[np.isfinite(curve) & (curve > 0)] for curve in curves])
        if values.size:  # a layer that never rotates has no logarithm
            ends = np.log10([values.min() / 1.3, 1.3 * values.max()])
            # Ticks between decades only if there are few decades.
            ticks = {"dtick": 1} if np.ptp(ends) > 1 else {}
            drawn.update_yaxes(type="log", range=ends.tolist(), **ticks, row=row, col=1)
    drawn.update_xaxes(title_text="step", row=3, col=1)
    drawn.update_layout(
        template="plotly_white",
        height=640,
        margin={"l": 10, "r": 15, "t": 30, "b": 50},
        legend={"orientation": "h", "y": 1.01, "yanchor": "bottom"},
    )
    return drawn


def _add_layer(drawn: Any, prediction: LayerPrediction, name: str, colour: str) -> None:
    """Add rotation and norm of one layer, each with its equilibrium. The legend names the layer once."""
    forecast = prediction.forecast
    assert forecast is not None
    kept = thinned(len(forecast.lr))
    # The last steps of a schedule go to 0. On a logarithmic axis they would flatten all the others.
    kept = kept[forecast.lr[kept] >= MIN_RATE_SHARE * forecast.lr.max()]
    for row, quantity in enumerate(("angular_update", "norm"), start=1):
        lines = {name: (quantity, theme.SOLID), f"{name}, equilibrium": (f"equilibrium_{quantity}", theme.DASHED)}
        for title, (curve, style) in lines.items():
            drawn.add_scatter(
                x=kept,
                y=getattr(forecast, curve)[kept],
                mode="lines",
                name=title,
                legendgroup=name,
                line={"color": colour, **style},
                showlegend=row == 1 and curve == quantity,
                row=row,
                col=1,
            )
