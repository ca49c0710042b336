"""Runs that are followed while they grow: each is read once, and a page of them is built once for all its viewers."""

import hashlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from gyroscope._types import Array
from gyroscope.advice.layer_families import plain_name
from gyroscope.render.page import page_json
from gyroscope.report.comparison import shared_layers
from gyroscope.report.run_data import RunData
from gyroscope.report.run_gather import check, gather_run, make_report
from gyroscope.report.run_layers import distributions_at, layer_series
from gyroscope.store import Run, RunError, open_run
from gyroscope.store.database import FILE

# Largest number of samples that a live page shows.
MAX_SAMPLES = 400
# Seconds between readings of a file, for any number of viewers.
PAUSE = 0.5
# A page is built again after so many times the seconds that this took, so that building takes at most a tenth.
REST = 10


@final
class Feed:
    """Follows one run. Several threads may use it. It raises `RunError` while the run cannot be read."""

    def __init__(self, id: str, name: str, path: Path) -> None:
        self.id = id
        self.name = name
        self.path = path
        self.used_at = time.monotonic()
        self._lock = threading.RLock()
        self._run: Run | None = None
        self._identity = (0, 0)
        self._read_at = 0.0

    @property
    def layers(self) -> list[str]:
        """All layers of the run."""
        with self._lock:
            return self._refresh().layers

    def state(self) -> tuple[object, ...]:
        """Return what changes when there is something new to show."""
        with self._lock:
            run = self._refresh()
            return self._identity, run.status, run.total, run.scalar_count

    def data(self, layers: Sequence[str] | None) -> RunData:
        """Return what the page shows of the run, with all layers or those that a comparison shows."""
        with self._lock:
            run = self._refresh()
            check(run)
            return gather_run(run, self.name, layers=layers, id=self.id, live=True)

    def series(self, layer: str) -> dict[str, Array] | None:
        """Return the series of a layer, or None if it is unknown."""
        with self._lock:
            run = self._refresh()
            name = _full_name(run, layer)
            return None if name is None else layer_series(run, name)

    def distribution(self, layer: str, quantity: str, step: int) -> dict[str, Any] | None:
        """Return the distribution of a layer's neurons at a step, or None if the layer, quantity or step is unknown."""
        with self._lock:
            run = self._refresh()
            name = _full_name(run, layer)
            known = quantity in run.quantities and run.quantities[quantity].per_vector
            if name is None or not known or step not in run.steps:
                return None
            return distributions_at(run, name, quantity, [int((run.steps == step).argmax())])[0]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._run is not None:
                self._run.close()
            self._run = None

    def _refresh(self) -> Run:
        """Return the run with its newest samples. It is opened again if another file took its place."""
        now = time.monotonic()
        self.used_at = now
        if self._run is not None and now - self._read_at < PAUSE:
            return self._run
        self._read_at = now
        try:
            file = self.path / FILE
            # The index follows no links, but one may have taken the place of the run since.
            if file.resolve() != file:
                raise RunError(f"{self.name} was moved, and a link is in its place.")
            status = file.stat()
            # Device and inode, because a run that was deleted and made again has the same path.
            identity = (status.st_dev, status.st_ino)
            if self._run is not None and self._identity == identity:
                self._run.refresh()
            else:
                self.close()
                self._run = open_run(self.path, limit=MAX_SAMPLES)
                self._identity = identity
        except RunError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise RunError(f"{self.name} was not found. Its file was moved or deleted.") from error
        return self._run


def _full_name(run: Run, layer: str) -> str | None:
    """Return the name of a layer in its run, or None. A comparison lists layers by their plain names."""
    return ({plain_name(name): name for name in run.layers} | {name: name for name in run.layers}).get(layer)


@final
class LivePage:
    """The page of one or several runs as JSON, with a tag that changes with it."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self.feeds = feeds
        self._lock = threading.Lock()
        self._states: list[tuple[object, ...]] = []
        self._page = ("", "")
        self._again_at = 0.0

    def read(self) -> tuple[str, str]:
        """Return the tag and the text, built again if a run has grown."""
        with self._lock:
            states = [feed.state() for feed in self.feeds]
            begun = time.monotonic()
            if states != self._states and begun >= self._again_at:
                text = page_json(self._report())
                self._page = (f'"{hashlib.sha256(text.encode()).hexdigest()[:16]}"', text)
                self._states = states
                self._again_at = begun + REST * (time.monotonic() - begun)
            return self._page

    def _report(self) -> object:
        shown = [None] if len(self.feeds) == 1 else shared_layers([(feed.name, feed.layers) for feed in self.feeds])
        runs = [feed.data(layers) for feed, layers in zip(self.feeds, shown, strict=True)]
        return make_report(runs, [feed.layers for feed in self.feeds])
