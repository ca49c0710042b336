"""Run the tutorials and keep their outputs.

    python -m tools.tutorials [NAME …]            write docs/tutorials/NAME.md and NAME.ipynb
    python -m tools.tutorials --check [NAME …]    only run them

A tutorial is a Python file with percent cells. The page and the notebook have its cells with what they printed.
"""

import argparse
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

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


def page(name: str, ran: Iterable[tuple[Cell, str]]) -> str:
    """Return a tutorial with its outputs as Markdown."""
    parts = []
    for cell, printed in ran:
        parts.append(cell.text if cell.is_prose else f"```python\n{cell.text}\n```")
        if printed.strip():
            parts.append(f"```text\n{printed.rstrip()}\n```")
    parts.append(f"[Open this page as a notebook]({name}.ipynb), or run `docs/tutorials/{name}.py`.")
    return "\n\n".join(parts) + "\n"


def notebook(ran: Iterable[tuple[Cell, str]]) -> str:
    """Return a tutorial with its outputs as a Jupyter notebook."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {
        "cells": [notebook_cell(number, cell, printed) for number, (cell, printed) in enumerate(ran)],
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def notebook_cell(number: int, cell: Cell, printed: str) -> dict[str, Any]:
    """Return one cell in the form of a notebook's file."""
    common = {"id": f"cell-{number}", "metadata": {}, "source": cell.text.splitlines(keepends=True)}
    if cell.is_prose:
        return {"cell_type": "markdown", **common}
    output = {"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)}
    return {"cell_type": "code", "execution_count": None, "outputs": [output] if printed else [], **common}


def main() -> int:
    """Run tutorials in a temporary folder, and write their pages and notebooks unless they are only checked."""
    parser = argparse.ArgumentParser(description="Run the tutorials and keep their outputs.")
    parser.add_argument("names", nargs="*", default=sorted(path.stem for path in FOLDER.glob("*.py")))
    parser.add_argument("--check", action="store_true", help="run them and write nothing")
    arguments = parser.parse_args()
    os.environ["COLUMNS"] = "100"
    for name in arguments.names:
        source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            ran = list(run(source))
        if arguments.check:
            sys.stdout.write(f"{name}: {len(ran)} cells ran\n")
            continue
        (FOLDER / f"{name}.md").write_text(page(name, ran), encoding="utf-8")
        (FOLDER / f"{name}.ipynb").write_text(notebook(ran), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
