"""The common parts of plans, autopsies and reports in a terminal: tables of layers, and findings with marks."""

from collections.abc import Iterator, Sequence
from textwrap import fill

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gyroscope.advice.findings import MARKS, Finding, Severity
from gyroscope.advice.layer_families import cut_middle
from gyroscope.report.layer_table import LayerTable

# Characters of a label that a narrow terminal still shows.
MIN_LABEL = 18
STYLES: dict[Severity, str] = {"bad": "bold red", "warn": "yellow", "note": "cyan", "good": "green"}


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Draw one line for each row, names to the left and numbers to the right."""
    drawn = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for number, column in enumerate(header):
        drawn.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn


def family_table(layers: LayerTable, width: int) -> Table:
    """Draw one line for each family of layers. Labels are cut in the middle if numbers need the space."""
    rows = [list(row.cells) for row in layers.rows]
    headings = [max(map(len, column.split("\n"))) for column in layers.header]
    needed = [max([heading, *(len(row[place]) for row in rows)]) + 1 for place, heading in enumerate(headings)]
    # The name of the worst member has the same width as that of the family.
    names = [place for place, column in enumerate(layers.header) if column in ("layer", "worst")]
    room = width - sum(size for place, size in enumerate(needed) if place not in names)
    most = max(room // len(names) - 1, MIN_LABEL)
    for row in rows:
        for place in names:
            row[place] = cut_middle(row[place], most)
    return table(layers.header, rows)


def summary_text(sentences: Sequence[str], width: int) -> Iterator[RenderableType]:
    """Yield what the findings mean, in one bold paragraph."""
    if sentences:
        yield Text(filled(" ".join(sentences), width) + "\n", style="bold")


def findings_text(findings: Sequence[Finding], width: int, explain: bool = False) -> Iterator[RenderableType]:
    """Yield findings behind their marks, remedies behind an arrow, and formulas under them if `explain`."""
    for finding in findings:
        yield from finding_lines(finding.severity, finding.sentence, finding.remedy, width)
        if explain and finding.formula:
            yield Text(filled(finding.formula, width, indent=4), "italic cyan")


def finding_lines(severity: Severity, sentence: str, remedy: str, width: int) -> Iterator[RenderableType]:
    """Yield a finding and its remedy, in lines of at most `width` characters."""
    yield Text.assemble((MARKS[severity], STYLES[severity]), " ", filled(sentence, width, indent=2)[2:])
    if remedy:
        yield Text(filled("→ " + remedy, width, indent=2, hang=2), "dim")


def filled(text: str, width: int, indent: int = 0, hang: int = 0) -> str:
    """Wrap a text into indented lines. Lines after the first are indented by `hang` more."""
    after = " " * (indent + hang)
    return fill(text, width, initial_indent=" " * indent, subsequent_indent=after, break_on_hyphens=False)
