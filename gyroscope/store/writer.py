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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from weakref import WeakValueDictionary

from gyroscope._json import clean_text
from gyroscope._worker import Worker
from gyroscope.store.codec import BlobLayout, encode
from gyroscope.store.database import explain, file_of, name_of
from gyroscope.store.schema import LayerInfo, Quantity, RunError, Sample, ScalarRows
from gyroscope.store.session import HEARTBEAT, open_for_writing
from gyroscope.store.transaction import End, NewLayer, Note, Storable, TakenOverError, WriterConnection

# `ended`: the process ended before anybody said how the run did.
Status = Literal["finished", "failed", "stopped", "ended"]
Queued = Sample | ScalarRows | NewLayer | Note | End

# Bytes of samples in the queue. A layer has about ten kilobytes in each, and more where all its vectors are kept.
CAPACITY = 80 * 2**20
# Seconds that samples gather before they are stored in one transaction.
BATCH = 0.5
# Seconds that training waits for room in a full queue before a sample is dropped.
WAIT = 0.02
# Seconds between attempts after a failure.
RETRY = 1.0
# Seconds that `flush` and `close` wait at most.
LONGEST = 30.0

# The writers of this process by their file. A run has one writer: a second one of the same process takes over.
_WRITERS: "WeakValueDictionary[Path, Writer]" = WeakValueDictionary()


class Writer:
    """Writes one run. `put`, `flush` and `close` never raise for a failure of their own: it becomes one warning.

    A directory that holds a run is refused unless `resume`, which continues it: a step that is measured again replaces
    what was stored for it before, steps that are not measured again stay. After a failure (disk full, database locked,
    directory gone) the writer tries again, and stores what its queue holds once it can; `close` waits for a locked
    database for up to 30 seconds. Samples for which the queue has no room are counted, and the run's notes say how
    many. A process forked from the writing one writes nothing.

    A run has one writer. A writer that resumes the run of another one of this process ends that one first, by its
    `on_successor`, which is `close` unless it is set. A run that another process writes is refused. A writer that was
    silent for so long that another process has resumed its run stores nothing more.
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
        self._layout = BlobLayout(quantities)
        self.on_successor: Callable[[], object] = self.close
        before = _WRITERS.get(self._file.resolve())
        if resume and before is not None:
            before.on_successor()
        opened = open_for_writing(self._file, self._layout.quantities, config, resume)
        self._layers = opened.layers
        # Used in the worker's thread only. A forked process has no such thread, so it never uses the connection.
        self._connection = WriterConnection(self._file, opened.session)
        self.worker: Worker[Queued] = Worker(
            self._store,
            name="gyroscope-writer",
            max_bytes=CAPACITY,
            gather=BATCH,
            idle=HEARTBEAT,
            failed=self._retry_after,
            finish=self._connection.finish,
        )
        self._counting = threading.Lock()
        # Samples that were taken and are neither stored nor dropped.
        self._unsaved = 0
        self._dropped = 0
        self._full = False
        self._closing = False
        self._failure: str | None = None
        self._failure_stored = False
        self._warned = False
        _WRITERS[self._file.resolve()] = self
        # A program that never closes its writer must not lose the last half second.
        atexit.register(self._at_exit)
        if opened.warning is not None:
            self.note(opened.warning)
            warnings.warn(opened.warning, RuntimeWarning, stacklevel=2)

    def add_layer(self, layer: LayerInfo) -> int:
        """Index of a layer, to be used in samples; a layer known by its name keeps the index it has."""
        layer = replace(layer, name=clean_text(layer.name), rule=layer.rule and clean_text(layer.rule))
        fresh = 1 + max((index for index, _ in self._layers.values()), default=-1)
        index, known = self._layers.setdefault(layer.name, (fresh, layer))
        if index == fresh:
            self.worker.put(NewLayer(index, layer), always=True)
        if replace(known, group=0, rule=None) != replace(layer, group=0, rule=None):
            raise RunError(
                f"{self.path} already has a layer {layer.name!r} of shape {known.shape} that is not cut into "
                f"vectors as this one of shape {layer.shape} is. Start a new run at another path."
            )
        return index

    def note(self, text: str) -> None:
        """Keep a warning that belongs to the run; the same text is kept once."""
        self.worker.put(Note(clean_text(text)), always=True)

    def put(self, sample: Sample) -> None:
        """Hand over a sample; its arrays must not be changed afterwards.

        Waits for a moment when the queue is full, then drops the sample and counts it.
        """
        if not self.worker.usable:
            return
        self._count(unsaved=1)
        # A larger sample is stored too, when no other waits.
        size = min(_size(sample), CAPACITY)
        # Of several refusals in a row only the first waits: a database that is locked must not slow training down.
        self._full = not self.worker.put(sample, size=size, timeout=0.0 if self._full else WAIT)
        if self._full:
            self._count(unsaved=-1, dropped=1)
            if self._failure is None:
                self._failure = f"{self._file} is written too slowly, and samples are dropped."
                # Not as a note: the count of dropped samples is shown as one.
                self._failure_stored = True
        if self._failure is not None:
            self._warn()

    def put_scalars(self, rows: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Hand over logged numbers by name, each with its step; one of the same step and name replaces the earlier."""
        cleaned = [
            (step, {clean_text(name): float(value) for name, value in numbers.items()}) for step, numbers in rows
        ]
        # Whatever waits: a number takes a few bytes, a sample of many layers a megabyte.
        self.worker.put(ScalarRows(cleaned), always=True)
        self._warn()

    def flush(self) -> bool:
        """Wait until everything put so far is committed; False where that failed or takes too long."""
        done = self.worker.flush(LONGEST)
        self._warn()
        return done

    def close(self, status: Status = "finished") -> None:
        """Store what is left, say how the run ended, and end the thread. A second call does nothing."""
        if not self.worker.usable:
            return
        self._closing = True
        # An item like others: it is tried again like them, and is committed after all samples.
        self.worker.put(End(status), always=True)
        done = self.worker.close(LONGEST)
        atexit.unregister(self._at_exit)
        if self._unsaved:
            reason = self._failure or f"{self._file} could not be written within {LONGEST:.0f} seconds."
            self._failure = f"{reason} {self._unsaved} samples are lost."
        elif not done:
            self._failure = self._failure or f"{self._file} could not be closed within {LONGEST:.0f} seconds."
        self._warn()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        succeeded = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        self.close("finished" if succeeded else "failed")

    def _at_exit(self) -> None:
        # A program that ended by an exception leaves it in sys.last_value; an interactive session leaves the last of
        # many there. Python keeps nothing of a SystemExit: the code of sys.exit() is known to `__exit__` only.
        failed = getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")
        self.close("failed" if failed else "finished")

    def _warn(self) -> None:
        """Warn in the thread of the caller, where a warning is seen."""
        if self._failure is not None and not self._warned:
            self._warned = True
            warnings.warn(f"{self._failure} Training goes on.", RuntimeWarning, stacklevel=3)

    # What follows runs in the worker's thread.

    def _store(self, items: list[Queued]) -> None:
        """Commit items and a heartbeat; raises where the disk or a lock is the reason that it failed."""
        samples = sum(isinstance(item, Sample) for item in items)
        try:
            self._commit([self._encoded(item) for item in items])
        except (sqlite3.OperationalError, OSError, TakenOverError):
            raise
        except Exception:  # an item that the database or the layout cannot take; the others are stored without it
            for item in items:
                self._store_alone(item)
        self._count(unsaved=-samples)

    def _store_alone(self, item: Queued) -> None:
        try:
            self._commit([self._encoded(item)])
        except (sqlite3.OperationalError, OSError, TakenOverError):
            raise
        except Exception as error:
            self._count(dropped=isinstance(item, Sample))
            self._fail(f"{self._file} cannot take a sample: {error}.")

    def _encoded(self, item: Queued) -> Storable:
        return encode(item, self._layout) if isinstance(item, Sample) else item

    def _commit(self, items: list[Storable]) -> None:
        failure = None if self._failure_stored else self._failure
        notes = [] if failure is None else [Note(clean_text(failure))]
        try:
            self._connection.store([*notes, *items], self._dropped)
        except BaseException:
            self._connection.disconnect()
            raise
        self._failure_stored = self._failure_stored or failure is not None

    def _retry_after(self, error: BaseException) -> float | None:
        """Seconds until the next attempt; None gives the items up."""
        locked = name_of(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
        if isinstance(error, TakenOverError):
            self._fail(str(error))
            return None
        # Too many threads, or Python is ending.
        if not isinstance(error, (sqlite3.OperationalError, OSError)):
            if not self._closing:
                self._fail(f"{self._file} cannot be written in the background: {error}.")
            return None
        self._fail(explain(error, self._file))
        # A lock passes within seconds. A disk that is full or gone would only hold up the end of the program.
        return RETRY if locked or not self._closing else None

    def _fail(self, sentence: str) -> None:
        self._failure = self._failure or sentence

    def _count(self, unsaved: int = 0, dropped: int = 0) -> None:
        with self._counting:
            self._unsaved += unsaved
            self._dropped += dropped


def _size(sample: Sample) -> int:
    return sum(
        array.nbytes
        for layer in sample.layers.values()
        for array in (layer.statistics, layer.scalars, layer.histograms, layer.extremes, layer.raw)
        if array is not None
    )
