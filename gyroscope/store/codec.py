"""A layer's sample as blobs and back; the layouts stand in `schema.TABLES`."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gyroscope.store.schema import BINS, STATISTICS, LayerSample, Quantity, Sample

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


class Layout:
    """Where a quantity's numbers stand in the blobs of a run.

    `place` is a quantity's index among those of its own kind, per vector or per layer; `vectors` the number of those
    per vector; `width` the numbers in a row of `measurement`.
    """

    def __init__(self, quantities: Iterable[Quantity]) -> None:
        self.quantities = tuple(quantities)
        per_vector = [one.name for one in self.quantities if one.per_vector]
        per_layer = [one.name for one in self.quantities if not one.per_vector]
        self.place = {name: i for names in (per_vector, per_layer) for i, name in enumerate(names)}
        self.vectors = len(per_vector)
        self.width = len(per_vector) * len(STATISTICS) + len(per_layer)

    def column(self, quantity: Quantity, stat: str) -> int:
        """Index of a number in a row of `measurement`. A quantity per layer has one number, whatever the statistic."""
        if quantity.per_vector:
            return self.place[quantity.name] * len(STATISTICS) + STATISTICS.index(stat)
        return self.vectors * len(STATISTICS) + self.place[quantity.name]


@dataclass(frozen=True)
class Encoded:
    """A sample ready to be stored: rows (layer, numbers, histograms, extremes, vectors)."""

    step: int
    time: float
    rows: Sequence[tuple[int, bytes, bytes, bytes, bytes | None]]


def encode(sample: Sample, layout: Layout) -> Encoded:
    """Blobs of a sample; raises `ValueError` when an array does not have the shape that the quantities call for."""
    rows = [(int(index), *_blobs(one, layout)) for index, one in sample.layers.items()]
    return Encoded(int(sample.step), float(sample.time), rows)


def _blobs(one: LayerSample, layout: Layout) -> tuple[bytes, bytes, bytes, bytes | None]:
    n = layout.vectors
    statistics = _block(one.statistics, "<f4", (n, len(STATISTICS)), "statistics")
    scalars = _block(one.scalars, "<f4", (layout.width - n * len(STATISTICS),), "scalars")
    histograms = _block(one.histograms, "<u4", (n, BINS), "histograms")
    extremes = _block(one.extremes, "<i4", (n, 2), "extremes")
    raw = None
    if one.raw is not None:
        raw = _block(one.raw, "<f4", (n, np.shape(one.raw)[-1]), "raw")
    # Most bins are empty: the fastest level of zlib makes a twentieth of the size.
    return statistics + scalars, zlib.compress(histograms, 1), extremes, raw


def _block(array: npt.ArrayLike, kind: str, shape: tuple[int, ...], name: str) -> bytes:
    block = np.asarray(array)
    if block.shape != shape:
        raise ValueError(f"{name} of a layer's sample have the shape {block.shape}, but the quantities need {shape}")
    return block.astype(kind, copy=False).tobytes()


def decode_numbers(blobs: Sequence[bytes | None], width: int) -> Float32:
    """(samples, width) numbers; NaN where there is no blob."""
    missing = np.full(width, np.nan, "<f4").tobytes()
    numbers = np.frombuffer(b"".join([missing if blob is None else blob for blob in blobs]), "<f4")
    return numbers.reshape(len(blobs), width).astype(np.float32, copy=False)


def decode_histograms(blob: bytes) -> Int64:
    """(per-vector quantities, BINS) counts; wide enough that sums over a run do not overflow."""
    return np.frombuffer(zlib.decompress(blob), "<u4").reshape(-1, BINS).astype(np.int64)


def decode_extremes(blob: bytes) -> Int64:
    """(per-vector quantities, 2) ids of vectors."""
    return np.frombuffer(blob, "<i4").reshape(-1, 2).astype(np.int64)
