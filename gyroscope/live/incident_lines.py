"""Incidents of the runs that are being written: a line of text for each as it happens."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import final

import numpy as np

from gyroscope._types import Array
from gyroscope.advice.incidents import SERIES, Incident, IncidentDetector, incident_finding, logged_loss
from gyroscope.advice.thresholds import INCIDENT_LEVEL, INCIDENT_MEMORY
from gyroscope.live.run_index import RunIndex
from gyroscope.store import RunError, open_run

# Seconds between readings of the runs.
PAUSE = 3.0


@final
class FollowedIncidents:
    """One run, read sample by sample. If the run is already long, only its last samples are read first."""

    def __init__(self, path: Path) -> None:
        self.run = open_run(path)
        self._detector = IncidentDetector()
        self._next = max(0, self.run.total - INCIDENT_LEVEL - INCIDENT_MEMORY)
        self._last_step = int(self.run.steps[self._next]) if self.run.total else -1

    def read_on(self) -> Iterator[Incident]:
        """Return the incidents in new samples."""
        self.run.refresh()
        steps = self.run.steps
        loss_steps, losses = logged_loss(self.run)
        for step in steps[self._next :].tolist():
            new = (loss_steps > self._last_step) & (loss_steps <= step)
            yield from self._detector.update(step, self.run.layers, self._values(step), loss_steps[new], losses[new])
            self._last_step = step
        self._next = len(steps)
        late = loss_steps > self._last_step
        if self.run.status != "running" and late.any():
            yield from self._detector.finish(loss_steps[late], losses[late])
            self._last_step = int(loss_steps[-1])

    def _values(self, step: int) -> Array:
        known = [(name, stat) for name, stat in SERIES.items() if name in self.run.quantities]
        values = dict(zip((name for name, _ in known), self.run.values_at(step, known), strict=True))
        missing = np.full(len(self.run.layers), np.nan)
        return np.array([values.get(name, missing) for name in SERIES])


@final
class IncidentLines:
    """Reads the runs below a directory in a thread, and calls `say` with a line for each incident."""

    def __init__(self, index: RunIndex, say: Callable[[str], None]) -> None:
        self._index = index
        self._say = say
        self._followed: dict[str, FollowedIncidents] = {}
        self._ended = threading.Event()

    def start(self) -> None:
        """Start the thread, which reads until `stop`."""
        threading.Thread(target=self._look_on, name="gyroscope-incidents", daemon=True).start()

    def stop(self) -> None:
        """End the thread after its current reading."""
        self._ended.set()

    def look(self) -> None:
        """Read new samples of every run that is being written, and once more of runs that have ended since."""
        for listed in self._index.runs():
            is_running = listed.status == "running"
            if not is_running and listed.id not in self._followed:
                continue
            # The page shows problems of a file. Other runs are still read.
            with suppress(RunError, ValueError, OSError, KeyError):
                if listed.id not in self._followed:
                    self._followed[listed.id] = FollowedIncidents(self._index.path(listed.id))
                for incident in self._followed[listed.id].read_on():
                    finding = incident_finding(incident)
                    self._say(f"{listed.name}: {finding}")
            if not is_running and listed.id in self._followed:
                self._followed.pop(listed.id).run.close()

    def _look_on(self) -> None:
        while not self._ended.wait(PAUSE):
            self.look()
