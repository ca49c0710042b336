"""What plans, autopsies and reports show in a terminal alike: tables of layers, and findings with their marks."""

from collections.abc import Iterator, Sequence
from textwrap import fill

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gyroscope.advice.findings import MARKS, Finding, Severity

STYLES: dict[Severity, str] = {"bad": "bold red", "warn": "yellow", "note": "cyan", "good": "green"}
# Characters of a layer's name that stay on one line.
LONGEST_NAME = 40


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Draw one line for each row; names to the left, numbers to the right."""
    drawn = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for number, column in enumerate(header):
        drawn.add_column(column, justify="right" if number else "left")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn


def layer_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Draw the same with names of layers that take two lines rather than an ellipsis."""
    drawn = table(header, rows)
    drawn.columns[0].overflow = "fold"
    drawn.columns[0].min_width = min(LONGEST_NAME, max(len(row[0]) for row in rows))
    return drawn


def findings_text(findings: Sequence[Finding], width: int, explain: bool = False) -> Iterator[RenderableType]:
    """Yield findings behind their marks, remedies behind an arrow, and formulas under them if `explain`."""
    for finding in findings:
        yield from finding_lines(finding.severity, finding.sentence, finding.remedy, width)
        if explain and finding.formula:
            yield Text(filled(finding.formula, width, indent=4), "italic cyan")


def finding_lines(severity: Severity, sentence: str, remedy: str, width: int) -> Iterator[RenderableType]:
    """Yield a finding and what to change, in lines of at most so many characters."""
    yield Text.assemble((MARKS[severity], STYLES[severity]), " ", filled(sentence, width, indent=2)[2:])
    if remedy:
        yield Text(filled("→ " + remedy, width, indent=2, hang=2), "dim")


def filled(text: str, width: int, indent: int = 0, hang: int = 0) -> str:
    """Wrap a text into lines, all of them indented, and those after the first by `hang` more."""
    after = " " * (indent + hang)
    return fill(text, width, initial_indent=" " * indent, subsequent_indent=after, break_on_hyphens=False)
