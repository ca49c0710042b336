"""Values of a tracked run for the experiments: curves over time, means over a part of it, spreads over layers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gyroscope.store import Run
from gyroscope.tools import Array

# Points of a course that is drawn. Runs differ in the steps that were sampled, and arrays of an experiment may not.
POINTS = 50
# Shares of a run after the transition to equilibrium, and before the learning rate is too low to keep it.
SETTLED = (0.4, 0.7)


def hidden_layers(run: Run) -> list[str]:
    """Return all layers except the last one, which has no normalisation after it."""
    return [layer for layer in run.layers if not layer.startswith("head.")]


def over_prediction(run: Run, layer: str, quantity: str) -> Array:
    """Return rotation or norm of a layer (RMS over its vectors) over its equilibrium prediction at each sample."""
    with np.errstate(all="ignore"):
        return run.series(layer, quantity, "rms") / run.series(layer, f"predicted_{quantity}")


def _shares(run: Run) -> Array:
    """Return the position of each sample in the run, from 0 to 1. A run that diverged may have only one sample."""
    return np.asarray(run.steps / max(run.steps[-1], 1))


def mean_during(run: Run, values: Array, part: tuple[float, float] = SETTLED) -> float:
    """Return the mean of a series over a part of the run, or NaN if that part was not measured."""
    places = _shares(run)
    chosen = values[(places >= part[0]) & (places <= part[1]) & np.isfinite(values)]
    return float(chosen.mean()) if len(chosen) else float("nan")


def course(run: Run, values: Array) -> Array:
    """Return a series at `POINTS` points, evenly over the run: means of samples, interpolated if a point has none.

    All are NaN if nothing was measured.
    """
    known = np.isfinite(values)
    if not known.any():
        return np.full(POINTS, np.nan)
    bins = np.minimum((_shares(run)[known] * POINTS).astype(int), POINTS - 1)
    counts = np.bincount(bins, minlength=POINTS)
    sums = np.bincount(bins, values[known], minlength=POINTS)
    filled = np.flatnonzero(counts)
    return np.interp(np.arange(POINTS), filled, sums[filled] / counts[filled])


def neuron_course(run: Run, layer: str, quantity: str) -> Array:
    """Return the course of the first neuron of a layer whose neurons were kept."""
    return course(run, run.raw(layer, quantity)[:, 0])


def smoothed(courses: Array, points: int) -> Array:
    """Return centred means over this number of points of a curve, fewer at its ends.

    >>> smoothed(np.array([0.0, 3.0, 0.0, 3.0]), 3).tolist()
    [1.5, 1.0, 2.0, 1.5]
    """
    half = points // 2
    count = courses.shape[-1]
    parts = [courses[..., max(i - half, 0) : i + half + 1].mean(-1) for i in range(count)]
    return np.stack(parts, axis=-1)


def course_axis(settings: Mapping[str, Any]) -> tuple[Array, str]:
    """Return the positions of a curve's points and the name of that axis: steps, or shares of a run in epochs."""
    places = (np.arange(POINTS) + 0.5) / POINTS
    return (places * settings["steps"], "step") if "steps" in settings else (places, "share of the run")


def spread_over_layers(angles: Array) -> float:
    """Return the standard deviation over the mean of the layers' rotation."""
    return float(angles.std() / angles.mean())


def relative_error(measured: Array, predicted: Array) -> Array:
    """Return |measured - predicted| over the larger one, or 1 if the prediction is 0 or infinite (no equilibrium)."""
    with np.errstate(invalid="ignore"):
        error = np.abs(measured - predicted) / np.maximum(measured, predicted)
    return np.where(np.isfinite(predicted), error, 1.0)
