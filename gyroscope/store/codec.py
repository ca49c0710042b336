"""Samples as blobs and back, and checksums of rows. `schema.TABLES` describes the layouts."""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from gyroscope._types import Float32, Int64
from gyroscope.store.schema import BINS, LAYER_BITS, STATISTICS, LayerSample, Quantity, Sample

# What SQLite stores in a column.
Value = int | float | str | bytes | None


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


class LayerBlobs(NamedTuple):
    """One layer of a sample, encoded. `raw` has a blob for each quantity per vector."""

    layer: int
    numbers: bytes
    histograms: bytes
    extremes: bytes
    raw: tuple[bytes, ...] | None


class EncodedSample(NamedTuple):
    """A sample, encoded."""

    step: int
    time: float
    layers: tuple[LayerBlobs, ...]


def encode(sample: Sample, layout: BlobLayout) -> EncodedSample:
    """Return the blobs of a sample. Raise `ValueError` if an array does not have the shape that the quantities need."""
    layers = tuple(_blobs(int(index), layer, layout) for index, layer in sample.layers.items())
    # + 0.0 because SQLite does not keep -0.0.
    return EncodedSample(int(sample.step), float(sample.time) + 0.0, layers)


def _blobs(index: int, layer: LayerSample, layout: BlobLayout) -> LayerBlobs:
    n = layout.vectors
    statistics = _block(layer.statistics, "<f4", (n, len(STATISTICS)), "statistics")
    scalars = _block(layer.scalars, "<f4", (layout.width - n * len(STATISTICS),), "scalars")
    histograms = _block(layer.histograms, "<u4", (n, BINS), "histograms")
    extremes = _block(layer.extremes, "<i4", (n, 2), "extremes")
    raw = None
    if layer.raw is not None:
        count = np.shape(layer.raw)[-1]
        values = _block(layer.raw, "<f4", (n, count), "raw")
        # One blob per quantity, because a reader asks for one of them and checks what it reads.
        raw = tuple(values[4 * count * i : 4 * count * (i + 1)] for i in range(n))
    # Most bins are empty, so zlib's fastest level reduces a histogram to a twentieth.
    return LayerBlobs(index, statistics + scalars, zlib.compress(histograms, 1), extremes, raw)


def _block(array: npt.ArrayLike, kind: str, shape: tuple[int, ...], name: str) -> bytes:
    block = np.asarray(array)
    if block.shape != shape:
        raise ValueError(f"{name} of a layer's sample have the shape {block.shape}, but the quantities need {shape}")
    return block.astype(kind, copy=False).tobytes()


def decode_numbers(blobs: Sequence[bytes | None], width: int) -> Float32:
    """Return (samples, width) numbers, NaN if there is no blob."""
    # One join and one conversion for all samples: a loop over blobs would take most of the time of a report.
    missing = np.full(width, np.nan, "<f4").tobytes()
    numbers = np.frombuffer(b"".join([missing if blob is None else blob for blob in blobs]), "<f4")
    return numbers.reshape(len(blobs), width).astype(np.float32, copy=False)


def decode_histograms(blob: bytes) -> Int64:
    """Return (per-vector quantities, BINS) counts, wide enough for sums over a run."""
    return np.frombuffer(zlib.decompress(blob), "<u4").reshape(-1, BINS).astype(np.int64)


def decode_extremes(blob: bytes) -> Int64:
    """Return (per-vector quantities, 2) ids of vectors."""
    return np.frombuffer(blob, "<i4").reshape(-1, 2).astype(np.int64)


def row_key(sample: int, layer: int) -> int:
    """Return the key of the rows about one layer in one sample."""
    return sample << LAYER_BITS | layer


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


def row_checksum(values: Iterable[Value]) -> int:
    """Return the CRC-32 of a row. The length of each value is included, so no character moves to the next value.

    >>> row_checksum(("ab", "c")) == row_checksum(("a", "bc"))
    False
    """
    checksum = 0
    for value in values:
        data = value if isinstance(value, bytes) else repr(value).encode()
        checksum = zlib.crc32(data, zlib.crc32(b"%d:" % len(data), checksum))
    return checksum


def blob_checksum(key: int, *blobs: bytes) -> int:
    """Return the CRC-32 of blobs. It begins with the key, so blobs under another key do not match."""
    checksum = (key ^ key >> 32) & 0xFFFFFFFF
    for blob in blobs:
        checksum = zlib.crc32(blob, checksum)
    return checksum


def verified(rows: Iterable[Sequence[Value]], table: str) -> Iterator[Sequence[Value]]:
    """Yield rows without their last column, a checksum. Raise `ValueError` if it does not match."""
    for *values, checksum in rows:
        if checksum != row_checksum(values):
            raise ValueError(f"a row of the table {table} does not match its checksum")
        yield values
