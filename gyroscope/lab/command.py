"""What `gyroscope lab run` does: experiments one after the other, each with a bar and the time left."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gyroscope.lab.catalogue import chosen


def run_all(
    names: list[str], size: Literal["quick", "paper"], seeds: int | None, out: Path, show: Callable[[Any], None]
) -> None:
    """Run the experiments meant by `names` and show the claims of each."""
    entries = chosen(names)
    from gyroscope.lab.runner import config_of, run  # after a slip in an id has been answered, for torch takes a second
    from gyroscope.lab.terminal import record_text

    for one in entries:
        config_of(one.id, size, seeds)
    for number, one in enumerate(entries, 1):
        with progress(one.id if len(entries) == 1 else f"{one.id} ({number} of {len(entries)})") as tell:
            run(one.id, size, seeds, out, tell)
        show(record_text(one.id, out))


@contextmanager
def progress(label: str) -> Iterator[Callable[[float], None]]:
    """A bar with the time left, where somebody watches; Ctrl-C says what is kept."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(label, total=1.0)
        try:
            yield lambda share: bar.update(task, completed=share)
        except KeyboardInterrupt:
            bar.stop()
            console.print(f"{label}: stopped; finished parts are kept, the same command goes on from there.")
            raise
