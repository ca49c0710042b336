"""The SQL of readers: the samples of a database, also while it is being written, and the numbers in them."""

import json
import os
import sqlite3
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from gyroscope._types import Float32, Int64
from gyroscope.store.codec import (
    BlobLayout,
    blob_checksum,
    decode_extremes,
    decode_histograms,
    decode_numbers,
    has_layer,
    row_key,
    verified,
)
from gyroscope.store.database import file_of, open_reader, run_errors
from gyroscope.store.metadata import ScalarRow, read_quantities, read_scalars, read_state
from gyroscope.store.schema import LAYER_BITS

SAMPLE = np.dtype([("id", np.int64), ("step", np.int64), ("time", np.float64)])
# Kilobytes of the file that SQLite keeps in memory, because it is written by sample and read by layer.
CACHE = 64 * 1024
LAYER_MASK = (1 << LAYER_BITS) - 1
# Rows that are decoded together when a whole run is read: about ten megabytes.
PART_ROWS = 2**14


class ScalarColumns(NamedTuple):
    """Values that were logged under one name, in the order of their steps."""

    steps: "array[int]"
    values: "array[float]"


@final
class Follower:
    """A reader that continues from a cursor. Every read is a short transaction, and one thread reads at a time."""

    def __init__(self, path: str | os.PathLike[str], most: int | None) -> None:
        self.file = file_of(path)
        self.connection = open_reader(self.file)
        self._lock = threading.RLock()
        self._most = most
        self.samples: npt.NDArray[np.void]
        self.stride: int
        self._cursor: int
        self._scalar_cursor: int
        self._forget()
        self._forget_scalars()
        try:
            with self.reading() as connection:
                connection.execute(f"PRAGMA cache_size = -{CACHE}")
                self.layout = BlobLayout(read_quantities(connection))
                self.state = read_state(connection)
        except BaseException:
            self.connection.close()
            raise

    @property
    def kept(self) -> npt.NDArray[np.void]:
        """The samples that are read: every `stride`-th."""
        with self._lock:
            return self.samples[:: self.stride]

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open one transaction, so that all that is read in it is of one moment. Errors become `RunError`."""
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
            self.state = read_state(connection)
            self._scalars_read = False
            new = self._samples(connection, "WHERE id > ? ORDER BY id", self._cursor)
            if len(new):
                # If steps do not only grow, the run was resumed.
                if np.all(np.diff(np.concatenate([self.samples[-1:], new])["step"]) > 0):
                    self.samples = np.concatenate([self.samples, new])
                else:
                    self._forget()
                    self.samples = self._samples(connection, "ORDER BY step")
                self._cursor = int(new["id"][-1])
            # A damaged page of the table can lose rows without any other sign.
            if self.state.samples != len(self.samples):
                raise ValueError(f"{self.state.samples} samples were written and {len(self.samples)} are left")
            self._thin()
            return len(new)

    def numbers(self, layer: int) -> Float32:
        """Return (kept samples, numbers) of a layer, decoded once."""
        with self._lock:
            known = self._cache.get(layer)
            ids = self.kept["id"][0 if known is None else len(known) :]
            if known is None or len(ids) > 0:
                with self.reading() as connection:
                    rows = self._blobs(connection, "measurement", layer, ids)
                    block = decode_numbers([None if row is None else row[0] for row in rows], self.layout.width)
                known = block if known is None else np.concatenate([known, block])
                self._cache[layer] = known
            return known

    def numbers_at(self, step: int, layers: int) -> Float32:
        """Return (layers, numbers) of all layers at a step in one short read, and keep nothing in memory."""
        ids = self.samples["id"][self.samples["step"] == step]
        return self.numbers_of(ids, layers)[0] if len(ids) else decode_numbers([None] * layers, self.layout.width)

    def numbers_of(self, ids: Int64, layers: int) -> Float32:
        """Return (samples, layers, numbers) of all layers in samples with growing ids, in one read."""
        blobs: list[bytes | None] = [None] * (len(ids) * layers)
        starts = {number: layers * place for place, number in enumerate(ids.tolist())}
        keys = (row_key(int(ids[0]), 0), row_key(int(ids[-1]) + 1, 0))
        with self.reading() as connection:
            query = "SELECT * FROM measurement WHERE key >= ? AND key < ?"
            for key, numbers, checksum in connection.execute(query, keys):
                # If the run was resumed, samples of another part may be between them.
                start = starts.get(key >> LAYER_BITS)
                layer = key & LAYER_MASK
                if start is not None and layer < layers:
                    _verify(key, (numbers,), checksum)
                    blobs[start + layer] = numbers
            if None in blobs:
                for layer in range(layers):
                    absent = [number for number, start in starts.items() if blobs[start + layer] is None]
                    self._check_absent(connection, layer, absent)
        return decode_numbers(blobs, self.layout.width).reshape(len(ids), layers, -1)

    @staticmethod
    def parts(samples: npt.NDArray[np.void], layers: int) -> Iterator[npt.NDArray[np.void]]:
        """Yield samples in the order of their steps, a few at a time, with ids that grow within each part."""
        resumed = np.flatnonzero(np.diff(samples["id"]) < 0) + 1
        size = max(1, PART_ROWS // max(1, layers))
        for part in np.split(samples, resumed):
            for start in range(0, len(part), size):
                yield part[start : start + size]

    def distribution(self, layer: int, place: int, step: int | None) -> tuple[Int64, Int64] | None:
        """Return histogram and extremes of a quantity at a step, or the last ones with a value. None if there are none.

        The last sample of a run may have norms and no rotation.
        """
        chosen = self.samples[::-1] if step is None else self.samples[self.samples["step"] == step]
        with self.reading() as connection:
            for number in chosen["id"]:
                (row,) = self._blobs(connection, "distribution", layer, np.array([number]))
                if row is None:
                    continue
                histogram = decode_histograms(row[0])[place]
                if step is not None or histogram.any():
                    return histogram, decode_extremes(row[1])[place]
        return None

    def vectors(self, layer: int, place: int) -> Float32 | None:
        """Return (kept samples, vectors) of one quantity. None if the layer has no such rows."""
        ids = self.kept["id"]
        with self.reading() as connection:
            sizes = {size for (size,) in self._join(connection, "vectors", "length(numbers)", layer, ids)} - {None}
            if not sizes:
                return None
            size = max(sizes) // self.layout.vectors
            # Only the part of one quantity is read, which has a checksum of its own.
            columns = f"substr(numbers, {place * size + 1}, {size}), substr(checksums, {4 * place + 1}, 4)"
            rows = list(self._join(connection, "vectors", columns, layer, ids))
            absent = []
            for number, (values, stored) in zip(ids.tolist(), rows, strict=True):
                if values is None:
                    absent.append(number)
                else:
                    _verify(row_key(number, layer), (values,), int.from_bytes(stored or b"", "little"))
            self._check_absent(connection, layer, absent, "raw_layers")
            return decode_numbers([values for values, _ in rows], size // 4)

    def scalars(self) -> dict[str, ScalarColumns]:
        """Return logged values by name. They are read on the first call after a refresh."""
        with self._lock:
            if not self._scalars_read:
                with self.reading() as connection:
                    self._read_scalars(connection)
            return self._scalars

    def _read_scalars(self, connection: sqlite3.Connection) -> None:
        new = read_scalars(connection, self._scalar_cursor)
        if not self._extend(new):
            # The run was resumed, or a value was logged again.
            self._forget_scalars()
            new = read_scalars(connection, 0)
            self._extend(sorted(new, key=lambda row: row.step))
        self._scalar_cursor = max([self._scalar_cursor, *(row.id for row in new)])
        # Counted in the same transaction, because the writer may have written since the refresh.
        written = read_state(connection).scalars
        left = sum(len(columns.steps) for columns in self._scalars.values())
        if written != left:
            raise ValueError(f"{written} scalars were written and {left} are left")
        self._scalars_read = True

    def _extend(self, rows: list[ScalarRow]) -> bool:
        """Append rows. Return False if the step of one is before the last of its name."""
        for _, step, name, value in rows:
            columns = self._scalars.setdefault(name, ScalarColumns(array("q"), array("d")))
            last = columns.steps[-1] if columns.steps else -1
            if step < last:
                return False
            # A later value of a step replaces the earlier one, for example in gradient accumulation.
            if step == last:
                columns.values[-1] = value
                continue
            columns.steps.append(step)
            columns.values.append(value)
        return True

    def _forget_scalars(self) -> None:
        self._scalars: dict[str, ScalarColumns] = {}
        self._scalar_cursor = 0
        self._scalars_read = False

    def _forget(self) -> None:
        self.samples = np.empty(0, SAMPLE)
        self.stride = 1
        self._cursor = 0
        self._cache: dict[int, Float32] = {}

    def _thin(self) -> None:
        """Double the stride until few enough samples are left, and drop the other decoded ones."""
        while self._most is not None and len(self.kept) > self._most:
            self.stride *= 2
            self._cache = {layer: known[::2].copy() for layer, known in self._cache.items()}

    def _samples(self, connection: sqlite3.Connection, which: str, *arguments: int) -> npt.NDArray[np.void]:
        rows = connection.execute(f"SELECT * FROM sample {which}", arguments)
        return np.array([tuple(row[:3]) for row in verified(rows, "sample")], SAMPLE)

    def _blobs(
        self, connection: sqlite3.Connection, table: str, layer: int, ids: Int64
    ) -> list[tuple[bytes, ...] | None]:
        """Return blobs of a layer's rows in the given samples, in their order. None if the layer was not measured."""
        blobs: list[tuple[bytes, ...] | None] = []
        for key, *values, checksum in self._join(connection, table, "stored.*", layer, ids):
            if key is not None:
                _verify(key, values, checksum)
            blobs.append(None if key is None else tuple(values))
        absent = [number for number, row in zip(ids.tolist(), blobs, strict=True) if row is None]
        self._check_absent(connection, layer, absent)
        return blobs

    def _check_absent(self, connection: sqlite3.Connection, layer: int, ids: list[int], column: str = "layers") -> None:
        """Raise if one of these samples had a row of the layer when it was written."""
        rows = connection.execute(
            f"SELECT step, {column} FROM sample WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(ids),)
        )
        for step, bits in rows:
            if has_layer(bits, layer):
                raise ValueError(f"the numbers of step {step} are gone")

    def _join(
        self, connection: sqlite3.Connection, table: str, columns: str, layer: int, ids: Int64
    ) -> Iterator[tuple[Any, ...]]:
        """Yield columns of a layer's rows in the given samples, in their order. They are None if there is no row."""
        # The ids are one JSON array because SQLite limits the number of parameters.
        return connection.execute(
            f"SELECT {columns} FROM json_each(?) AS wanted LEFT JOIN {table} AS stored "
            f"ON stored.key = (wanted.value << {LAYER_BITS} | ?) ORDER BY wanted.key",
            (json.dumps(ids.tolist()), layer),
        )


def _verify(key: int, blobs: Sequence[bytes], checksum: int) -> None:
    if blob_checksum(key, *blobs) != checksum:
        raise ValueError(f"the numbers in row {key} do not match their checksum")
