"""The runs below a directory, with their state. Links are not followed, and ids are not paths."""

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from gyroscope._json import clean_text
from gyroscope.report.run_head import run_head
from gyroscope.store import RunError, open_run
from gyroscope.store.database import FILE

# Directories below the given one that are searched.
DEEPEST = 6
# Directories that are large and contain no runs.
SKIPPED = {".git", ".venv", ".cache", "__pycache__", "node_modules"}
# Seconds for which a list of runs is reused, for any number of viewers.
FRESH = 2.0
# Samples of a run that are read for its line in the list.
MAX_SAMPLES_READ = 64


@final
@dataclass(frozen=True)
class ListedRun:
    """A run in the list, with text for people. `problem` is a sentence if it cannot be read."""

    id: str
    name: str
    status: str
    samples: int = 0
    step: int = 0
    heartbeat: float = 0.0
    settings: str = ""
    loss: str = ""
    run_length: str = ""
    problem: str = ""


@final
class RunIndex:
    """Runs below `root`. An id is a hash, so a browser can open only runs that were found here."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        try:
            self.root = Path(root).expanduser().resolve()
        except RuntimeError:  # a home directory that cannot be found
            self.root = Path(root)
        if not self.root.is_dir():
            raise ValueError(f"there is no directory {str(root)!r}: give the directory with the runs")
        self._lock = threading.Lock()
        self._paths: dict[str, Path] = {}
        self._known: dict[str, tuple[tuple[int, ...], ListedRun]] = {}
        self._runs: list[ListedRun] = []
        self._listed_at = -FRESH

    def path(self, id: str) -> Path:
        """Return the directory of a run. Raise `KeyError` for an unknown id."""
        if id not in self._paths:
            self.runs()
        return self._paths[id]

    def name(self, path: Path) -> str:
        """Name of a run: its place below the root."""
        return clean_text(str(path.relative_to(self.root)) if path != self.root else path.name)

    def runs(self) -> list[ListedRun]:
        """Return all runs: running ones first, then in reverse order of names, because names begin with dates."""
        with self._lock:
            if time.monotonic() - self._listed_at > FRESH:
                paths = {hashlib.sha256(os.fsencode(path)).hexdigest()[:16]: path for path in directories(self.root)}
                self._known = {id: known for id, known in self._known.items() if id in paths}
                runs = [self._listed(id, path) for id, path in paths.items()]
                self._runs = sorted(runs, key=lambda run: (run.status == "running", run.name), reverse=True)
                self._paths = paths
                self._listed_at = time.monotonic()
            return self._runs

    def _listed(self, id: str, path: Path) -> ListedRun:
        """Read a run again only if its file changed, or if it was running and may have stopped."""
        # New samples are in the write-ahead log long before the file itself changes.
        changed = tuple(_changed_at(path / (FILE + end)) for end in ("", "-wal"))
        known = self._known.get(id)
        if known is not None and known[0] == changed and known[1].status != "running":
            return known[1]
        run = self._read(id, path)
        self._known[id] = (changed, run)
        return run

    def _read(self, id: str, path: Path) -> ListedRun:
        name = self.name(path)
        try:
            # Reads the list of samples, and the content of a few.
            with open_run(path, limit=MAX_SAMPLES_READ) as run:
                step = max(0, run.last_step)
                return ListedRun(id, name, run.status, run.total, step, run.heartbeat, *run_head(run).texts)
        except (RunError, OSError) as error:
            problem = str(error)
        except Exception as error:  # one unreadable file must not hide the list of all runs
            problem = f"{path} cannot be read: {type(error).__name__}: {error}."
        return ListedRun(id, name, "unreadable", problem=clean_text(problem))


def directories(root: Path) -> Iterator[Path]:
    """Yield directories that contain a run. Links are not followed, so that no path leaves `root`."""
    for folder, inside, files in os.walk(root):
        path = Path(folder)
        if FILE in files and not (path / FILE).is_symlink():
            yield path
            inside.clear()
        # os.walk descends into what is left in its list.
        deep = len(path.relative_to(root).parts) >= DEEPEST
        inside[:] = [] if deep else sorted(set(inside) - SKIPPED)


def _changed_at(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return -1
