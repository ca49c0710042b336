"""The runs below a directory: found without leaving it, known by ids that are no paths, and listed with their state."""

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from gyroscope._json import clean_text
from gyroscope.store import RunError, open_run
from gyroscope.store.database import FILE

DEEPEST = 6
"""Directories below the given one that are looked into."""
SKIPPED = {".git", ".venv", ".cache", "__pycache__", "node_modules"}
"""Directories that are large and hold no runs."""
FRESH = 2.0
"""Seconds for which a list of runs is good; any number of viewers ask for it."""


@final
@dataclass(frozen=True)
class Entry:
    """A run in the list. `problem` is a sentence where it cannot be read."""

    id: str
    name: str
    status: str
    samples: int
    step: int
    layers: int
    heartbeat: float
    problem: str = ""


@final
class Shelf:
    """Runs below `root`. An id is a hash: whatever a browser asks for, only what was found here is opened."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).expanduser().resolve()
        if not self.root.is_dir():
            raise ValueError(f"there is no directory {str(root)!r}: give the one that holds the runs")
        self._lock = threading.Lock()
        self._found: dict[str, Path] = {}
        self._known: dict[str, tuple[tuple[int, ...], Entry]] = {}
        self._entries: list[Entry] = []
        self._when = -FRESH

    def path(self, id: str) -> Path:
        """Directory of a run; `KeyError` where there is none of that id."""
        if id not in self._found:
            self.entries()
        return self._found[id]

    def name(self, path: Path) -> str:
        """What a run is called: its place below the root."""
        return clean_text(str(path.relative_to(self.root)) if path != self.root else path.name)

    def entries(self) -> list[Entry]:
        """All runs, alive ones first, then by name backwards: names begin with dates."""
        with self._lock:
            if time.monotonic() - self._when > FRESH:
                found = {hashlib.sha256(os.fsencode(path)).hexdigest()[:16]: path for path in directories(self.root)}
                self._known = {id: known for id, known in self._known.items() if id in found}
                listed = [self._entry(id, path) for id, path in found.items()]
                self._entries = sorted(listed, key=lambda one: (one.status == "running", one.name), reverse=True)
                self._found, self._when = found, time.monotonic()
            return self._entries

    def _entry(self, id: str, path: Path) -> Entry:
        """Read anew only where the file changed, or the run is alive and might have died."""
        stamp = tuple(_stamp(path / (FILE + end)) for end in ("", "-wal"))
        known = self._known.get(id)
        if known is not None and known[0] == stamp and known[1].status != "running":
            return known[1]
        try:
            with open_run(path) as run:  # reads which samples there are, not what they hold
                step = int(run.steps[-1]) if run.total else 0
                entry = Entry(id, self.name(path), run.status, run.total, step, len(run.layers), run.heartbeat)
        except (RunError, OSError) as error:
            entry = Entry(id, self.name(path), "unreadable", 0, 0, 0, 0.0, clean_text(str(error)))
        self._known[id] = (stamp, entry)
        return entry


def directories(root: Path) -> Iterator[Path]:
    """Directories with a run in them; links are not followed, so that no path leaves `root`."""
    for folder, inside, files in os.walk(root):
        path = Path(folder)
        if FILE in files and not (path / FILE).is_symlink():
            yield path
            inside.clear()
        deep = len(path.relative_to(root).parts) >= DEEPEST
        inside[:] = [] if deep else sorted(set(inside) - SKIPPED)


def _stamp(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return -1
