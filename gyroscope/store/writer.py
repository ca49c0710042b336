"""The writer: training puts samples into a short queue, and a thread stores them.

The database is in SQLite's WAL mode with synchronous=NORMAL: a commit hands its pages to the operating system and does
not wait for the disk. What was committed survives the death of the process, `kill -9` too; a power failure or a crash
of the whole machine may take the last commits (those since the last checkpoint, some megabytes), never the rest of the
file. `flush` returns when everything put so far is committed.
"""

import atexit
import os
import sqlite3
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self

from gyroscope.store.begin import begin
from gyroscope.store.codec import Layout, encode
from gyroscope.store.database import explain, file_of
from gyroscope.store.provenance import clean
from gyroscope.store.schema import Layer, Quantity, RunError, Sample
from gyroscope.store.transaction import Item, Link, Ready, identity

CAPACITY = 8192
"""Layers' samples in the queue, together; of seventeen quantities one takes about ten kilobytes."""
BATCH = 0.5
"""Seconds that samples gather before they are stored in one transaction."""
HEARTBEAT = 4.0
"""Seconds between signs of life when no sample comes."""
WAIT = 0.02
"""Seconds that training waits for a place in a full queue before a sample is dropped."""
RETRY = 1.0
"""Seconds between attempts after a failure."""
LONGEST = 30.0
"""Seconds that `flush` and `close` wait at most."""


class Writer:
    """Writes one run. `put`, `flush` and `close` never raise for a failure of their own: it becomes one warning.

    A directory that holds a run is refused unless `resume`, which continues it: a step that is measured again replaces
    what was stored for it before, steps that are not measured again stay. After a failure (disk full, database locked,
    directory gone) the writer keeps trying, and stores what its queue holds once it can; samples that found no place
    are counted, and the run says how many. A process forked from the writing one writes nothing.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        quantities: Sequence[Quantity],
        config: Mapping[str, Any],
        resume: bool = False,
    ) -> None:
        self._file = file_of(path)
        self.path = self._file.parent
        self._layout = Layout(quantities)
        begun = begin(self._file, self._layout.quantities, config, resume)
        self._session = begun.session
        self._layers = begun.layers
        self._pid = os.getpid()
        self._identity = identity(self._file)
        self._changed = threading.Condition()  # guards all that follows
        self._thread: threading.Thread | None = None
        self._queue: deque[Item] = deque()
        self._load = 0  # layers' samples in the queue
        self._received = self._stored = self._failures = self._dropped = 0
        self._full = self._hurry = self._warned = False
        self._trouble: str | None = None
        self._closing: str | None = None
        atexit.register(self._at_exit)
        if begun.warning is not None:
            self.note(begun.warning)
            warnings.warn(begun.warning, RuntimeWarning, stacklevel=2)

    def add_layer(self, layer: Layer) -> int:
        """Index of a layer, to be used in samples; a layer known by its name keeps the index it has."""
        fresh = 1 + max((index for index, _ in self._layers.values()), default=-1)
        index, known = self._layers.setdefault(layer.name, (fresh, layer))
        if index == fresh and self._mine():
            with self._changed:
                self._append((index, layer))
        if replace(known, group=0, rule=None) != replace(layer, group=0, rule=None):
            raise RunError(
                f"{self.path} already has a layer {layer.name!r} of shape {known.shape} that is not cut into "
                f"vectors as this one of shape {layer.shape} is. Start a new run at another path."
            )
        return index

    def note(self, text: str) -> None:
        """Keep a warning that belongs to the run; the same text is kept once."""
        if self._mine():
            with self._changed:
                self._append(clean(text))

    def put(self, sample: Sample) -> None:
        """Hand over a sample; its arrays must not be changed afterwards.

        Waits for a moment when the queue is full, then drops the sample and counts it.
        """
        if not self._mine():
            return
        with self._changed:
            if self._load >= CAPACITY and not self._full:
                self._changed.wait_for(lambda: self._load < CAPACITY, WAIT)
            self._full = self._load >= CAPACITY
            if self._full:
                self._dropped += 1
                self._trouble = self._trouble or f"{self._file} is written too slowly, and samples are dropped."
            else:
                self._append(sample)
        self._warn()

    def flush(self) -> bool:
        """Wait until everything put so far is committed; False where that failed or takes too long."""
        if not self._mine():
            return False
        with self._changed:
            goal, failures = self._received, self._failures
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stored >= goal or self._failures > failures, LONGEST)
            done = self._stored >= goal
        self._warn()
        return done

    def close(self, status: Literal["finished", "failed", "stopped"] = "finished") -> None:
        """Store what is left, say how the run ended, and end the thread. A second call does nothing."""
        if not self._mine():
            return
        with self._changed:
            self._closing = status
            self._changed.notify_all()
        if self._thread is None:
            self._work()
        else:
            self._thread.join(LONGEST)
            if self._thread.is_alive():
                self._trouble = self._trouble or f"{self._file} could not be closed within {LONGEST:.0f} seconds."
        atexit.unregister(self._at_exit)
        self._warn()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("finished" if kind is None else "failed")

    def _mine(self) -> bool:
        """Whether this process may write: a fork has neither the thread nor, perhaps, a lock that is free."""
        return os.getpid() == self._pid and self._closing is None

    def _at_exit(self) -> None:
        # A program that ended by an exception leaves it in sys.last_value; a session leaves the last of many there.
        failed = getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")
        self.close("failed" if failed else "finished")

    def _warn(self) -> None:
        """Warn in the thread of the caller, where a warning is seen."""
        if self._trouble is not None and not self._warned:
            self._warned = True
            warnings.warn(f"{self._trouble} Training goes on.", RuntimeWarning, stacklevel=3)

    def _append(self, item: Item) -> None:
        self._queue.append(item)
        self._received += 1
        self._load += _load(item)
        if self._thread is None:
            self._start()
        elif len(self._queue) == 1 or self._urgent():
            self._changed.notify_all()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="gyroscope-writer", daemon=True)
        try:
            thread.start()
            self._thread = thread
        except RuntimeError as error:  # too many threads, or Python is ending: `close` stores what there is
            self._trouble = self._trouble or f"{self._file} cannot be written in the background: {error}."

    def _urgent(self) -> bool:
        return self._hurry or self._closing is not None or self._load >= CAPACITY // 2

    # What follows runs in the thread. The link is its local variable: a fork does not copy the thread, so it never
    # touches the connection.

    def _work(self) -> None:
        link = Link(self._file, self._identity, self._session)
        ready: list[Ready] = []
        items: list[Item] = []
        status = "running"
        while status == "running":
            new, status = self._next(failed=bool(items))
            items += new
            ready += self._encoded(new)
            try:
                link.store(ready, status, self._dropped)
            except Exception as error:
                link.drop()
                self._failed(error)
                if isinstance(error, (sqlite3.OperationalError, OSError)):
                    continue  # the disk or a lock, which may pass; whatever else it is would come back every time
                self._drop(items)
            self._done(items)
            ready, items = [], []
        link.finish()

    def _next(self, failed: bool) -> tuple[list[Item], str]:
        """Wait for something to do; what is new in the queue, and the run's status."""
        with self._changed:
            if failed:
                self._changed.wait_for(lambda: self._hurry or self._closing is not None, RETRY)
            else:
                self._changed.wait_for(lambda: self._queue or self._urgent(), HEARTBEAT)
                if self._queue:
                    self._changed.wait_for(self._urgent, BATCH)
            self._hurry = False
            items = list(self._queue)
            self._queue.clear()
            return items, self._closing or "running"

    def _encoded(self, items: list[Item]) -> Iterator[Ready]:
        for item in items:
            if not isinstance(item, Sample):
                yield item
                continue
            try:
                yield encode(item, self._layout)
            except Exception as error:
                self._drop([item])
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        with self._changed:
            self._failures += 1
            if self._trouble is None:
                disk = isinstance(error, (sqlite3.Error, OSError))
                self._trouble = explain(error, self._file) if disk else f"{self._file} cannot take a sample: {error}."
                self._append(clean(self._trouble))  # a note, if ever it can be written
            self._changed.notify_all()

    def _drop(self, items: list[Item]) -> None:
        with self._changed:
            self._dropped += sum(isinstance(item, Sample) for item in items)

    def _done(self, items: list[Item]) -> None:
        with self._changed:
            self._stored += len(items)
            self._load -= sum(map(_load, items))
            self._changed.notify_all()


def _load(item: Item) -> int:
    return max(1, len(item.layers)) if isinstance(item, Sample) else 0
