"""A conversion in a terminal."""

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from gyroscope.advice.phrases import format_number
from gyroscope.render.terminal import filled, table
from gyroscope.report.convert_data import LAYER_HEADER, Conversion

SCHEDULE_HEADER = ("share of the run", "your multiplier", "converted")


class ConversionText:
    """A conversion for people: the new settings first, then what they keep and how the schedule changes."""

    def __init__(self, conversion: Conversion) -> None:
        self.conversion = conversion

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(filled(self.conversion.answer, options.max_width), style="bold")
        yield Text(filled(" ".join(self.conversion.sentences()), options.max_width))
        if self.conversion.layer_rows:
            yield Text("")
            yield table(LAYER_HEADER, self.conversion.layer_rows)
        rows = self.conversion.schedule_rows
        if rows:
            yield Text("")
            yield table(SCHEDULE_HEADER, [[share, format_number(old), format_number(new)] for share, old, new in rows])
