"""One transaction of the writer: queued samples, layers, scalars and notes, and a heartbeat."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from gyroscope.store.database import connect
from gyroscope.store.rows import BlobLayout, insert, insert_blobs, layer_bits, layer_columns, next_id, raw_key, row_key
from gyroscope.store.schema import LayerInfo, Sample
from gyroscope.store.session import Session

# Smallest number of values in a row of the table `scalar` before a new row begins.
FULL_ROW = 256


class TakenOverError(Exception):
    """Another writer has resumed the run."""


def file_identity(file: Path) -> tuple[int, int]:
    """Return device and inode. SQLite keeps writing into a deleted file, where no reader finds it."""
    try:
        status = os.stat(file)
    except FileNotFoundError:
        raise FileNotFoundError("its directory was moved or deleted") from None
    return status.st_dev, status.st_ino


@final
class WriterConnection:
    """The writer's connection, opened for the first transaction and again after a failure.

    The methods `write_…` are called within a transaction, as the `write` of an `Item`.
    """

    def __init__(self, file: Path, session: Session, layout: BlobLayout) -> None:
        self._file = file
        self._identity = file_identity(file)
        self._session = session
        self._layout = layout
        self._connection: sqlite3.Connection | None = None
        # By name, the last row of the table `scalar`, until it is full: id, steps and values.
        self._open_scalars: dict[str, tuple[int, bytes, bytes]] = {}

    def store(self, items: Iterable["Item"], dropped: int) -> None:
        """Commit all items and a heartbeat, or nothing."""
        if file_identity(self._file) != self._identity:
            raise FileNotFoundError("another file took its place")
        if self._connection is None:
            self._connection = connect(self._file, "rw")
            (mode,) = self._connection.execute("PRAGMA journal_mode").fetchone()
            # A write-ahead log survives the death of the process without a sync at each commit. A rollback journal
            # needs a sync to survive a power failure.
            self._connection.execute(f"PRAGMA synchronous = {'NORMAL' if mode == 'wal' else 'FULL'}")
        before = (replace(self._session), dict(self._open_scalars))
        try:
            with self._connection as connection:
                # IMMEDIATE takes the write lock at once, so a locked database fails here and not later.
                connection.execute("BEGIN IMMEDIATE")
                (newest,) = connection.execute("SELECT max(id) FROM session").fetchone()
                if newest != self._session.id:
                    raise TakenOverError(f"{self._file} is continued by another writer. This one stores nothing more.")
                for item in items:
                    item.write(self, connection, item.value)
                self._session.heartbeat = time.time()
                self._session.dropped = dropped
                self._session.write(connection)
        except BaseException:
            self._session, self._open_scalars = before
            self.disconnect()
            raise

    def disconnect(self) -> None:
        """Close a connection that failed, which undoes its transaction."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None

    def finish(self) -> None:
        """Move the log into the file. Unless a reader is connected, this leaves one plain file."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                # A reader may stay for hours.
                self._connection.execute("PRAGMA busy_timeout = 200")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                self._connection.execute("PRAGMA journal_mode = DELETE").fetchone()
        self.disconnect()

    def write_layer(self, connection: sqlite3.Connection, layer: tuple[int, LayerInfo]) -> None:
        """Store a layer under an id. It may come again after a failure."""
        index, info = layer
        insert(connection, "layer", (index, *layer_columns(info)), otherwise="OR REPLACE")

    def write_note(self, connection: sqlite3.Connection, text: str) -> None:
        """Store a warning that belongs to the run. The same text is stored once."""
        (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM note").fetchone()
        insert(connection, "note", (last + 1, time.time(), text), otherwise="OR IGNORE")

    def write_scalars(self, connection: sqlite3.Connection, rows: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Store logged numbers by name, each with its step."""
        for name in dict.fromkeys(name for _, numbers in rows for name in numbers):
            logged = [(step, numbers[name]) for step, numbers in rows if name in numbers]
            id, steps, values = self._open_scalars.get(name, (next_id(connection, "scalar"), b"", b""))
            steps += np.array([step for step, _ in logged], "<i8").tobytes()
            values += np.array([value for _, value in logged], "<f8").tobytes()
            insert(connection, "scalar", (id, name, steps, values), otherwise="OR REPLACE")
            self._session.scalars += len(logged)
            # A row per value would take seconds to read, and a single row would be rewritten each time.
            self._open_scalars[name] = (id, steps, values)
            if len(steps) >= 8 * FULL_ROW:
                del self._open_scalars[name]

    def write_end(self, connection: sqlite3.Connection, end: tuple[str, int | None]) -> None:
        """Set the final status of the run, and the number of its last step if that is known."""
        self._session.status, last_step = end
        if last_step is not None:
            # SQLite would store NumPy's integers as blobs.
            self._session.last_step = int(last_step)

    def write_sample(self, connection: sqlite3.Connection, sample: Sample) -> None:
        """Store a sample instead of an earlier one of its step."""
        for (id,) in connection.execute("SELECT id FROM sample WHERE step = ?", (sample.step,)).fetchall():
            # All layers of a sample have keys in this range.
            keys = (row_key(id, 0), row_key(id + 1, 0))
            for table in ("measurement", "distribution"):
                connection.execute(f"DELETE FROM {table} WHERE key >= ? AND key < ?", keys)
            connection.execute("DELETE FROM vectors WHERE key >= ? AND key < ?", [raw_key(key, 0) for key in keys])
            connection.execute("DELETE FROM sample WHERE id = ?", (id,))
            self._session.samples -= 1
        id = next_id(connection, "sample")
        raw = {int(index): layer.raw for index, layer in sample.layers.items() if layer.raw is not None}
        bits = (layer_bits(map(int, sample.layers)), layer_bits(raw))
        # + 0.0 because SQLite does not keep -0.0.
        insert(connection, "sample", (id, int(sample.step), float(sample.time) + 0.0, *bits))
        self._session.samples += 1
        for index, layer in sample.layers.items():
            key = row_key(id, int(index))
            numbers, histograms, extremes = self._layout.encode(layer)
            insert_blobs(connection, "measurement", key, numbers)
            insert_blobs(connection, "distribution", key, histograms, extremes)
        for index, values in raw.items():
            for place, blob in enumerate(self._layout.encode_raw(values)):
                insert_blobs(connection, "vectors", raw_key(row_key(id, index), place), blob)


class Item(NamedTuple):
    """A value to store, and the method that stores it."""

    write: Callable[[WriterConnection, sqlite3.Connection, Any], None]
    value: Any
