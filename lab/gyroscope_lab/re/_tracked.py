"""What the experiments read from a tracked run: courses over time, means over a part of it, spreads over layers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gyroscope.store import Run
from gyroscope.tools import Array

# Points of a course that is drawn. Runs differ in the steps that were sampled; arrays of an experiment may not.
POINTS = 50
# Shares of a run after the transition to equilibrium, and before the learning rate is too low to keep it.
SETTLED = (0.4, 0.7)


def hidden_layers(run: Run) -> list[str]:
    """All layers but the last, which no normalisation follows."""
    return [layer for layer in run.layers if not layer.startswith("head.")]


def over_prediction(run: Run, layer: str, quantity: str) -> Array:
    """Rotation or norm of a layer, RMS over its vectors, over the prediction in equilibrium, at each sample."""
    with np.errstate(all="ignore"):
        return run.series(layer, quantity, "rms") / run.series(layer, f"predicted_{quantity}")


def _shares(run: Run) -> Array:
    """The place of each sample in the run, from 0 to 1; a run that diverged may have one sample."""
    return np.asarray(run.steps / max(run.steps[-1], 1))


def mean_during(run: Run, values: Array, part: tuple[float, float] = SETTLED) -> float:
    """Mean of a series over a part of the run; NaN where nothing of it was measured."""
    places = _shares(run)
    chosen = values[(places >= part[0]) & (places <= part[1]) & np.isfinite(values)]
    return float(chosen.mean()) if len(chosen) else float("nan")


def course(run: Run, values: Array) -> Array:
    """A series at `POINTS` places, evenly over the run: the mean of the samples about each, or between its neighbours.

    NaN throughout where nothing was measured.
    """
    known = np.isfinite(values)
    if not known.any():
        return np.full(POINTS, np.nan)
    bins = np.minimum((_shares(run)[known] * POINTS).astype(int), POINTS - 1)
    counts = np.bincount(bins, minlength=POINTS)
    sums = np.bincount(bins, values[known], minlength=POINTS)
    filled = np.flatnonzero(counts)
    return np.interp(np.arange(POINTS), filled, sums[filled] / counts[filled])


def course_axis(settings: Mapping[str, Any]) -> tuple[Array, str]:
    """Where the points of a course stand, and the name of that axis: steps, or shares of a run counted in epochs."""
    places = (np.arange(POINTS) + 0.5) / POINTS
    return (places * settings["steps"], "step") if "steps" in settings else (places, "share of the run")


def spread_over_layers(angles: Array) -> float:
    """Standard deviation over mean of the layers' rotation."""
    return float(angles.std() / angles.mean())


def relative_error(measured: Array, predicted: Array) -> Array:
    """|measured - predicted| over the larger of them: 1 where the prediction is 0 or infinite, for no equilibrium."""
    with np.errstate(invalid="ignore"):
        error = np.abs(measured - predicted) / np.maximum(measured, predicted)
    return np.where(np.isfinite(predicted), error, 1.0)
