"""The SQL of readers: the samples of a database and their numbers, also while it is being written."""

import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, final

import numpy as np
import numpy.typing as npt

from gyroscope._types import Array, Float32, Int64
from gyroscope.store.database import file_of, open_reader, run_errors
from gyroscope.store.rows import (
    BlobLayout,
    Layers,
    check_blobs,
    decode_distribution,
    decode_numbers,
    has_layer,
    raw_key,
    read_layers,
    read_quantities,
    read_rows,
    row_key,
)
from gyroscope.store.session import Session

SAMPLE = np.dtype([("id", np.int64), ("step", np.int64), ("time", np.float64)])
Samples = npt.NDArray[np.void]
# Steps and values that were logged under one name, in the order of the steps.
Columns = tuple[Int64, Array]
# Kilobytes of the file that SQLite caches, because it is written by sample and read by layer.
CACHE = 64 * 1024
# Rows that are decoded together when a whole run is read: about ten megabytes.
PART_ROWS = 2**14


@final
class Follower:
    """A reader that continues from a cursor. Every read is a short transaction, and one thread reads at a time."""

    def __init__(self, path: str | os.PathLike[str], limit: int | None) -> None:
        self.file = file_of(path)
        self.connection = open_reader(self.file)
        self.sessions: list[Session]
        self.config: dict[str, Any]
        self.notes: list[str]
        self.layers: Layers
        self.samples: Samples
        self._cache: dict[int, Float32]
        self._cursor: int
        self._scalars: dict[str, Columns] = {}
        self._scalar_rows: dict[int, tuple[str, Int64, Array]] = {}
        self._lock = threading.RLock()
        self._limit = limit
        self._forget()
        try:
            with self.reading() as connection:
                connection.execute(f"PRAGMA cache_size = -{CACHE}")
                self.layout = BlobLayout(read_quantities(connection))
        except BaseException:
            self.connection.close()
            raise

    @property
    def kept(self) -> Samples:
        """The samples that are read: every `stride`-th."""
        with self._lock:
            return self.samples[:: self.stride]

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open one transaction, so that everything read in it is from one moment. Errors become `RunError`."""
        with self._lock, run_errors(self.file):
            try:
                self.connection.execute("BEGIN")
                yield self.connection
            finally:
                with suppress(sqlite3.Error):
                    self.connection.execute("ROLLBACK")

    def refresh(self) -> int:
        """Read new samples and return their number."""
        with self.reading() as connection:
            self._read_state(connection)
            new = _samples(connection, "WHERE id > ? ORDER BY id", self._cursor)
            if len(new):
                # If a step is not above the one before, the run was resumed.
                if np.all(np.diff(np.concatenate([self.samples[-1:], new])["step"]) > 0):
                    self.samples = np.concatenate([self.samples, new])
                else:
                    self._forget()
                    self.samples = _samples(connection, "ORDER BY step")
                self._cursor = int(new["id"][-1])
            # A damaged page of the table can lose rows without an error.
            written = self.sessions[-1].samples
            if written != len(self.samples):
                raise ValueError(f"{written} samples were written and {len(self.samples)} are left")
            while self._limit is not None and len(self.kept) > self._limit:
                self.stride *= 2
                self._cache = {layer: known[::2].copy() for layer, known in self._cache.items()}
            return len(new)

    def _read_state(self, connection: sqlite3.Connection) -> None:
        self.sessions = [Session(*row) for row in read_rows(connection, "session")]
        config = json.loads(self.sessions[-1].config) if self.sessions else None
        if not isinstance(config, dict):
            raise ValueError("it has no session with a configuration")
        self.config = config
        self.notes = [text for _, _, text in read_rows(connection, "note")]
        self.layers = read_layers(connection)
        self._scalars_read = False

    def numbers(self, layer: int) -> Float32:
        """Return (kept samples, numbers) of a layer, decoded once."""
        with self._lock:
            known: Float32 = self._cache.get(layer, np.empty((0, self.layout.width), np.float32))
            ids = self.kept["id"][len(known) :].tolist()
            if ids:
                with self.reading() as connection:
                    rows = _blobs(connection, "measurement", {id: row_key(id, layer) for id in ids}, layer)
                block = decode_numbers([None if row is None else row[0] for row in rows], self.layout.width)
                known = np.concatenate([known, block])
                self._cache[layer] = known
            return known

    def numbers_of(self, ids: Int64, layers: int) -> Float32:
        """Return (samples, layers, numbers) of all layers in samples with growing ids, in one read."""
        blobs: dict[int, bytes | None] = {row_key(id, layer): None for id in ids.tolist() for layer in range(layers)}
        if len(ids):
            ends = (row_key(int(ids[0]), 0), row_key(int(ids[-1]) + 1, 0))
            with self.reading() as connection:
                query = "SELECT * FROM measurement WHERE key >= ? AND key < ?"
                for key, numbers, checksum in connection.execute(query, ends):
                    # If the run was resumed, samples of another session may be between them.
                    if key in blobs:
                        check_blobs(key, (numbers,), checksum)
                        blobs[key] = numbers
                for layer in range(layers):
                    _check_absent(connection, [id for id in ids.tolist() if blobs[row_key(id, layer)] is None], layer)
        return decode_numbers(list(blobs.values()), self.layout.width).reshape(len(ids), layers, -1)

    def parts(self, samples: Samples, layers: int) -> Iterator[tuple[Samples, Float32]]:
        """Yield samples in the order of their steps, a few at a time, and their (samples, layers, numbers)."""
        size = max(1, PART_ROWS // max(1, layers))
        # Ids grow only between the times at which the run was resumed.
        for session in np.split(samples, np.flatnonzero(np.diff(samples["id"]) < 0) + 1):
            for start in range(0, len(session), size):
                part = session[start : start + size]
                yield part, self.numbers_of(part["id"], layers)

    def distribution(self, layer: int, place: int, step: int | None) -> tuple[Int64, Int64] | None:
        """Return histogram and extremes of a quantity at a step, or the last ones. None if there are none.

        The last sample of a run may have norms and no rotation.
        """
        chosen = self.samples[::-1] if step is None else self.samples[self.samples["step"] == step]
        with self.reading() as connection:
            for id in chosen["id"].tolist():
                (row,) = _blobs(connection, "distribution", {id: row_key(id, layer)}, layer)
                if row is None:
                    continue
                histograms, extremes = decode_distribution(*row)
                if step is not None or histograms[place].any():
                    return histograms[place], extremes[place]
        return None

    def vectors(self, layer: int, place: int, count: int) -> Float32 | None:
        """Return (kept samples, vectors) of one quantity. None if no vectors of the layer were kept."""
        keys = {id: raw_key(row_key(id, layer), place) for id in self.kept["id"].tolist()}
        with self.reading() as connection:
            rows = _blobs(connection, "vectors", keys, layer, "raw_layers")
        return decode_numbers([None if row is None else row[0] for row in rows], count) if any(rows) else None

    def scalars(self) -> dict[str, Columns]:
        """Return logged values by name. They are read on the first call after a refresh."""
        with self._lock:
            if not self._scalars_read:
                with self.reading() as connection:
                    self._read_scalars(connection)
            return self._scalars

    def _read_scalars(self, connection: sqlite3.Connection) -> None:
        # The last row of each name may have grown since it was read.
        last = {name: id for id, (name, _, _) in self._scalar_rows.items()}
        which = "WHERE id > ? OR id IN (SELECT value FROM json_each(?)) ORDER BY id"
        known = (max(last.values(), default=0), json.dumps(list(last.values())))
        new = read_rows(connection, "scalar", which, *known)
        for id, name, steps, values in new:
            self._scalar_rows[id] = (name, np.frombuffer(steps, "<i8"), np.frombuffer(values, "<f8"))
        # Counted in the same transaction, because the writer may have written since the refresh.
        written = read_rows(connection, "session")[-1][-1]
        left = sum(len(steps) for _, steps, _ in self._scalar_rows.values())
        if written != left:
            raise ValueError(f"{written} scalars were written and {left} are left")
        for changed in dict.fromkeys(name for _, name, _, _ in new):
            rows = [row[1:] for row in self._scalar_rows.values() if row[0] == changed]
            steps, values = (np.concatenate(columns) for columns in zip(*rows, strict=True))
            if not np.all(np.diff(steps) > 0):
                # If a value was logged again, or the run was resumed, the last value of each step counts.
                steps, backwards = np.unique(steps[::-1], return_index=True)
                values = values[::-1][backwards]
            self._scalars[changed] = (steps, values)
        self._scalars_read = True

    def _forget(self) -> None:
        self.samples = np.empty(0, SAMPLE)
        self.stride = 1
        self._cursor = 0
        self._cache = {}


def _samples(connection: sqlite3.Connection, which: str, *arguments: int) -> Samples:
    rows = read_rows(connection, "sample", which, *arguments)
    return np.array([tuple(row[:3]) for row in rows], SAMPLE)


def _blobs(
    connection: sqlite3.Connection, table: str, keys: dict[int, int], layer: int, column: str = "layers"
) -> list[tuple[bytes, ...] | None]:
    """Return the blobs under keys, given by sample, in their order. None if the layer was not measured."""
    # The keys are one JSON array because SQLite limits the number of parameters.
    query = f"SELECT stored.* FROM json_each(?) AS wanted LEFT JOIN {table} AS stored ON stored.key = wanted.value"
    blobs: list[tuple[bytes, ...] | None] = []
    for key, *values, checksum in connection.execute(
        f"{query} ORDER BY wanted.key", (json.dumps(list(keys.values())),)
    ):
        if key is not None:
            check_blobs(key, values, checksum)
        blobs.append(None if key is None else tuple(values))
    absent = [id for id, row in zip(keys, blobs, strict=True) if row is None]
    _check_absent(connection, absent, layer, column)
    return blobs


def _check_absent(connection: sqlite3.Connection, ids: list[int], layer: int, column: str = "layers") -> None:
    """Raise if one of these samples had a row of the layer when it was written."""
    query = f"SELECT step, {column} FROM sample WHERE id IN (SELECT value FROM json_each(?))"
    for step, bits in connection.execute(query, (json.dumps(ids),)) if ids else ():
        if has_layer(bits, layer):
            raise ValueError(f"the numbers of step {step} are missing")
