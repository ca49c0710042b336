"""From values per vector to what is stored of a layer: statistics, histograms that merge, and the extreme vectors."""

import numpy as np
import numpy.typing as npt

from gyroscope.store import BINS, STATISTICS, LayerSample, bin_edges
from gyroscope.track.layers import Ids
from gyroscope.track.quantities import PER_LAYER, PER_VECTOR, Vectors

Values = npt.NDArray[np.float32]

QUANTILES = np.array([int(name[1:]) / 100 for name in STATISTICS if name.startswith("q")])


def _inner_edges() -> Values:
    """The store's edges between bins, each as the smallest float32 that belongs to the upper bin."""
    edges = bin_edges()[1:-1]
    rounded = edges.astype(np.float32)
    return np.where(rounded < edges, np.nextafter(rounded, np.float32(np.inf)), rounded)


_EDGES = _inner_edges()


def layer_sample(ids: Ids, vectors: Vectors, raw: bool = False) -> LayerSample:
    """Every quantity of a layer, summed up; `raw` keeps the value of each vector as well."""
    with np.errstate(all="ignore"):
        values = np.array([row.of(vectors) for row in PER_VECTOR], dtype=np.float32)
        scalars = np.array([row.of(vectors) for row in PER_LAYER], dtype=np.float32)
    values[~np.isfinite(values)] = np.nan
    scalars[~np.isfinite(scalars)] = np.nan
    return LayerSample(statistics(values), scalars, histograms(values), extremes(ids, values), values if raw else None)


def statistics(values: Values) -> Values:
    """`STATISTICS` of each row, NaN left out; NaN for a row that has nothing else.

    >>> dict(zip(STATISTICS, statistics(np.array([[3.0, np.nan, 4.0]], np.float32))[0].round(3).tolist()))["rms"]
    3.5360000133514404
    """
    ordered = np.sort(values, axis=1)  # NaN last
    count = np.count_nonzero(~np.isnan(ordered), axis=1)
    found = np.full((len(values), len(STATISTICS)), np.nan, np.float32)
    some = count > 0
    ordered, n = ordered[some].astype(np.float64), count[some]
    mean = np.nansum(ordered, axis=1) / n
    rms = np.sqrt(np.nansum(ordered**2, axis=1) / n)
    place = QUANTILES * (n - 1)[:, None]
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, (n - 1)[:, None])
    low, high = (np.take_along_axis(ordered, index, axis=1) for index in (below, above))
    quantiles = low + (place - below) * (high - low)
    least, most = ordered[:, 0], np.take_along_axis(ordered, (n - 1)[:, None], axis=1)[:, 0]
    found[some] = np.column_stack([mean, rms, quantiles, least, most])
    return found


def histograms(values: Values) -> npt.NDArray[np.uint32]:
    """How many magnitudes of each row fall between the store's edges; NaN is left out."""
    bins = np.searchsorted(_EDGES, np.abs(values), side="right")
    bins += BINS * np.arange(len(values))[:, None]
    counts = np.bincount(bins[~np.isnan(values)], minlength=BINS * len(values))
    return counts.reshape(len(values), BINS).astype(np.uint32)


def extremes(ids: Ids, values: Values) -> npt.NDArray[np.int32]:
    """Ids of the vectors with the smallest and the largest value of each row; -1 where there is none."""
    found = np.full((len(values), 2), -1, np.int32)
    if values.shape[1]:
        missing = np.isnan(values)
        found[:, 0] = ids[np.where(missing, np.inf, values).argmin(axis=1)]
        found[:, 1] = ids[np.where(missing, -np.inf, values).argmax(axis=1)]
        found[missing.all(axis=1)] = -1
    return found
