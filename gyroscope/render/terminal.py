"""The common parts of plans, autopsies and reports in a terminal: tables of layers, and findings with marks."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from textwrap import fill

from rich.console import JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from gyroscope.advice.findings import MARKS, Finding, Severity
from gyroscope.advice.layer_families import cut_middle
from gyroscope.report.layer_table import LayerTable, heading

# Characters of a label below which a column is left out instead.
MIN_LABEL = 18
STYLES: dict[Severity, str] = {"bad": "bold red", "warn": "yellow", "note": "cyan", "good": "green"}


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int, labels: Sequence[int] = ()
) -> Iterator[RenderableType]:
    """Yield a line for each row, names to the left and numbers to the right, and which columns did not fit.

    No cell is broken. Columns at the places `labels` are cut in the middle, and then the last columns are left out.
    """
    sizes = [max(map(len, [*column.split("\n"), *(row[i] for row in rows)])) + 1 for i, column in enumerate(header)]
    least = [min(size, MIN_LABEL + 1) if place in labels else size for place, size in enumerate(sizes)]
    # A label beside one column of numbers may be shorter, because without the numbers it would be useless.
    count = max(sum(total <= width for total in accumulate(least)), 2 if labels else 1)
    shown = [place for place in labels if place < count]
    room = width - sum(size for place, size in enumerate(sizes[:count]) if place not in shown)
    most = max(room // max(len(shown), 1) - 1, 1)
    drawn = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for place, column in enumerate(header[:count]):
        justify: JustifyMethod = "right" if place else "left"
        drawn.add_column(column, justify=justify, overflow="fold", no_wrap=place not in labels)
    for row in rows:
        drawn.add_row(*(Text(cut_middle(cell, most) if i in shown else cell) for i, cell in enumerate(row[:count])))
    yield drawn
    if count < len(header):
        left_out = ", ".join(map(heading, header[count:]))
        yield Text(filled(f"Not shown in {width} columns: {left_out}.", width), style="dim")


def family_table(layers: LayerTable, width: int) -> Iterator[RenderableType]:
    """Yield one line for each family of layers. Labels are cut in the middle if numbers need the space."""
    # The name of the worst member has the same width as that of the family.
    names = [place for place, column in enumerate(layers.header) if column in ("layer", "worst")]
    yield from table(layers.header, [row.cells for row in layers.rows], width, names)


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
