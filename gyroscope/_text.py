"""Plain text of what rich draws, for objects that print themselves."""

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

# Columns of a printed table or page.
WIDTH = 140
# Control characters, and those that change the direction of writing.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return text that no terminal obeys: control characters become their escapes, except new lines and tabs.

    >>> print(printable("fc\\x1b[2J.weight"))
    fc\\x1b[2J.weight
    """
    return CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


@final
@dataclass(frozen=True)
class Printable:
    """What rich draws, with control characters escaped, because names come from files of other people."""

    drawn: "RenderableType"

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.segment import Segment  # on demand, because JSON needs this file without rich

        for text, style, control in console.render(self.drawn, options):
            yield Segment(printable(text), style, control)


def to_text(drawn: "RenderableType", width: int = WIDTH) -> str:
    """Return what rich draws as lines of at most `width` characters, without colours and trailing spaces.

    >>> to_text("[bold]norm[/bold]")
    'norm'
    """
    from rich.console import Console

    buffer = io.StringIO()
    Console(file=buffer, width=width, highlight=False, color_system=None).print(Printable(drawn))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())
