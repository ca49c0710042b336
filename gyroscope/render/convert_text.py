"""A conversion in a terminal."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from gyroscope.advice.phrases import format_number
from gyroscope.render.rendered import TerminalText
from gyroscope.render.terminal import filled, table
from gyroscope.report.convert_data import Conversion

SCHEDULE_HEADER = ("share of the run", "your multiplier", "converted")


def conversion_text(conversion: Conversion) -> TerminalText:
    """Return a conversion for people: the new settings first, then what they keep and how the schedule changes."""

    def lines(width: int) -> Iterator[RenderableType]:
        yield Text(filled(conversion.answer, width), style="bold")
        yield Text(filled(" ".join(conversion.sentences()), width))
        if len(conversion.layers) > 1:
            yield Text("")
            yield from table(*conversion.layer_table, width)
        rows = conversion.schedule_rows
        if rows:
            yield Text("")
            cells = [[share, format_number(old), format_number(new)] for share, old, new in rows]
            yield from table(SCHEDULE_HEADER, cells, width)

    return TerminalText(lines)
