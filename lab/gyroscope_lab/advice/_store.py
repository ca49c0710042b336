"""Results in a file, one line each, so that a bench that is killed loses at most one training."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from gyroscope.tools import dumps

Record = dict[str, Any]


@final
class StoredLines:
    """Values by their keys, which are plain dictionaries. Without a path they are only in memory."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._values: dict[str, Any] = {}
        if path is not None and path.exists():
            text = path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]
            if whole != text:  # killed while it wrote the last line
                path.write_text(whole, encoding="utf-8")
            for line in whole.splitlines():
                record = json.loads(line)
                self._values[key_text(record["key"])] = record["value"]

    def get(self, key: Record, measure: Callable[[], Record]) -> Record:
        """Return the stored value of a key, or measure and store it."""
        text = key_text(key)
        if text not in self._values:
            self._add(text, measure())
        return dict(self._values[text])

    def find(self, key: Record) -> Record | None:
        """Return the stored value of a key, or None."""
        return self._values.get(key_text(key))

    def _add(self, text: str, value: Record) -> None:
        line = f'{{"key": {text}, "value": {key_text(value)}}}\n'
        # As it will be read again: JSON has no tuples.
        self._values[text] = json.loads(line)["value"]
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())


def key_text(value: Any) -> str:
    """Return a value as JSON that does not depend on the order of its names."""
    return json.dumps(json.loads(dumps(value)), sort_keys=True, ensure_ascii=False)
