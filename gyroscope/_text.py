"""Plain text of what rich draws, for objects that print themselves."""

import io

from rich.console import Console, RenderableType

# Columns of a printed table or page.
WIDTH = 140


def to_text(drawn: RenderableType, width: int = WIDTH) -> str:
    """Return what rich draws as lines of at most `width` characters, without colours and trailing spaces.

    >>> to_text("[bold]norm[/bold]")
    'norm'
    """
    buffer = io.StringIO()
    Console(file=buffer, width=width, highlight=False, color_system=None).print(drawn)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())
