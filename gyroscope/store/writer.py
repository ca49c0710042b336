"""The writer: training puts samples into a short queue, and a thread stores them.

The database is in SQLite's WAL mode with synchronous=NORMAL: a commit gives its pages to the operating system and does
not wait for the disk. Commits survive the death of the process, also by `kill -9`. A crash of the whole machine may
lose the last commits (some megabytes), but never damages the rest. `flush` returns when all items are committed.
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
from gyroscope.store.database import explain, file_of, name_of
from gyroscope.store.rows import BlobLayout, check_group
from gyroscope.store.schema import LayerInfo, Quantity, RunError, Sample
from gyroscope.store.session import HEARTBEAT, open_for_writing
from gyroscope.store.transaction import Item, TakenOverError, WriterConnection

Status = Literal["finished", "failed", "stopped"]

# Bytes of samples in the queue. A layer has about ten kilobytes in each, and more if all its vectors are kept.
CAPACITY = 80 * 2**20
# Seconds for which samples are collected before they are stored in one transaction.
BATCH = 0.5
# Seconds that training waits for room in a full queue before a sample is dropped.
WAIT = 0.02
# Seconds between attempts after a failure.
RETRY = 1.0
# Seconds that `flush` and `close` wait at most.
MAX_WAIT_SECONDS = 30.0

# The writers of this process by file. A second writer of the same process replaces the first.
_WRITERS: "WeakValueDictionary[Path, Writer]" = WeakValueDictionary()


def status_after(error: BaseException | None) -> Status:
    """Return the status of a run whose block an exception ended, if any. An exit with code 0 is a regular end."""
    succeeded = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
    return "finished" if succeeded else "failed"


def status_at_exit() -> Status:
    """Return the status of a run that its program never closed."""
    # A program that ended by an exception leaves it in sys.last_value. So does an interactive session at any error.
    # Python does not keep a SystemExit, so only a `with` block sees the code of sys.exit().
    return "failed" if getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1") else "finished"


class Writer:
    """The writer of one run. A failure in `put`, `flush` or `close` never raises, and becomes one warning.

    A directory with a run is refused unless `resume`, which continues it. A step that is measured again replaces its
    earlier sample. After a failure (disk full, database locked, directory gone) the writer tries again, and then stores
    its queue. `close` waits up to 30 seconds for a locked database. Samples that did not fit into the queue are
    counted, and the run's notes report their number. A process forked from the writing one writes nothing.

    A run has one writer. If another writer of this process resumes the run, it first ends this one by calling
    `on_successor`, by default `close`. A run that another process writes is refused. If another process has resumed the
    run of a writer that was silent for long, that writer stores nothing more.
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
        self.on_successor: Callable[[], object] = self.close
        before = _WRITERS.get(self._file.resolve())
        if resume and before is not None:
            before.on_successor()
        opened = open_for_writing(self._file, quantities, config, resume)
        self._layers = opened.layers
        # Only the worker's thread uses it. A forked process has no such thread, so it never uses the connection.
        self._connection = WriterConnection(self._file, opened.session, BlobLayout(quantities))
        self.worker: Worker[Item] = Worker(
            self._store,
            name="gyroscope-writer",
            max_bytes=CAPACITY,
            gather=BATCH,
            idle=HEARTBEAT,
            failed=self._retry_after,
            finish=self._connection.finish,
        )
        self._counting = threading.Lock()
        # Samples that are neither stored nor dropped yet.
        self._unsaved = 0
        self._dropped = 0
        self._full = False
        self._closing = False
        self._failure: str | None = None
        self._failure_stored = False
        self._warned = False
        _WRITERS[self._file.resolve()] = self
        # A program that never closes its writer must not lose the samples of the last half second.
        atexit.register(self._at_exit)
        if opened.warning is not None:
            self.note(opened.warning)
            warnings.warn(opened.warning, RuntimeWarning, stacklevel=2)

    def add_layer(self, layer: LayerInfo) -> int:
        """Return the index of a layer in samples. A layer of a known name keeps its index."""
        try:
            check_group(layer)
        except ValueError as error:
            raise RunError(f"{self.path} cannot have this layer: {error}. Make fewer groups.") from None
        layer = replace(layer, name=clean_text(layer.name), rule=layer.rule and clean_text(layer.rule))
        fresh = 1 + max((index for index, _ in self._layers.values()), default=-1)
        index, known = self._layers.setdefault(layer.name, (fresh, layer))
        if index == fresh:
            self.worker.put(Item(WriterConnection.write_layer, (index, layer)), always=True)
        if replace(known, group=0, rule=None) != replace(layer, group=0, rule=None):
            raise RunError(
                f"{self.path} already has a layer {layer.name!r} of shape {known.shape}, which splits into other "
                f"vectors than this one of shape {layer.shape}. Start a new run at another path."
            )
        return index

    def note(self, text: str) -> None:
        """Store a warning that belongs to the run. The same text is stored once."""
        self.worker.put(Item(WriterConnection.write_note, clean_text(text)), always=True)

    def put(self, sample: Sample) -> None:
        """Queue a sample. Its arrays must not change afterwards.

        If the queue is full, this waits briefly, then drops the sample and counts it.
        """
        if not self.worker.usable:
            return
        self._count(unsaved=1)
        # A larger sample is stored if the queue is empty.
        arrays = [array for layer in sample.layers.values() for array in vars(layer).values() if array is not None]
        size = min(sum(array.nbytes for array in arrays), CAPACITY)
        # Only the first of several refusals waits, so a locked database does not slow training down.
        item = Item(WriterConnection.write_sample, sample)
        self._full = not self.worker.put(item, size=size, timeout=0.0 if self._full else WAIT)
        if self._full:
            self._count(unsaved=-1, dropped=1)
            if self._failure is None:
                self._failure = f"{self._file} is written too slowly, so samples are dropped."
                # Not stored as a note, because the count of dropped samples is one.
                self._failure_stored = True
        if self._failure is not None:
            self._warn()

    def put_scalars(self, rows: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Queue logged numbers by name, each with its step. A later one of the same step and name replaces it."""
        cleaned = [
            (step, {clean_text(name): float(value) for name, value in numbers.items()}) for step, numbers in rows
        ]
        # Always accepted, because a number has a few bytes and a sample a megabyte.
        self.worker.put(Item(WriterConnection.write_scalars, cleaned), always=True)
        self._warn()

    def flush(self) -> bool:
        """Wait until all queued items are committed. Return False if that failed or takes too long."""
        done = self.worker.flush(MAX_WAIT_SECONDS)
        self._warn()
        return done

    def close(self, status: Status = "finished", last_step: int | None = None) -> None:
        """Store the queue, the status of the run and its last step, and end the thread. A second call does nothing."""
        if not self.worker.usable:
            return
        self._closing = True
        # An item like others, so it is tried again like them, and committed after all samples.
        self.worker.put(Item(WriterConnection.write_end, (status, last_step)), always=True)
        done = self.worker.close(MAX_WAIT_SECONDS)
        atexit.unregister(self._at_exit)
        if self._unsaved:
            reason = self._failure or f"{self._file} could not be written within {MAX_WAIT_SECONDS:.0f} seconds."
            lost = self._unsaved + self._dropped
            self._failure = f"{reason} {'1 sample is' if lost == 1 else f'{lost} samples are'} lost."
            # The run cannot tell their number, so it is said even if the failure was.
            self._warned = False
        elif not done:
            self._failure = self._failure or f"{self._file} could not be closed within {MAX_WAIT_SECONDS:.0f} seconds."
        self._warn()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(status_after(error))

    def _at_exit(self) -> None:
        self.close(status_at_exit())

    def _warn(self) -> None:
        """Warn in the thread of the caller, where the warning is visible."""
        if self._failure is not None and not self._warned:
            self._warned = True
            warnings.warn(f"{self._failure} Training goes on.", RuntimeWarning, stacklevel=3)

    # The following methods run in the worker's thread.

    def _store(self, items: list[Item]) -> None:
        """Commit items and a heartbeat. Raise if the disk or a lock prevents it."""
        samples = sum(isinstance(item.value, Sample) for item in items)
        try:
            self._commit(items)
        except (sqlite3.OperationalError, OSError, TakenOverError):
            raise
        except (
            Exception
        ) as error:  # the database or the layout cannot take an item, so the others are stored without it
            if len(items) > 1:
                for item in items:
                    self._store([item])
                return
            self._count(dropped=samples)
            self._fail(f"{self._file} cannot take a {'sample' if samples else 'row'}: {error}.")
        self._count(unsaved=-samples)

    def _commit(self, items: list[Item]) -> None:
        failure = None if self._failure_stored else self._failure
        notes = [] if failure is None else [Item(WriterConnection.write_note, clean_text(failure))]
        self._connection.store([*notes, *items], self._dropped)
        self._failure_stored = self._failure_stored or failure is not None

    def _retry_after(self, error: BaseException) -> float | None:
        """Return the seconds until the next attempt, or None to give the items up."""
        locked = name_of(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
        if isinstance(error, TakenOverError):
            self._fail(str(error))
            return None
        # There are too many threads, or Python is ending.
        if not isinstance(error, (sqlite3.OperationalError, OSError)):
            if not self._closing:
                self._fail(f"{self._file} cannot be written in the background: {error}.")
            return None
        self._fail(explain(error, self._file))
        # A lock is released within seconds. A full disk would only delay the end of the program.
        return RETRY if locked or not self._closing else None

    def _fail(self, sentence: str) -> None:
        self._failure = self._failure or sentence

    def _count(self, unsaved: int = 0, dropped: int = 0) -> None:
        with self._counting:
            self._unsaved += unsaved
            self._dropped += dropped
