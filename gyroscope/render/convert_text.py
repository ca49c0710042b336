"""A conversion in a terminal."""

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from gyroscope.advice.phrases import sig
from gyroscope.render.terminal import filled, table
from gyroscope.report.convert_data import Conversion

SCHEDULE_HEADER = ("share of the run", "your multiplier", "converted")


class ConversionText:
    """A conversion for people: the new settings first, then what they keep and how the schedule changes."""

    def __init__(self, conversion: Conversion) -> None:
        self.conversion = conversion

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(filled(self.conversion.answer, options.max_width), style="bold")
        yield Text(filled(" ".join(self.conversion.sentences()), options.max_width))
        rows = self.conversion.schedule_rows
        if rows:
            yield Text("")
            yield table(SCHEDULE_HEADER, [[share, sig(old), sig(new)] for share, old, new in rows])
