"""Following a database that may be written at this moment: which samples there are, and the numbers of a layer."""

import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gyroscope.store.begin import read_layers, read_quantities
from gyroscope.store.codec import Float32, Int64, Layout, decode_extremes, decode_histograms, decode_numbers
from gyroscope.store.database import open_reader, sentences
from gyroscope.store.schema import LAYER_BITS, Layer

SAMPLE = np.dtype([("id", np.int64), ("step", np.int64), ("time", np.float64)])
CACHE = 64 * 1024
"""Kilobytes of the file that SQLite keeps in memory: it is written sample by sample, and read layer by layer."""


@dataclass(frozen=True)
class About:
    """What a run says about itself."""

    started: float
    heartbeat: float
    status: str
    dropped: int
    config: dict[str, Any]
    notes: tuple[str, ...]
    layers: dict[str, tuple[int, Layer]]


class Follower:
    """Reads on from a cursor; every reading is a short transaction of its own, and one thread reads at a time."""

    def __init__(self, path: str | os.PathLike[str], most: int | None) -> None:
        self.file, self.connection = open_reader(path)
        self._lock = threading.RLock()
        self._most = most
        self.samples: npt.NDArray[np.void]
        self.stride: int
        self._cursor: int
        self._cache: dict[int, Float32]
        self._forget()
        try:
            with self.reading() as connection:
                connection.execute(f"PRAGMA cache_size = -{CACHE}")
                self.layout = Layout(read_quantities(connection))
                self.about = _about(connection)
        except BaseException:
            self.connection.close()
            raise

    @property
    def kept(self) -> npt.NDArray[np.void]:
        """The samples that are read: each `stride`-th."""
        with self._lock:
            return self.samples[:: self.stride]

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One transaction, so that what is read fits together; errors become sentences."""
        with self._lock, sentences(self.file):
            try:
                self.connection.execute("BEGIN")
                yield self.connection
            finally:
                with suppress(sqlite3.Error):
                    self.connection.execute("ROLLBACK")

    def refresh(self) -> int:
        """Read on; the number of samples that came since the last time."""
        with self.reading() as connection:
            self.about = _about(connection)
            new = _samples(connection, "WHERE id > ? ORDER BY id", self._cursor)
            if len(new) == 0:
                return 0
            if np.all(np.diff(np.concatenate([self.samples[-1:], new])["step"]) > 0):
                self.samples = np.concatenate([self.samples, new])
            else:  # the run was resumed, and steps were measured again
                self._forget()
                self.samples = _samples(connection, "ORDER BY step")
            self._cursor = int(new["id"][-1])
            self._thin()
            return len(new)

    def numbers(self, layer: int) -> Float32:
        """(kept samples, numbers) of a layer, decoded once."""
        with self._lock:
            known = self._cache.get(layer)
            ids = self.kept["id"][0 if known is None else len(known) :]
            if known is None or len(ids) > 0:
                with self.reading() as connection:
                    block = decode_numbers(_column(connection, "measurement", "numbers", layer, ids), self.layout.width)
                known = block if known is None else np.concatenate([known, block])
                self._cache[layer] = known
            return known

    def distribution(self, layer: int, step: int | None) -> tuple[Int64, Int64] | None:
        """Histograms and extremes at a step, or the last there are; None where the layer was not measured."""
        chosen = self.samples[::-1] if step is None else self.samples[self.samples["step"] == step]
        with self.reading() as connection:
            for number in chosen["id"].tolist():
                key = number << LAYER_BITS | layer
                row = connection.execute(
                    "SELECT histograms, extremes FROM distribution WHERE key = ?", (key,)
                ).fetchone()
                if row is not None:
                    return decode_histograms(row[0]), decode_extremes(row[1])
        return None

    def vectors(self, layer: int, place: int) -> Float32 | None:
        """(kept samples, vectors) of one quantity; None where the layer has no such rows."""
        ids = self.kept["id"]
        with self.reading() as connection:
            sizes = set(_column(connection, "vectors", "length(numbers)", layer, ids)) - {None}
            if not sizes:
                return None
            size = max(sizes) // self.layout.vectors
            part = f"substr(numbers, {place * size + 1}, {size})"
            return decode_numbers(_column(connection, "vectors", part, layer, ids), size // 4)

    def _forget(self) -> None:
        self.samples = np.empty(0, SAMPLE)
        self.stride = 1
        self._cursor = 0
        self._cache = {}

    def _thin(self) -> None:
        """Double the stride until few enough samples are left, and keep of the decoded ones those that stay."""
        while self._most is not None and len(self.kept) > self._most:
            self.stride *= 2
            self._cache = {layer: known[::2].copy() for layer, known in self._cache.items()}


def _about(connection: sqlite3.Connection) -> About:
    (started,) = connection.execute("SELECT min(started) FROM session").fetchone()
    (dropped,) = connection.execute("SELECT sum(dropped) FROM session").fetchone()
    heartbeat, status, config = connection.execute(
        "SELECT heartbeat, status, config FROM session ORDER BY id DESC LIMIT 1"
    ).fetchone()
    notes = tuple(text for (text,) in connection.execute("SELECT text FROM note ORDER BY id"))
    layers = {layer.name: (index, layer) for index, layer in read_layers(connection)}
    return About(started, heartbeat, status, dropped, json.loads(config), notes, layers)


def _samples(connection: sqlite3.Connection, which: str, *arguments: int) -> npt.NDArray[np.void]:
    return np.array(connection.execute(f"SELECT id, step, time FROM sample {which}", arguments).fetchall(), SAMPLE)


def _column(connection: sqlite3.Connection, table: str, what: str, layer: int, ids: npt.NDArray[np.int64]) -> list[Any]:
    """A column of a layer's rows in the given samples, in their order; None where there is no row."""
    rows = connection.execute(
        f"SELECT {what} FROM json_each(?) AS wanted LEFT JOIN {table} AS found "
        f"ON found.key = (wanted.value << {LAYER_BITS} | ?) ORDER BY wanted.key",
        (json.dumps(ids.tolist()), layer),
    )
    return [value for (value,) in rows]
