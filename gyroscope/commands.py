"""Shared parts of all commands: options that take numbers, progress bars and output for people."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer


def number(text: str) -> float:
    """Return a number as a person writes it."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number: write for example 0.001 or 1e-3") from None


def count(text: str) -> int:
    """Return a whole number, also written as 1e5."""
    value = number(text)
    if value != value or value in (float("inf"), -float("inf")) or value != int(value):
        raise typer.BadParameter(f"{text!r} is not a whole number: write for example 10000 or 1e4")
    return int(value)


def numeric(help: str = "", *names: str) -> Any:
    """Return an option that takes a number, under the given names if there are any."""
    return typer.Option(*names, parser=number, metavar="NUMBER", help=help)


def whole(help: str = "") -> Any:
    """Return an option that takes a whole number."""
    return typer.Option(parser=count, metavar="COUNT", help=help)


def pair(text: str) -> tuple[float, float]:
    """Return two numbers separated by a comma."""
    parts = text.split(",")
    if len(parts) != 2:
        raise typer.BadParameter(f"{text!r} is not a pair of numbers: write for example 0.9,0.999")
    return number(parts[0]), number(parts[1])


@contextmanager
def progress_bar(what: str, is_long: bool = True) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function of done and total work that draws a progress bar, or None if nobody would see it."""
    if not is_long or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show(renderable: Any) -> None:
    """Print for a person: at most 100 columns, with colours if the terminal has them."""
    from rich.console import Console

    from gyroscope._text import Printable

    console = Console(highlight=False)
    console.width = min(console.width, 100)
    console.print(Printable(renderable))
