"""A transfer in a terminal: the answer in at most ten lines of 80 columns, and on request the table of all rules."""

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.text import Text

from gyroscope.render.rendered import TerminalText
from gyroscope.render.terminal import filled, table
from gyroscope.report.transfer_data import TransferData
from gyroscope.report.transfer_sentences import answer, groups, other_changes, published, reason, support
from gyroscope.theory.transfer_rules import FAVOURED, family_of


def transfer_text(data: TransferData, all_rules: bool = False) -> TerminalText:
    """Return a transfer for people. `all_rules` adds what every rule gives, with its source."""

    def lines(width: int) -> Iterator[RenderableType]:
        text = Text(filled(f"{answer(data)} {reason(data)}".strip(), width))
        text.stylize("bold", 0, len(answer(data)))
        yield text
        if groups(data):
            yield Text(filled(groups(data), width, indent=2))
        yield from _paragraph(other_changes(data), width)
        yield from _paragraph(published(data), width)
        yield from _paragraph(support(data), width)
        if all_rules:
            yield from _rules(data, width)

    return TerminalText(lines)


def _rules(data: TransferData, width: int) -> Iterator[RenderableType]:
    yield Text("")
    for line in data.settings:
        yield Text(filled(line, width, hang=6), style="dim")
    yield Text("")
    # Notes are below the table, because the numbers fill a terminal of 80 columns.
    header, rows = data.rules
    yield from table(header[:-1], [row[:-1] for row in rows], width)
    favoured = FAVOURED[family_of(data.transfer.rule)]
    fillings = [f"{favoured[axis].replace('copy', 'no change')} for {data.axis_name(axis)}" for axis in data.ratios]
    notes = [f"{note}: {', '.join(names)}" for note, names in data.notes.items()]
    if data.transfer.tuned.memory is None:
        notes.append("Memory and run length are unknown here. Add --momentum or --betas.")
    for note in [f"An axis that a rule does not cover takes {', '.join(fillings)}.", *notes] if fillings else notes:
        yield Text(filled(note, width, hang=2), style="dim")
    yield Text("\nSources", style="bold")
    for row in data.transfer.rows:
        yield Text(filled(f"{row.name}: {row.source}", width, hang=2))


def _paragraph(sentences: Iterable[str], width: int) -> Iterator[RenderableType]:
    text = " ".join(sentences)
    if text:
        yield Text(filled(text, width))
