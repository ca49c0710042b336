"""Run the tutorials and keep their outputs: `python -m tools.tutorials [name …]` writes docs/tutorials/NAME.md.

A tutorial is a Python file with percent cells, which Jupyter (with jupytext) and editors open as a notebook.
"""

import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent.parent / "docs" / "tutorials"
CELL = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)


class Cell(NamedTuple):
    """A cell of a notebook: prose as Markdown, or code."""

    is_prose: bool
    text: str


def cells(source: str) -> Iterator[Cell]:
    """Yield the cells of a tutorial."""
    _, *parts = CELL.split(source)
    for mark, text in zip(parts[::2], parts[1::2], strict=True):
        is_prose = mark is not None
        lines = [line.removeprefix("#").removeprefix(" ") for line in text.splitlines()] if is_prose else [text]
        yield Cell(is_prose, "\n".join(lines).strip())


def run(source: str) -> Iterator[tuple[Cell, str]]:
    """Run a tutorial in the current folder, and yield each cell with what it printed."""
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in cells(source):
        printed = io.StringIO()
        if not cell.is_prose:
            with redirect_stdout(printed):
                exec(compile(cell.text, "<tutorial>", "exec"), names)
        yield cell, printed.getvalue()


def page(name: str, ran: Iterator[tuple[Cell, str]]) -> str:
    """Return a tutorial with its outputs as Markdown."""
    parts = []
    for cell, printed in ran:
        parts.append(cell.text if cell.is_prose else f"```python\n{cell.text}\n```")
        if printed.strip():
            parts.append(f"```text\n{printed.rstrip()}\n```")
    parts.append(f"This page is the output of `docs/tutorials/{name}.py`, which opens as a notebook.")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Run tutorials in a temporary folder, and write their pages."""
    os.environ["COLUMNS"] = "100"
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.py")):
        source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            text = page(name, run(source))
        (FOLDER / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
