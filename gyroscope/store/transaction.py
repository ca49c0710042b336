"""One transaction of the writer: queued samples, layers, scalars and notes, and a heartbeat."""

import os
import sqlite3
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, final

import numpy as np

from gyroscope.store.codec import EncodedSample, LayerBlobs, blob_checksum, layer_bits, row_key
from gyroscope.store.database import connect
from gyroscope.store.metadata import (
    Session,
    insert,
    next_id,
    with_last_step,
    write_layer,
    write_note,
    write_scalar,
    write_session,
)
from gyroscope.store.schema import LayerInfo, ScalarRows


class NewLayer(NamedTuple):
    """A layer to store under an id."""

    id: int
    layer: LayerInfo


class Note(NamedTuple):
    """A warning that belongs to the run."""

    text: str


class End(NamedTuple):
    """The final status of the run (finished, failed, ended or stopped) and the number of its last step, if known."""

    status: str
    last_step: int | None = None


Storable = EncodedSample | ScalarRows | NewLayer | Note | End


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
    """The writer's connection, opened for the first transaction and again after a failure."""

    def __init__(self, file: Path, session: Session) -> None:
        self._file = file
        self._identity = file_identity(file)
        self._session = session
        self._connection: sqlite3.Connection | None = None
        # In the database, once connected.
        self._samples = 0
        self._scalars = 0
        self._status = "running"

    def store(self, items: Iterable[Storable], dropped: int) -> None:
        """Commit all items and a heartbeat, or nothing."""
        if file_identity(self._file) != self._identity:
            raise FileNotFoundError("another file took its place")
        if self._connection is None:
            self._connection = connect(self._file, "rw")
            (mode,) = self._connection.execute("PRAGMA journal_mode").fetchone()
            # A write-ahead log survives the death of the process without a sync at each commit. A rollback journal
            # needs a sync to survive a power failure.
            self._connection.execute(f"PRAGMA synchronous = {'NORMAL' if mode == 'wal' else 'FULL'}")
            (self._samples,) = self._connection.execute("SELECT count(*) FROM sample").fetchone()
            (self._scalars,) = self._connection.execute("SELECT count(*) FROM scalar").fetchone()
        now = time.time()
        with self._connection as connection:
            # IMMEDIATE takes the lock for writing at once, so a locked database fails here and not half way.
            connection.execute("BEGIN IMMEDIATE")
            (newest,) = connection.execute("SELECT max(id) FROM session").fetchone()
            if newest != self._session.id:
                raise TakenOverError(f"{self._file} is continued by another writer: this one stores nothing more.")
            for item in items:
                self._write(connection, item, now)
            session = replace(self._session, heartbeat=now, status=self._status, dropped=dropped)
            write_session(connection, replace(session, samples=self._samples, scalars=self._scalars))

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

    def _write(self, connection: sqlite3.Connection, item: Storable, now: float) -> None:
        if isinstance(item, EncodedSample):
            self._write_sample(connection, item)
        elif isinstance(item, ScalarRows):
            for step, numbers in item.rows:
                for name, value in numbers.items():
                    self._scalars += write_scalar(connection, step, name, value)
        elif isinstance(item, NewLayer):
            write_layer(connection, item.id, item.layer)
        elif isinstance(item, Note):
            write_note(connection, now, item.text)
        else:
            self._status = item.status
            if item.last_step is not None:
                config = with_last_step(self._session.config, item.last_step)
                self._session = replace(self._session, config=config)

    def _write_sample(self, connection: sqlite3.Connection, sample: EncodedSample) -> None:
        for (id,) in connection.execute("SELECT id FROM sample WHERE step = ?", (sample.step,)).fetchall():
            # All layers of a sample have keys in this range.
            keys = (row_key(id, 0), row_key(id + 1, 0))
            for table in ("measurement", "distribution", "vectors"):
                connection.execute(f"DELETE FROM {table} WHERE key >= ? AND key < ?", keys)
            connection.execute("DELETE FROM sample WHERE id = ?", (id,))
            self._samples -= 1
        id = next_id(connection, "sample")
        measured = layer_bits(blobs.layer for blobs in sample.layers)
        raw = layer_bits(blobs.layer for blobs in sample.layers if blobs.raw is not None)
        insert(connection, "sample", (id, sample.step, sample.time, measured, raw))
        self._samples += 1
        for blobs in sample.layers:
            _write_blobs(connection, row_key(id, blobs.layer), blobs)


def _write_blobs(connection: sqlite3.Connection, key: int, blobs: LayerBlobs) -> None:
    numbers = (key, blobs.numbers, blob_checksum(key, blobs.numbers))
    connection.execute("INSERT INTO measurement VALUES (?, ?, ?)", numbers)
    checksum = blob_checksum(key, blobs.histograms, blobs.extremes)
    distribution = (key, blobs.histograms, blobs.extremes, checksum)
    connection.execute("INSERT INTO distribution VALUES (?, ?, ?, ?)", distribution)
    if blobs.raw is not None:
        checksums = np.array([blob_checksum(key, values) for values in blobs.raw], "<u4").tobytes()
        connection.execute("INSERT INTO vectors VALUES (?, ?, ?)", (key, b"".join(blobs.raw), checksums))
