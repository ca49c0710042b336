"""Pages of the reference that are made from code: the help of every command, and the tables of a run's file."""

import io
from contextlib import redirect_stdout

from gyroscope.cli import main
from gyroscope.store import SCHEMA_VERSION
from gyroscope.store.schema import LAYER_BITS, STATISTICS, TABLES

# The mean rotation of a layer by step, with nothing but SQLite and NumPy. A test runs it.
READING = f"""import sqlite3

import numpy as np

run = sqlite3.connect("file:runs/first/run.sqlite?mode=ro", uri=True)
quantities = [name for (name,) in run.execute("SELECT name FROM quantity WHERE per_vector = 1 ORDER BY id")]
(layer,) = run.execute("SELECT id FROM layer WHERE name = ?", ("0.weight",)).fetchone()
query = "SELECT step, numbers FROM sample JOIN measurement ON key = (sample.id << {LAYER_BITS} | ?) ORDER BY step"
means = {{}}
for step, numbers in run.execute(query, (layer,)):
    statistics = np.frombuffer(numbers, "<f4")[: {len(STATISTICS)} * len(quantities)].reshape(-1, {len(STATISTICS)})
    means[step] = float(statistics[quantities.index("angular_update"), {STATISTICS.index("mean")}])
"""
RUN_FILE = f"""# Run file

A run is a folder with one SQLite database, `run.sqlite`. Any program that reads SQLite can read it, also while it is
written.

- The version of the tables is {SCHEMA_VERSION}, in `PRAGMA user_version`. A file of another version is refused with a
  sentence that names both versions.
- The table `documentation` contains the descriptions below, so a file explains itself.
- Every row that is read has a checksum, because SQLite has none.

[The reference of runs](runs.md) has the Python functions, and `gyroscope export RUN… table.parquet` writes plain
tables. Without Gyroscope, a few lines read the mean rotation of a layer:

```python
{READING}```
"""


def commands_page() -> str:
    """Return the help of all commands as a page."""
    listed = help_of().partition("Commands:")[2].splitlines()
    commands = [line.split()[0] for line in listed if line.startswith("  ") and not line.startswith("   ")]
    parts = ["# Commands\n", f"This is the help of every command.\n\n```text\n{help_of()}\n```\n"]
    parts += [f"## gyroscope {command}\n\n```text\n{help_of(command)}\n```\n" for command in commands]
    return "\n".join(parts)


def help_of(*command: str) -> str:
    """Return the help of a command, or of all commands."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        main([*command, "--help"])
    return printed.getvalue().strip()


def run_file_page() -> str:
    """Return the tables of a run's file as a page."""
    parts = [RUN_FILE]
    for table, columns in TABLES.items():
        rows = [f"| `{name}` | {kind} | {cell(meaning)} |" for name, (kind, meaning) in columns.items()]
        parts.append("\n".join([f"## {table}\n", "| column | type | meaning |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def cell(text: str) -> str:
    """Return text for a cell of a table, in which a bar would end the cell and brackets an element."""
    return text.replace("|", "\\|").replace("<", "&lt;")


PAGES = {"reference/commands.md": commands_page, "reference/run-file.md": run_file_page}
