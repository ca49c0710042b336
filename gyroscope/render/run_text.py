"""A report in a terminal: the findings and the table of layers."""

from collections.abc import Iterator
from math import isfinite

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from gyroscope.advice.phrases import sig
from gyroscope.render.terminal import filled, finding_lines, layer_table
from gyroscope.report.run_data import LayerData, Report, RunData

FORECAST = "* over the forecast from the start: X is below 1, and equilibrium does not apply."
HEADER = ["layer", "rotation", "÷ predicted", "norm", "÷ predicted", "λₑ/λ", "spread ÷ noise", "settled at"]


class ReportText:
    """Runs in a terminal, that with the fewest first: findings with their remedies, and each layer in a line."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, run in enumerate(self.report.runs):
            if number:
                yield Text("")
            yield from _run(run, options.max_width)


def _run(run: RunData, width: int) -> Iterator[RenderableType]:
    last = f" up to step {int(run.steps[-1]):,}" if len(run.steps) else ""
    thin = f", every {run.stride}th of them read" if run.stride > 1 else ""
    yield Text.assemble((run.name, "bold"), f": {run.status}, {run.total:,} samples{last}{thin}")
    for rule in dict.fromkeys(group.rule for group in run.groups if group.layers):
        yield Text(rule, style="dim")
    if run.scalars:
        values = (f"{name} {_number(series.last, str(series.last))}" for name, series in run.scalars.items())
        yield Text(filled(f"last logged: {', '.join(values)}", width, hang=2))
    yield Text("")
    for finding in run.verdicts:
        yield from finding_lines(finding.severity, finding.sentence, finding.remedy, width)
    yield from (Text(filled("• " + note, width), style="dim") for note in run.notes)
    yield Text("")
    yield layer_table(HEADER, [_row(layer) for layer in run.layers])
    if any(layer.summary.reference == "forecast" for layer in run.layers):
        yield Text(filled(FORECAST, width), style="dim")


def _row(layer: LayerData) -> list[str]:
    line = layer.summary
    # A layer that was not measured and a layer whose numbers are not finite must not look the same.
    missing = "not finite" if line.diverged else "–"
    forecast = "*" if line.reference == "forecast" and isfinite(line.rotation_ratio) else ""
    return [
        layer.name,
        _number(line.rotation, missing),
        _number(line.rotation_ratio) + forecast,
        _number(line.norm, missing),
        _number(line.norm_ratio) + forecast,
        *(_number(value) for value in (line.decay_ratio, line.imbalance)),
        f"{line.settled_at:,.0f}" if isfinite(line.settled_at) else "–",
    ]


def _number(value: float, missing: str = "–") -> str:
    return sig(value) if isfinite(value) else missing
