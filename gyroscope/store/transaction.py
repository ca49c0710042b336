"""One transaction of the writer: samples, layers and notes that gathered, and a heartbeat."""

import os
import sqlite3
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gyroscope.store.begin import write_layer
from gyroscope.store.codec import Encoded
from gyroscope.store.database import PATIENCE, connect
from gyroscope.store.schema import LAYER_BITS, Layer, Sample

Note = str
Item = Sample | tuple[int, Layer] | Note
Ready = Encoded | tuple[int, Layer] | Note
Identity = tuple[int, int]


def identity(file: Path) -> Identity:
    """Device and inode: SQLite goes on writing into a file that was deleted, and nobody would ever read it."""
    try:
        status = os.stat(file)
    except FileNotFoundError:
        raise FileNotFoundError("its directory was moved or deleted") from None
    return status.st_dev, status.st_ino


class Link:
    """The thread's connection: made when it is needed, and anew after a failure."""

    def __init__(self, file: Path, same: Identity, session: int) -> None:
        self._file, self._same, self._session = file, same, session
        self._connection: sqlite3.Connection | None = None

    def store(self, ready: Iterable[Ready], status: str, dropped: int) -> None:
        """Commit everything that is ready, or nothing."""
        if identity(self._file) != self._same:
            raise FileNotFoundError("another file took its place")
        if self._connection is None:
            self._connection = connect(self._file, "rw", PATIENCE)
            (mode,) = self._connection.execute("PRAGMA journal_mode").fetchone()
            self._connection.execute(f"PRAGMA synchronous = {'NORMAL' if mode == 'wal' else 'FULL'}")
        now = time.time()
        with self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            for item in ready:
                _write(connection, item, now)
            connection.execute(
                "UPDATE session SET heartbeat = ?, status = ?, dropped = ? WHERE id = ?",
                (now, status, dropped, self._session),
            )

    def drop(self) -> None:
        """Forget a connection that failed."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None

    def finish(self) -> None:
        """Move the log into the file and, unless a reader is connected, leave one plain file with nothing beside it."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA busy_timeout = 200")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                self._connection.execute("PRAGMA journal_mode = DELETE").fetchone()
        self.drop()


def _write(connection: sqlite3.Connection, item: Ready, now: float) -> None:
    if isinstance(item, Encoded):
        _write_sample(connection, item)
    elif isinstance(item, str):
        connection.execute("INSERT OR IGNORE INTO note (time, text) VALUES (?, ?)", (now, item))
    else:
        write_layer(connection, *item)


def _write_sample(connection: sqlite3.Connection, sample: Encoded) -> None:
    old = connection.execute("SELECT id FROM sample WHERE step = ?", (sample.step,)).fetchone()
    if old is not None:
        _delete_sample(connection, *old)
    cursor = connection.execute("INSERT INTO sample (step, time) VALUES (?, ?)", (sample.step, sample.time))
    first = int(cursor.lastrowid or 0) << LAYER_BITS
    connection.executemany("INSERT INTO measurement VALUES (?, ?)", [(first | row[0], row[1]) for row in sample.rows])
    connection.executemany(
        "INSERT INTO distribution VALUES (?, ?, ?)", [(first | row[0], row[2], row[3]) for row in sample.rows]
    )
    raw = [(first | row[0], row[4]) for row in sample.rows if row[4] is not None]
    connection.executemany("INSERT INTO vectors VALUES (?, ?)", raw)


def _delete_sample(connection: sqlite3.Connection, number: int) -> None:
    keys = number << LAYER_BITS, (number + 1) << LAYER_BITS
    for table in ("measurement", "distribution", "vectors"):
        connection.execute(f"DELETE FROM {table} WHERE key >= ? AND key < ?", keys)
    connection.execute("DELETE FROM sample WHERE id = ?", (number,))
