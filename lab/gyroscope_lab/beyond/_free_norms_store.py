"""Finished trainings in a file, one line each, so that a run that is killed loses at most one training.

Unlike the runner's own files they outlive a change of the code, because they took hours. Each line has the commit that
measured it.
"""

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from gyroscope_lab.framework.results import commit_of_code

Record = dict[str, Any]
Measured = dict[str, float]


class Trainings:
    """Measurements by their settings. Without a path they are only in memory."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._records: dict[str, Record] = {}
        if path is not None and path.exists():
            self._load(path)

    def _load(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # killed while it wrote the last line
            path.write_text(whole, encoding="utf-8")
        for line in whole.splitlines():
            record = json.loads(line)
            self._records[_key(record["settings"])] = record

    def __len__(self) -> int:
        """Return the number of finished trainings."""
        return len(self._records)

    def get(self, settings: Record) -> Measured | None:
        """Return the measurement with these settings, or None."""
        record = self._records.get(_key(settings))
        return None if record is None else dict(record["measured"])

    def measure(self, settings: Record, function: Callable[[], Measured]) -> Measured:
        """Return the stored measurement with these settings, or measure and store it."""
        stored = self.get(settings)
        if stored is not None:
            return stored
        measured = {name: float(f"{value:.7g}") for name, value in function().items()}
        record = {"settings": settings, "measured": measured, "commit": imported_commit()}
        self._records[_key(settings)] = record
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        return measured


@cache
def imported_commit() -> str:
    """Return the commit that this process imported. The code on disk may change while a long trial runs."""
    code = commit_of_code()
    return f"{code['commit']}{' with changes' if code['changed'] else ''}"


def _key(settings: Record) -> str:
    return json.dumps(settings, sort_keys=True)
