"""Incidents of the runs that are being written: a line of text for each as it happens."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import final

from gyroscope.advice.incidents import KEPT, Incident, IncidentSearch, incident_finding
from gyroscope.live.run_index import RunIndex
from gyroscope.store import RunError, open_run

# Seconds between readings of the runs.
PAUSE = 3.0


@final
class FollowedIncidents:
    """One run that grows. If it is already long, only its last samples are read first."""

    def __init__(self, path: Path) -> None:
        self.run = open_run(path)
        before = self.run.steps[:-KEPT]
        self._search = IncidentSearch(after=int(before[-1]) if len(before) else -1)
        self._told: set[tuple[str, int]] = set()

    def read_on(self) -> Iterator[Incident]:
        """Yield the incidents in new samples."""
        self.run.refresh()
        for incident in self._search.read_on(self.run):
            if (incident.cause, incident.step) not in self._told:
                self._told.add((incident.cause, incident.step))
                yield incident


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
