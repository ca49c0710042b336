"""Plain text of what rich draws, for objects that print themselves."""

import io
from shutil import get_terminal_size

from rich.console import Console, RenderableType

# Columns of printed text outside a terminal, for example in a notebook.
WIDTH = 140


def to_text(drawn: RenderableType, width: int | None = None) -> str:
    """Return what rich draws as plain lines of at most `width` characters, by default those of the terminal.

    >>> to_text("[bold]norm[/bold]")
    'norm'
    """
    buffer = io.StringIO()
    columns = width or get_terminal_size((WIDTH, 0)).columns
    Console(file=buffer, width=columns, highlight=False, color_system=None).print(drawn)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())
