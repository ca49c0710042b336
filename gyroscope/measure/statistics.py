"""From values per vector to what is stored of a layer: statistics, histograms that merge, and the extreme vectors."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gyroscope.measure.layers import Ids
from gyroscope.measure.quantities import PER_LAYER, PER_VECTOR, Vectors
from gyroscope.store import BINS, STATISTICS, LayerSample, bin_edges

Values = npt.NDArray[np.float32]

QUANTILES = np.array([int(name[1:]) / 100 for name in STATISTICS if name.startswith("q")])


MANTISSA = 23
"""Bits of a float32 behind its exponent."""
UPPER_HALF = 2**MANTISSA - (math.ceil(2**0.5 * 2**MANTISSA) - 2**MANTISSA)
"""What the first float32 in the upper half of an octave, from √2 on, lacks to the next octave, in units of its last."""
FIRST = int(np.float32(bin_edges()[0]).view(np.int32) >> MANTISSA) * 2
"""Half octaves below the store's first bin."""


def layer_samples(layers: Sequence[tuple[Ids, Vectors, bool]]) -> list[LayerSample]:
    """Every quantity of each layer, summed up; the flag asks to keep the value of each vector as well.

    Layers with equally many vectors are summed up together, for most of a small layer's time is NumPy's calls.
    """
    found: dict[int, LayerSample] = {}
    for width in {len(ids) for ids, _, _ in layers}:
        places = [place for place, (ids, _, _) in enumerate(layers) if len(ids) == width]
        alike = [layers[place] for place in places]
        with np.errstate(all="ignore"):
            values = np.array([[row.of(v) for row in PER_VECTOR] for _, v, _ in alike], dtype=np.float32)
            scalars = np.array([[row.of(v) for row in PER_LAYER] for _, v, _ in alike], dtype=np.float32)
        values[~np.isfinite(values)] = np.nan
        scalars[~np.isfinite(scalars)] = np.nan
        rows = values.reshape(len(alike) * len(PER_VECTOR), width)
        ids = np.repeat([ids for ids, _, _ in alike], len(PER_VECTOR), axis=0)
        summed = (
            x.reshape(len(alike), len(PER_VECTOR), -1)
            for x in (statistics(rows), histograms(rows), extremes(ids, rows))
        )
        for place, (_, _, raw), one, *parts in zip(places, alike, values, scalars, *summed, strict=True):
            scalar, statistic, histogram, extreme = parts
            found[place] = LayerSample(statistic, scalar, histogram, extreme, one if raw else None)
    return [found[place] for place in range(len(layers))]


def statistics(values: Values) -> Values:
    """`STATISTICS` of each row, NaN left out; NaN for a row that has nothing else.

    >>> dict(zip(STATISTICS, statistics(np.array([[3.0, np.nan, 4.0]], np.float32))[0].round(3).tolist()))["rms"]
    3.5360000133514404
    """
    ordered, missing = np.sort(values, axis=1), np.isnan(values)  # NaN last
    count = values.shape[1] - np.count_nonzero(missing, axis=1)
    found = np.full((len(values), len(STATISTICS)), np.nan, np.float32)
    some = count > 0
    ordered, n = ordered[some], count[some]
    known = np.where(missing[some], np.float64(0), values[some])
    mean, rms = known.sum(1) / n, np.sqrt(np.einsum("ij,ij->i", known, known) / n)
    place = QUANTILES * (n - 1)[:, None]
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, (n - 1)[:, None])
    low, high = (np.take_along_axis(ordered, index, axis=1).astype(np.float64) for index in (below, above))
    quantiles = low + (place - below) * (high - low)
    least, most = ordered[:, 0], np.take_along_axis(ordered, (n - 1)[:, None], axis=1)[:, 0]
    found[some] = np.column_stack([mean, rms, quantiles, least, most])
    return found


def histograms(values: Values) -> npt.NDArray[np.uint32]:
    """How many magnitudes of each row fall between the store's edges; NaN is left out.

    A float32's exponent says which octave it is in; from an octave's upper half, `UPPER_HALF` reaches the next.
    """
    bits = np.abs(values).view(np.int32)
    octave, next_half = bits >> MANTISSA, bits + UPPER_HALF >> MANTISSA
    bins = np.clip(octave + next_half - FIRST, 0, BINS - 1)
    bins += BINS * np.arange(len(values), dtype=np.int32)[:, None]
    counts = np.bincount(bins[~np.isnan(values)], minlength=BINS * len(values))
    return counts.reshape(len(values), BINS).astype(np.uint32)


def extremes(ids: Ids, values: Values) -> npt.NDArray[np.int32]:
    """Ids of the vectors with the smallest and the largest value of each row; -1 where there is none."""
    found = np.full((len(values), 2), -1, np.int32)
    if values.shape[1]:
        missing, row = np.isnan(values), np.arange(len(values))
        found[:, 0] = ids[row, np.where(missing, np.inf, values).argmin(axis=1)]
        found[:, 1] = ids[row, np.where(missing, -np.inf, values).argmax(axis=1)]
        found[missing.all(axis=1)] = -1
    return found
