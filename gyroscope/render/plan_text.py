"""A plan in a terminal."""

from collections.abc import Iterator
from math import isfinite

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from gyroscope.advice.phrases import sig
from gyroscope.render.chart import chart
from gyroscope.render.terminal import findings_text, table
from gyroscope.report.plan_data import PlanData
from gyroscope.theory.layer_prediction import LayerPrediction

HEADER = (
    *("layer", "rotation", "norm at start", "norm settles at", "first step ×", "fastest step ×"),
    *("warmup needed", "X", "settles at step", "falls out at step"),
)


class PlanText:
    """A plan for people: the settings, a chart, the facts and the judgement; with formulas if `explain`."""

    def __init__(self, plan: PlanData, explain: bool = False) -> None:
        self.plan = plan
        self.explain = explain

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plan = self.plan
        yield Text("\n".join(plan.settings) + "\n", style="bold")
        yield from _chart(plan)
        if len(plan.predictions) > 1:
            yield table(HEADER, [layer_row(prediction) for prediction in plan.predictions])
            yield Text("")
        yield from findings_text(plan.facts, options.max_width, self.explain)
        yield Text("\nVerdict", style="bold")
        yield from findings_text(plan.findings, options.max_width, self.explain)


def _chart(plan: PlanData) -> Iterator[RenderableType]:
    for prediction in plan.fastest_first(1):
        lines = chart_lines(prediction)
        if lines:
            yield Text(f"rotation of {prediction.name}, radians per step (dashed: equilibrium at that step's rate)")
            yield Text("\n".join(lines) + "\n")


def chart_lines(prediction: LayerPrediction) -> list[str]:
    """A layer's rotation over the run; empty where it has no forecast or never turns."""
    forecast = prediction.forecast
    return [] if forecast is None else chart(forecast.angular_update, forecast.equilibrium_angular_update)


def layer_row(prediction: LayerPrediction) -> list[str]:
    """A layer under `HEADER`."""
    eq = prediction.equilibrium
    forecast = prediction.forecast
    row = [prediction.name, _known(eq.angular_update), sig(prediction.layer.norm), _known(eq.norm)]
    if forecast is None:
        return [*row, "needs " + ", ".join(prediction.layer.missing(prediction.rule)), *["–"] * 5]
    fastest, _ = prediction.fastest
    return [
        *row,
        _known(forecast.over_rotation),
        _known(fastest),
        "no help" if prediction.warmup is None else sig(prediction.warmup, 2),
        sig(forecast.total_decay),
        _step(prediction.settled_at),
        _step(prediction.falls_out_at),
    ]


def _known(value: float | None) -> str:
    return "–" if value is None or not isfinite(value) else sig(value)


def _step(step: int | None) -> str:
    return "never" if step is None else f"{step:,}"
