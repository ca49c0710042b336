"""A plan in a terminal."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from gyroscope.advice.layer_families import short_labels
from gyroscope.render.chart import chart
from gyroscope.render.terminal import family_table, findings_text, summary_text
from gyroscope.report.plan_data import PlanData
from gyroscope.theory.layer_prediction import LayerPrediction


class PlanText:
    """A plan for people: what it means, the findings, a chart and numbers, with formulas if `explain`."""

    def __init__(self, plan: PlanData, explain: bool = False) -> None:
        self.plan = plan
        self.explain = explain

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plan = self.plan
        yield from summary_text(plan.findings.summary, options.max_width)
        yield Text("\n".join(plan.settings), style="dim")
        yield Text("\nVerdict", style="bold")
        yield from findings_text(plan.findings, options.max_width, self.explain)
        yield Text("")
        yield from _chart(plan)
        if len(plan.predictions) > 1:
            yield family_table(plan.table, options.max_width)
            yield Text("")
        yield from findings_text(plan.facts, options.max_width, self.explain)


def _chart(plan: PlanData) -> Iterator[RenderableType]:
    labels = short_labels([prediction.name for prediction in plan.predictions])
    for prediction in plan.fastest_first(1):
        lines = chart_lines(prediction)
        if lines:
            yield Text(
                f"rotation of {labels[prediction.name]}, radians per step (dashed: equilibrium at that step's rate)"
            )
            yield Text("\n".join(lines) + "\n")


def chart_lines(prediction: LayerPrediction) -> list[str]:
    """Return a layer's rotation over the run, empty if it has no forecast or never rotates."""
    forecast = prediction.forecast
    return [] if forecast is None else chart(forecast.angular_update, forecast.equilibrium_angular_update)
