"""A report in a terminal: the verdict and the table of layers."""

from collections.abc import Iterator
from textwrap import fill

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from gyroscope.advice.findings import MARKS
from gyroscope.advice.phrases import sig
from gyroscope.render.plan_text import table
from gyroscope.render.run_data import LayerData, Report, RunData

STYLES = {"bad": "bold red", "warn": "yellow", "note": "cyan", "good": "green"}
LONGEST = 40
"""Characters of a name that stay together."""
HEADER = ["layer", "rotation", "÷ predicted", "norm", "÷ predicted", "λₑ/λ", "spread ÷ noise", "settled at"]


class ReportText:
    """Runs for people, the healthiest first: what is the matter, what to do, and each layer in a line."""

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
    yield Text("")
    for verdict in run.verdicts:
        mark = next(mark for severity, mark in MARKS.items() if severity == verdict.severity)
        yield Text.assemble((mark, STYLES[verdict.severity]), " ", _filled(verdict.sentence, width, "  ")[2:])
        if verdict.remedy:
            yield Text(_filled("→ " + verdict.remedy, width, "  ", hang=2), style="dim")
    yield from (Text(_filled("• " + note, width, ""), style="dim") for note in run.notes)
    yield Text("")
    yield _table(run)


def _filled(text: str, width: int, indent: str, hang: int = 0) -> str:
    after = indent + " " * hang
    return fill(text, width, initial_indent=indent, subsequent_indent=after, break_on_hyphens=False)


def _table(run: RunData) -> Table:
    drawn = table(HEADER, [_row(layer) for layer in run.layers])
    drawn.columns[0].overflow = "fold"  # a name is worth two lines, not an ellipsis
    drawn.columns[0].min_width = min(LONGEST, max(len(layer.name) for layer in run.layers))
    return drawn


def _row(layer: LayerData) -> list[str]:
    one = layer.summary
    numbers = (one.rotation, one.rotation_ratio, one.norm, one.norm_ratio, one.decay_ratio, one.imbalance)
    settled = f"{one.settled_at:,.0f}" if one.settled_at == one.settled_at else "–"
    return [layer.name, *(sig(number) if number == number else "–" for number in numbers), settled]
