"""What plan and autopsy have in common: each is shown as text, as a page and as JSON."""

from abc import ABC, abstractmethod
from pathlib import Path

from rich.console import RenderableType

from gyroscope._files import write_text
from gyroscope._text import to_text


class Rendered(ABC):
    """A result that prints as text and can be written as a page."""

    @abstractmethod
    def text(self, explain: bool = False) -> RenderableType:
        """Return the result for a rich console; `explain` adds the formula behind every sentence."""

    @abstractmethod
    def page(self) -> str:
        """Return the HTML of one page that opens from disk."""

    @abstractmethod
    def json(self) -> str:
        """Return the result as JSON, for programs."""

    def html(self, path: str | Path) -> Path:
        """Write the page, and make the directories above it."""
        write_text(path, self.page())
        return Path(path)

    def __str__(self) -> str:
        return to_text(self.text())
