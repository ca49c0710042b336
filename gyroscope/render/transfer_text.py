"""A transfer in a terminal."""

from collections.abc import Iterable, Iterator

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from gyroscope.render.terminal import filled, table
from gyroscope.report.transfer_data import CHECK_HEADER, SILENT, TransferData
from gyroscope.report.transfer_sentences import agreement, answer, camps, checked, row_sentences, trust


class TransferText:
    """A transfer for people: the answer, what it keeps, the rules; with their sources if `explain`."""

    def __init__(self, data: TransferData, explain: bool = False) -> None:
        self.data = data
        self.explain = explain

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        data = self.data
        width = options.max_width
        yield Text(filled(answer(data), width), style="bold")
        yield from _paragraph(trust(data), width)
        yield Text("")
        yield table(data.group_header, data.group_rows)
        yield Text("")
        for row in data.chosen:
            yield from _paragraph(row_sentences(data, row), width)
        yield Text("\n".join(["", *data.settings, ""]), style="dim")
        # Notes stand below: in a terminal of 80 columns the numbers leave no room for them.
        yield table(data.rule_header[:-1], [row[:-1] for row in data.rule_rows if row[-1] != SILENT])
        for note, names in data.notes.items():
            yield Text(filled(f"{note}: {', '.join(names)}", width, hang=2), style="dim")
        yield Text("")
        for sentence in (*agreement(data), *camps(data)):
            yield Text(filled(sentence, width, hang=2))
        if data.check is not None:
            yield Text("\nMeasured", style="bold")
            yield from _paragraph(checked(data.check), width)
            yield table(CHECK_HEADER, data.check.rows)
        if self.explain:
            yield Text("\nSources", style="bold")
            for row in data.transfer.rows:
                yield Text(filled(f"{row.name}: {row.source}", width, hang=2))


def _paragraph(sentences: Iterable[str], width: int) -> Iterator[RenderableType]:
    text = " ".join(sentences)
    if text:
        yield Text(filled(text, width))
