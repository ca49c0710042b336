"""A transfer in a terminal: the answer first, then what it keeps, and the table of rules."""

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.text import Text

from gyroscope.render.rendered import TerminalText
from gyroscope.render.terminal import filled, table
from gyroscope.report.transfer_data import SILENT, TransferData
from gyroscope.report.transfer_sentences import answer, other_groups, row_sentences, trust


def transfer_text(data: TransferData, explain: bool = False) -> TerminalText:
    """Return a transfer for people. `explain` adds the sources of the rules."""

    def lines(width: int) -> Iterator[RenderableType]:
        yield Text(filled(answer(data), width), style="bold")
        yield from _paragraph([*trust(data), *other_groups(data)], width)
        yield Text("")
        if len(data.groups.rows) > 1:
            yield from table(*data.groups, width)
            yield Text("")
        for row in data.chosen:
            yield from _paragraph(row_sentences(data, row), width)
        yield Text("\n".join(["", *data.settings, ""]), style="dim")
        # Notes are below the table, because the numbers fill a terminal of 80 columns.
        header, rows = data.rules
        yield from table(header[:-1], [row[:-1] for row in rows if row[-1] != SILENT], width)
        for note, names in data.notes.items():
            yield Text(filled(f"{note}: {', '.join(names)}", width, hang=2), style="dim")
        if explain:
            yield Text("\nSources", style="bold")
            for row in data.transfer.rows:
                yield Text(filled(f"{row.name}: {row.source}", width, hang=2))

    return TerminalText(lines)


def _paragraph(sentences: Iterable[str], width: int) -> Iterator[RenderableType]:
    text = " ".join(sentences)
    if text:
        yield Text(filled(text, width))
