"""Small runs for the tests of the store."""

import sys
import time
from pathlib import Path

import numpy as np

from gyroscope.store import BINS, LayerInfo, LayerSample, Quantity, Sample, Writer, bin_edges

QUANTITIES = [
    Quantity("angular_update", "rad", "∠(w, w')", "Kosson et al. 2024"),
    Quantity("norm", "", "‖w‖", "definition"),
    Quantity("lr", "", "η", "definition", per_vector=False),
    Quantity("weight_decay", "", "λ", "definition", per_vector=False),
]
VECTORS = 6
SAMPLE_BYTES = 4 * (2 * 9 + 2 + 2 * 128 + 2 * 2)
"""Of the arrays of a layer's sample: statistics, scalars, histograms and extremes."""
ROOT = Path(__file__).parents[2]
"""Where a new process has to start to find the tests."""


def python(code, *arguments):
    """The command that runs code in a new process."""
    return [sys.executable, "-c", code, *map(str, arguments)]


def count_bins(values):
    """The histogram of the magnitudes of `values` over `bin_edges()`, without NaN."""
    magnitudes = np.abs(np.asarray(values, dtype=np.float64).ravel())
    bins = np.searchsorted(bin_edges()[1:-1], magnitudes[~np.isnan(magnitudes)], side="right")
    return np.bincount(bins, minlength=BINS).astype(np.uint32)


def layer(name="fc.weight", **changes):
    known = {"shape": (VECTORS, 8), "granularity": "neuron", "axis": 0, "group_size": 1, "vectors": VECTORS}
    rest = {"fan_in": 8, "group": 0, "rule": "AdamW(lr=0.001)", "rows": None}
    return LayerInfo(name, **{**known, **rest, **changes})


def values(step, index=0):
    """(per-vector quantities, vectors) that tell step and layer apart."""
    return np.arange(1, 1 + 2 * VECTORS, dtype=np.float32).reshape(2, VECTORS) * (1 + step) + 1000 * index


def layer_sample(step, index=0, raw=False):
    x = values(step, index)
    statistics = [x.mean(1), np.sqrt((x**2).mean(1)), *x.T[[0, 1, 3, 4, 5]]]  # rows ascend: about its quantiles
    return LayerSample(
        statistics=np.stack([*statistics, x.min(1), x.max(1)], axis=1).astype(np.float32),
        scalars=np.array([step, np.nan], dtype=np.float32),
        histograms=np.stack([count_bins(row) for row in x]),
        extremes=np.array([[0, VECTORS - 1]] * 2, dtype=np.int32),
        raw=x if raw else None,
    )


def sample(step, layers=1, raw=False):
    return Sample(step, time.time(), {i: layer_sample(step, i, raw) for i in range(layers)})


def writer(path, layers=1, config=None, **options):
    new = Writer(path, quantities=QUANTITIES, config=config or {}, **options)
    for i in range(layers):
        new.add_layer(layer(f"layer{i}"))
    return new


def run_at(path, steps=3, layers=1, raw=False):
    """A finished run with the samples 0 … steps - 1; its path."""
    with writer(path, layers) as new:
        for step in range(steps):
            new.put(sample(step, layers, raw))
    return path
