"""Plain text of what rich draws, for objects that print themselves."""

import io
from dataclasses import dataclass
from typing import final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

from gyroscope._json import printable

# Columns of a printed table or page.
WIDTH = 140


@final
@dataclass(frozen=True)
class Printable:
    """What rich draws, with control characters escaped, because names come from files of other people."""

    drawn: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style, control in console.render(self.drawn, options):
            yield Segment(printable(text), style, control)


def to_text(drawn: RenderableType, width: int = WIDTH) -> str:
    """Return what rich draws as lines of at most `width` characters, without colours and trailing spaces.

    >>> to_text("[bold]norm[/bold]")
    'norm'
    """
    buffer = io.StringIO()
    Console(file=buffer, width=width, highlight=False, color_system=None).print(Printable(drawn))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())
