"""The summary of a layer from values per vector: statistics, histograms that merge, and the extreme vectors."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gyroscope._types import Float32
from gyroscope.measure._pipeline.layers import Ids, Layer
from gyroscope.measure.quantities import PER_LAYER, PER_VECTOR, StepPrediction, VectorSums
from gyroscope.store import BINS, STATISTICS, LayerSample, bin_edges

Counts = npt.NDArray[np.uint32]
Int32 = npt.NDArray[np.int32]

# Values that are summarised at once. Each takes about forty bytes.
AT_ONCE = 2**22

QUANTILES = np.array([int(name[1:]) / 100 for name in STATISTICS if name.startswith("q")])
# Bits of a float32 behind its exponent.
MANTISSA = 23
# Distance from the first float32 in the upper half of an octave (from √2) to the next octave, in units of its last bit.
UPPER_HALF = 2**MANTISSA - (math.ceil(2**0.5 * 2**MANTISSA) - 2**MANTISSA)
# Half octaves below the store's first bin.
FIRST = int(np.float32(bin_edges()[0]).view(np.int32) >> MANTISSA) * 2
# Quantities per vector that need no step, and quantities per layer that do. A layer without a learning rate took no
# step.
KNOWN_AT_END = ("norm", "accumulated_angle", "angle_to_start")
UNKNOWN_AT_END = (
    *("lr", "predicted_angular_update", "forecast_angular_update"),
    *("signal_ratio", "alignment", "dead_vectors", "frozen_entries"),
)


class LayerPart(NamedTuple):
    """A layer whose vectors are part of one `VectorSums`.

    ids: of its vectors. part: their places among all. keep_vectors: whether the value of each one is stored too.
    """

    layer: Layer
    ids: Ids
    part: slice
    keep_vectors: bool


def summarise(
    vectors: VectorSums, layers: Sequence[LayerPart], predictions: Mapping[str, StepPrediction]
) -> dict[str, LayerSample]:
    """Return the sample of each layer.

    Layers with equally many vectors are summarised together, because NumPy's calls take most of a small layer's time. A
    large layer is summarised quantity by quantity, to save memory.
    """
    unknown = StepPrediction()
    count = len(PER_VECTOR)
    samples = {}
    # Quantities per layer first, because the vectors need the predicted angle of their layer.
    scalars = vectors.per_layer([predictions.get(each.layer.name, unknown) for each in layers])
    for (layer, ids, _, keep_vectors), numbers in zip(layers, scalars, strict=True):
        samples[layer.name] = LayerSample(
            np.empty((count, len(STATISTICS)), np.float32),
            numbers.copy(),
            np.empty((count, BINS), np.uint32),
            np.empty((count, 2), np.int32),
            np.empty((count, len(ids)), np.float32) if keep_vectors else None,
        )
    at_once = max(1, min(count, AT_ONCE // max(1, len(vectors.ww))))
    for start in range(0, count, at_once):
        rows = slice(start, min(start + at_once, count))
        values = vectors.per_vector(rows)
        for width in {len(each.ids) for each in layers}:
            alike = [each for each in layers if len(each.ids) == width]
            _summarise_alike(values, rows, alike, [samples[each.layer.name] for each in alike])
    return samples


def _summarise_alike(values: Float32, rows: slice, layers: Sequence[LayerPart], samples: Sequence[LayerSample]) -> None:
    """Fill the samples of layers with equally many vectors. `values` are those of the quantities in `rows`."""
    tables = np.stack([values[:, layer.part] for layer in layers])
    flat = tables.reshape(-1, tables.shape[-1])
    shape = (len(layers), len(values), -1)
    numbers = statistics(flat).reshape(shape)
    counts = histograms(flat).reshape(shape)
    ends = extremes(np.repeat([layer.ids for layer in layers], len(values), axis=0), flat).reshape(shape)
    for place, sample in enumerate(samples):
        sample.statistics[rows] = numbers[place]
        sample.histograms[rows] = counts[place]
        sample.extremes[rows] = ends[place]
        if sample.raw is not None:
            sample.raw[rows] = tables[place]


def forget_step(sample: LayerSample) -> None:
    """Keep only the values of a sample that are known without a step: weights, settings and predictions."""
    unknown = [quantity.name not in KNOWN_AT_END for quantity in PER_VECTOR]
    sample.statistics[unknown] = np.nan
    sample.histograms[unknown] = 0
    sample.extremes[unknown] = -1
    if sample.raw is not None:
        sample.raw[unknown] = np.nan
    sample.scalars[[quantity.name in UNKNOWN_AT_END for quantity in PER_LAYER]] = np.nan


def statistics(values: Float32) -> Float32:
    """Return `STATISTICS` of each row without its NaN, or NaN for a row that has nothing else.

    >>> dict(zip(STATISTICS, statistics(np.array([[3.0, np.nan, 4.0]], np.float32))[0].round(3).tolist()))["rms"]
    3.5360000133514404
    """
    ordered = np.sort(values, axis=1)  # NaN last
    missing = np.isnan(values)
    count = values.shape[1] - np.count_nonzero(missing, axis=1)
    table = np.full((len(values), len(STATISTICS)), np.nan, np.float32)
    some = count > 0
    ordered = ordered[some]
    n = count[some]
    # NaN are replaced by zeros, so that sums of rows with missing values need no loop.
    known = np.where(missing[some], np.float64(0), values[some])
    mean = known.sum(1) / n
    rms = np.sqrt(np.einsum("ij,ij->i", known, known) / n)
    place = QUANTILES * (n - 1)[:, None]
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, (n - 1)[:, None])
    low, high = (np.take_along_axis(ordered, index, axis=1).astype(np.float64) for index in (below, above))
    quantiles = low + (place - below) * (high - low)
    least = ordered[:, 0]
    most = np.take_along_axis(ordered, (n - 1)[:, None], axis=1)[:, 0]
    table[some] = np.column_stack([mean, rms, quantiles, least, most])
    return table


def histograms(values: Float32) -> Counts:
    """Return how many magnitudes of each row fall between the store's edges. NaN are left out.

    The exponent of a float32 gives its octave. From the upper half of an octave, `UPPER_HALF` reaches the next.
    """
    bits = np.abs(values).view(np.int32)
    octave = bits >> MANTISSA
    next_half = bits + UPPER_HALF >> MANTISSA
    bins = np.clip(octave + next_half - FIRST, 0, BINS - 1)
    bins += BINS * np.arange(len(values), dtype=np.int32)[:, None]
    counts = np.bincount(bins[~np.isnan(values)], minlength=BINS * len(values))
    return counts.reshape(len(values), BINS).astype(np.uint32)


def extremes(ids: Ids, values: Float32) -> Int32:
    """Return the ids of the vectors with the smallest and the largest value of each row, -1 if there is none."""
    table = np.full((len(values), 2), -1, np.int32)
    if values.shape[1]:
        missing = np.isnan(values)
        row = np.arange(len(values))
        table[:, 0] = ids[row, np.where(missing, np.inf, values).argmin(axis=1)]
        table[:, 1] = ids[row, np.where(missing, -np.inf, values).argmax(axis=1)]
        table[missing.all(axis=1)] = -1
    return table
