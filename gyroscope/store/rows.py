"""Rows and blobs of a run's database: written with checksums, and read only if checksums and types are right.

Types are checked too, because a file may be damaged or hostile, and a viewer of many runs must refuse it cleanly.
"""

import json
import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from typing import Any, final

import numpy as np
import numpy.typing as npt

from gyroscope._types import Float32, Int64
from gyroscope.store.schema import BINS, LAYER_BITS, QUANTITY_BITS, STATISTICS, TABLES, LayerInfo, LayerSample, Quantity

# What SQLite stores in a column.
Value = int | float | str | bytes | None
# Layers by name, each with its index in samples.
Layers = dict[str, tuple[int, LayerInfo]]

# Whole numbers beyond this are not exact in JSON.
LARGEST = 2**53
# Parameter groups of an optimizer. A page lists them.
MAX_GROUPS = 10_000


def row_checksum(values: Sequence[Value]) -> int:
    """Return the CRC-32 of a row. It changes if a character moves from one value to the next.

    >>> row_checksum(("ab", "c")) == row_checksum(("a", "bc"))
    False
    """
    plain = [len(value) if isinstance(value, bytes) else value for value in values]
    checksum = zlib.crc32(repr(plain).encode())
    for value in values:
        if isinstance(value, bytes):
            checksum = zlib.crc32(value, checksum)
    return checksum


def insert(connection: sqlite3.Connection, table: str, columns: Sequence[Value], otherwise: str = "") -> None:
    """Store a row and its checksum. Raise `ValueError` if a reader would refuse it.

    The first column is the id. The checksum includes it, so a row under another id does not match.
    """
    marks = ", ".join("?" * len(TABLES[table]))
    connection.execute(f"INSERT {otherwise} INTO {table} VALUES ({marks})", (*columns, row_checksum(columns)))
    # Nothing that is committed may make a reader refuse the whole run.
    read_rows(connection, table, "WHERE id = ?", columns[0])


def next_id(connection: sqlite3.Connection, table: str) -> int:
    """Return the next id of a table with AUTOINCREMENT. The checksum needs it before there is a row."""
    query = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = ?"
    return int(connection.execute(query, (table,)).fetchone()[0]) + 1


def read_rows(
    connection: sqlite3.Connection, table: str, which: str = "ORDER BY id", *arguments: Value
) -> list[list[Any]]:
    """Return rows without their checksum. Raise `ValueError` if the checksum or the type of a value is wrong."""
    rows = []
    for *values, checksum, fits in connection.execute(f"SELECT *, {_FITS[table]} FROM {table} {which}", arguments):
        if checksum != row_checksum(values):
            raise ValueError(f"a row of the table {table} does not match its checksum")
        if not fits:
            raise ValueError(f"a value in the table {table} is of the wrong type or size: {repr(values)[:80]}")
        rows.append(values)
    return rows


def _fits(column: str, kind: str) -> str:
    """Return SQL that checks a value. SQLite stores any value in any column, and checks faster than Python."""
    base, *required = kind.split()
    bounds = {"INTEGER": f" AND {column} BETWEEN 0 AND {LARGEST}", "REAL": f" AND abs({column}) < 9e999"}
    right = f"(typeof({column}) = '{base.lower()}'{bounds.get(base, '')})"
    return right if required else f"({column} IS NULL OR {right})"


_FITS = {
    table: " AND ".join(_fits(column, kind) for column, (kind, _) in columns.items())
    for table, columns in TABLES.items()
}


def write_quantities(connection: sqlite3.Connection, quantities: Sequence[Quantity]) -> None:
    """Store the run's quantities in their order."""
    for number, quantity in enumerate(quantities):
        *texts, per_vector = astuple(quantity)
        insert(connection, "quantity", (number, *texts, int(per_vector)))


def read_quantities(connection: sqlite3.Connection) -> list[Quantity]:
    """Return the run's quantities in their order."""
    rows = read_rows(connection, "quantity")
    return [Quantity(name, unit, formula, source, bool(flag)) for _, name, unit, formula, source, flag in rows]


def layer_columns(layer: LayerInfo) -> list[Value]:
    """Return the description of a layer as columns. `read_layers` reverses it."""
    return [_plain(value) for value in astuple(layer)]


def _plain(value: Any) -> Value:
    if isinstance(value, tuple):
        return json.dumps([int(item) for item in value])
    # SQLite would store NumPy's integers as blobs.
    return value if value is None or isinstance(value, str) else int(value)


def read_layers(connection: sqlite3.Connection) -> Layers:
    """Return the run's layers by name, in the order in which they were first seen."""
    layers = {}
    for index, name, shape, *rest, rows in read_rows(connection, "layer"):
        layer = LayerInfo(*(name, _whole_list(shape), *rest, None if rows is None else _whole_list(rows)))
        check_group(layer)
        layers[name] = (index, layer)
    return layers


def check_group(layer: LayerInfo) -> None:
    """Raise `ValueError` if the number of a layer's parameter group is one that no page can list."""
    if layer.group > MAX_GROUPS:
        raise ValueError(f"{layer.name!r} is in parameter group {layer.group}, but a run has at most {MAX_GROUPS:,}")


def _whole_list(text: str) -> tuple[int, ...]:
    items = json.loads(text)
    if not isinstance(items, list) or not all(isinstance(item, int) and 0 <= item <= LARGEST for item in items):
        raise ValueError(f"{text[:40]} is not a list of whole numbers")
    return tuple(items)


@final
class BlobLayout:
    """Positions of a run's quantities in its blobs.

    `place` is a quantity's index among those of its own kind, per vector or per layer. `vectors` is the number of
    quantities per vector, and `width` the number of floats in a blob of `measurement`.
    """

    def __init__(self, quantities: Iterable[Quantity]) -> None:
        self.quantities = tuple(quantities)
        per_vector = [quantity.name for quantity in self.quantities if quantity.per_vector]
        per_layer = [quantity.name for quantity in self.quantities if not quantity.per_vector]
        self.place = {name: i for names in (per_vector, per_layer) for i, name in enumerate(names)}
        self.vectors = len(per_vector)
        self.width = len(per_vector) * len(STATISTICS) + len(per_layer)

    def column(self, quantity: Quantity, stat: str) -> int:
        """Return the index of a number in a blob of `measurement`. A quantity per layer has one for all statistics."""
        if quantity.per_vector:
            return self.place[quantity.name] * len(STATISTICS) + STATISTICS.index(stat)
        return self.vectors * len(STATISTICS) + self.place[quantity.name]

    def encode(self, layer: LayerSample) -> tuple[bytes, bytes, bytes]:
        """Return numbers, histograms and extremes of a layer. Raise `ValueError` if an array has another shape."""
        n = self.vectors
        statistics = _block(layer.statistics, "<f4", (n, len(STATISTICS)), "statistics")
        scalars = _block(layer.scalars, "<f4", (self.width - n * len(STATISTICS),), "scalars")
        histograms = _block(layer.histograms, "<u4", (n, BINS), "histograms")
        extremes = _block(layer.extremes, "<i4", (n, 2), "extremes")
        # Most bins are empty, so zlib's fastest level reduces a histogram to a twentieth.
        return statistics + scalars, zlib.compress(histograms, 1), extremes

    def encode_raw(self, raw: Float32) -> list[bytes]:
        """Return the values of every vector, a blob for each quantity, because a reader asks for one of them."""
        count = np.shape(raw)[-1]
        values = _block(raw, "<f4", (self.vectors, count), "raw")
        return [values[4 * count * i : 4 * count * (i + 1)] for i in range(self.vectors)]


def _block(array: npt.ArrayLike, kind: str, shape: tuple[int, ...], name: str) -> bytes:
    block = np.asarray(array)
    if block.shape != shape:
        raise ValueError(f"{name} of a layer's sample have the shape {block.shape}, but the quantities need {shape}")
    return block.astype(kind, copy=False).tobytes()


def decode_numbers(blobs: Sequence[bytes | None], width: int) -> Float32:
    """Return (samples, width) numbers, NaN if there is no blob."""
    # One join and one conversion for all samples, because a loop over blobs would dominate the time of a report.
    missing = np.full(width, np.nan, "<f4").tobytes()
    numbers = np.frombuffer(b"".join([missing if blob is None else blob for blob in blobs]), "<f4")
    return numbers.reshape(len(blobs), width).astype(np.float32, copy=False)


def decode_distribution(histograms: bytes, extremes: bytes) -> tuple[Int64, Int64]:
    """Return (per-vector quantities, BINS) counts, wide enough for sums over a run, and (…, 2) ids of vectors."""
    counts = np.frombuffer(zlib.decompress(histograms), "<u4").reshape(-1, BINS)
    return counts.astype(np.int64), np.frombuffer(extremes, "<i4").reshape(-1, 2).astype(np.int64)


def row_key(sample: int, layer: int) -> int:
    """Return the key of the rows about one layer in one sample."""
    return sample << LAYER_BITS | layer


def raw_key(key: int, place: int) -> int:
    """Return the key of the row of `vectors` with one quantity of such a row."""
    return key << QUANTITY_BITS | place


def layer_bits(layers: Iterable[int]) -> bytes:
    """Return a set of layers as bits, lowest first.

    >>> layer_bits([0, 9])
    b'\\x01\\x02'
    """
    bits = sum(1 << layer for layer in layers)
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def has_layer(bits: bytes, layer: int) -> bool:
    """Return whether the set of `layer_bits` contains a layer."""
    return bool(int.from_bytes(bits, "little") >> layer & 1)


def blob_checksum(key: int, *blobs: bytes) -> int:
    """Return the CRC-32 of blobs. It begins with the key, so blobs under another key do not match."""
    checksum = (key ^ key >> 32) & 0xFFFFFFFF
    for blob in blobs:
        checksum = zlib.crc32(blob, checksum)
    return checksum


def insert_blobs(connection: sqlite3.Connection, table: str, key: int, *blobs: bytes) -> None:
    """Store a row of blobs with their checksum."""
    marks = ", ".join("?" * len(TABLES[table]))
    connection.execute(f"INSERT INTO {table} VALUES ({marks})", (key, *blobs, blob_checksum(key, *blobs)))


def check_blobs(key: int, blobs: Sequence[bytes], checksum: int) -> None:
    """Raise `ValueError` if blobs do not match their checksum."""
    if blob_checksum(key, *blobs) != checksum:
        raise ValueError(f"the numbers in row {key} do not match their checksum")
