"""Results as lines of a terminal, as a page and as JSON."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

from gyroscope._files import write_text
from gyroscope._text import to_text
from gyroscope.render.page import standalone

# Redraws the pictures when a reader switches between light and dark, and opens families of layers.
FIGURES_SCRIPT = "Look.listeners.push(Look.figures); Look.start(); Look.families();"


@final
@dataclass(frozen=True)
class TerminalText:
    """Text for a rich console, from a function that returns the lines for a number of columns."""

    lines: Callable[[int], Iterable[RenderableType]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.lines(options.max_width)


@final
@dataclass(frozen=True)
class Document:
    """A result for people.

    title  of its page, as plain text
    lines  of a terminal, given its columns. The second argument adds formulas
    body   HTML of its page, below the title
    style  CSS for this page
    """

    title: str
    lines: Callable[[int, bool], Iterable[RenderableType]]
    body: Callable[[], str]
    style: str = ""


class Rendered(ABC):
    """A result that prints as text and can be written as a page."""

    @abstractmethod
    def document(self) -> Document:
        """Return the result for people."""

    @abstractmethod
    def json(self) -> str:
        """Return the result as JSON, for programs."""

    def text(self, explain: bool = False) -> TerminalText:
        """Return the result for a rich console. `explain` adds formulas or sources."""
        lines = self.document().lines
        return TerminalText(lambda width: lines(width, explain))

    def page(self) -> str:
        """Return the HTML of one page that includes Plotly, so that it opens from disk without a network."""
        shown = self.document()
        return standalone(shown.title, shown.body(), script=FIGURES_SCRIPT, style=shown.style)

    def html(self, path: str | Path) -> Path:
        """Write the page, and make the directories above it."""
        write_text(path, self.page())
        return Path(path)

    def __str__(self) -> str:
        return to_text(self.text())
