"""The planner's answer in a terminal."""

from collections.abc import Iterator, Sequence
from textwrap import fill

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from gyroscope.advice.plan_sentences import Sentence, layer_table
from gyroscope.planner.answer import Answer
from gyroscope.render.chart import chart

STYLES = {"fact": "", "good": "green", "warning": "yellow", "missing": "dim"}
MARKS = {"fact": "•", "good": "✓", "warning": "!", "missing": "?"}


class PlanText:
    """A plan for people: what was asked, a chart, the sentences and the verdict."""

    def __init__(self, answer: Answer, explain: bool = False) -> None:
        self.answer, self.explain = answer, explain

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._head()
        yield from self._chart()
        if len(self.answer.layers) > 1:
            yield table(*layer_table(self.answer.question, self.answer.layers))
            yield Text("")
        yield from said(self.answer.sentences, options.max_width, self.explain)
        yield Text("\nVerdict", style="bold")
        yield from said(self.answer.verdict, options.max_width, self.explain)

    def _head(self) -> Iterator[RenderableType]:
        rule, schedule = self.answer.question.rule, self.answer.question.schedule
        settings = ", ".join(f"{name}={value}" for name, value in rule.settings.items() if value is not False)
        ramp = f", warmup {schedule.warmup:,}" if schedule.warmup else ""
        yield Text(f"{rule.name}({settings})", style="bold")
        yield Text(f"{schedule.name} schedule over {schedule.steps:,} steps{ramp}\n")

    def _chart(self) -> Iterator[RenderableType]:
        first = self.answer.layers[0]
        if first.forecast is None:
            return
        lines = chart(first.forecast.angular_update, first.forecast.equilibrium_angular_update)
        if lines:
            yield Text(f"rotation of {first.layer.name}, radians per step (dashed: equilibrium at that step's rate)")
            yield Text("\n".join(lines) + "\n")


def table(header: list[str], rows: list[list[str]]) -> Table:
    """What is said of each layer, one line each."""
    drawn = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for number, column in enumerate(header):
        drawn.add_column(column, justify="right" if number else "left")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn


def said(sentences: Sequence[Sentence], width: int, explain: bool = False) -> Iterator[RenderableType]:
    """Sentences behind their marks, and if asked for the formulas under them."""
    for sentence in sentences:
        body = fill(sentence.text, width - 2, subsequent_indent="  ", break_on_hyphens=False)
        yield Text.assemble((MARKS[sentence.level], STYLES[sentence.level]), " ", body)
        if explain and sentence.formula:
            indent = 4 * " "
            yield Text(fill(sentence.formula, width, initial_indent=indent, subsequent_indent=indent), "italic cyan")
