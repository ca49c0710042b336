"""The layers of a run on a page: their lines in the table, the spread of their neurons, and distributions."""

from collections.abc import Callable, Collection, Sequence
from math import nan, prod
from typing import Any

import numpy as np

from gyroscope._types import Array, Int64
from gyroscope.advice import thresholds
from gyroscope.advice.history import LayerHistory
from gyroscope.advice.layer_facts import state_of_run
from gyroscope.advice.layer_families import group_families, short_labels
from gyroscope.advice.record import finite_ratio, positive_ratio
from gyroscope.advice.run_layer import noise_ratio
from gyroscope.report.run_data import DISTRIBUTIONS, LAYER_SERIES, MAP_COLUMNS, LayerData
from gyroscope.store import LayerInfo, Run

# Number of steps at which a page in a file contains distributions: the first, the last and some between.
SHOWN_STEPS = 7


def layers_data(
    run: Run,
    histories: Sequence[LayerHistory],
    live: bool,
    at: int | None,
    rename: Callable[[str], str],
    sensitive: Collection[str],
) -> list[LayerData]:
    """Return the layers of a run, with series and distributions unless the page is live.

    sensitive  layers that are not scale-invariant
    """
    names = [history.name for history in histories]
    shapes = {name: own_shape(run.layer(name)) for name in names}
    labels = short_labels(names)
    starts = map_starts(len(run.steps))
    families = {member: family.label for family in group_families(names, shapes) for member in family.members}
    layers = []
    for history in histories:
        layer = run.layer(history.name)
        layers.append(
            LayerData(
                name=rename(layer.name),
                label=labels[layer.name],
                family=families[layer.name],
                shape=shapes[layer.name],
                granularity=layer.granularity,
                vectors=layer.vectors,
                fan_in=layer.fan_in,
                group=layer.group,
                summary=summary(history, history.name in sensitive),
                ratios=map_row(history, starts),
                distributions={} if live else distributions(run, layer.name, at),
                series={} if live else layer_series(run, layer.name),
            )
        )
    return layers


def map_starts(samples: int) -> Int64:
    """Return the first sample of each part of a run in the map."""
    return np.unique(np.linspace(0, samples, MAP_COLUMNS, endpoint=False).astype(np.int64))


def map_row(history: LayerHistory, starts: Int64) -> Array:
    """Return the median log2 ratio of measured over predicted rotation in each part of the run, NaN if unknown."""
    peak = history.lr[history.peak : history.peak + 1]
    # At the end of a schedule that goes to 0 both are nearly 0.
    speeds = finite_ratio(history.angle, reference(history, "angular_update"))
    speeds = np.where(history.lr < thresholds.MIN_RATE_SHARE * peak, nan, speeds)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log2(speeds)
    parts = np.split(np.where(np.isfinite(ratios), ratios, nan), starts[1:])
    known = [part[np.isfinite(part)] for part in parts]
    return np.array([np.median(part).round(2) if part.size else nan for part in known])


def reference(history: LayerHistory, quantity: str) -> Array:
    """Return the forecast of a quantity, or its equilibrium if the run has no forecast."""
    forecast = history.series(f"forecast_{quantity}")
    if np.isfinite(forecast).any():
        return forecast
    return history.series(f"predicted_{quantity}")


def layer_series(run: Run, layer: str) -> dict[str, Array]:
    """Return the series of a layer by the names of `LAYER_SERIES`."""
    return {name: series_of(run, layer, name) for name in LAYER_SERIES}


def series_of(run: Run, layer: str, name: str) -> Array:
    """Return a series by its name, quantity.statistic. All NaN if the run has no such quantity."""
    quantity, _, stat = name.partition(".")
    if quantity not in run.quantities:
        return np.full(len(run.steps), np.nan)
    return run.series(layer, quantity, stat or "mean")


def own_shape(layer: LayerInfo) -> tuple[int, ...]:
    """Return the shape of a layer. A part of a fused weight has its share of the rows."""
    shape = list(layer.shape)
    if layer.name.endswith("]"):
        shape[layer.axis] = shape[layer.axis] * layer.vectors * layer.fan_in // prod(shape)
    return tuple(shape)


def summary(history: LayerHistory, is_sensitive: bool = False) -> dict[str, Any]:
    """Return a layer in one line: means over the judged part of the run, and ratios of measured over predicted.

    If the last numbers of a layer are not finite, the earlier ones do not describe it. All are NaN, and `diverged` is
    true.

    state            of its norm and rotation, one of `layer_facts.State`, or "not finite"
    reference        what ratios are over: the "forecast", or "equilibrium" if the run has no forecast
    decay_ratio      λ_e/λ: 1 if the loss does not depend on the scale of the weights
    alignment        s: 1 if updates are pure noise, above if gradients agree over the momentum's memory
    imbalance        95th over 5th percentile of the neurons' rotation, over that of pure noise
    radial_gradient  cosine of gradient and weight. Like `update`, the RMS length of a step, only if `is_sensitive`
    """
    dead = history.series("dead_vectors")[history.window]
    predicted = reference(history, "angular_update")
    norm = history.series("norm", "rms")
    radial = {"radial_gradient": nan, "update": nan}
    if is_sensitive:
        radial = {
            "radial_gradient": history.mean(history.series("grad_weight_cosine")),
            "update": history.mean(history.series("update_norm", "rms")),
        }
    return {
        "diverged": history.diverged,
        "state": "not finite" if history.diverged else state_of_run(history),
        "reference": "forecast" if np.isfinite(history.series("forecast_angular_update")).any() else "equilibrium",
        "rotation": history.rms(history.rms_angle),
        "predicted_rotation": history.rms(predicted),
        "rotation_ratio": history.rms(finite_ratio(history.rms_angle, predicted)),
        "norm": history.mean(norm),
        "norm_ratio": history.mean(positive_ratio(norm, reference(history, "norm"))),
        "decay_ratio": history.mean(finite_ratio(history.series("lambda_e", "q50"), history.series("weight_decay"))),
        "alignment": history.mean(history.series("alignment")),
        "imbalance": history.mean(history.quantile_ratio()) / noise_ratio(history.layer.fan_in, history.layer.vectors),
        # The smallest count, because a vector is dead if it never rotated in the whole window.
        "dead_vectors": float(np.fmin.reduce(dead)) if dead.size else nan,
        "frozen_share": history.mean(finite_ratio(history.series("frozen_entries"), history.series("entries"))),
        "settled_at": history.settled_at,
        **radial,
    }


def distributions(run: Run, layer: str, at: int | None = None) -> dict[str, list[dict[str, Any]]]:
    """Return the distributions of each quantity at a few steps, and at the sample nearest to the step `at`."""
    # The last sample of a run may have norms and no rotation.
    known = np.flatnonzero(np.isfinite(run.series(layer, "angular_update")))
    places = np.linspace(0, len(known) - 1, SHOWN_STEPS if known.size else 0).round().astype(int)
    nearest = [] if at is None or not known.size else [int(np.abs(run.steps[known] - at).argmin())]
    samples = known[np.unique([*places, *nearest]).astype(int)].tolist()
    quantities = [name for name in DISTRIBUTIONS if name in run.quantities]
    shown = {name: distributions_at(run, layer, name, samples) for name in quantities}
    return {name: [item for item in items if item is not None] for name, items in shown.items()}


def distributions_at(run: Run, layer: str, quantity: str, samples: Sequence[int]) -> list[dict[str, Any] | None]:
    """Return the number of vectors in each bin, and the vectors with the smallest and largest value, at some samples.

    Bin k counts 2^((k-96)/2) ≤ |x| < 2^((k-95)/2), and `counts` begins with bin `first`. Missing ids are -1.
    Samples are given by index. None if the layer was not measured there.
    """
    steps = run.steps
    smallest = run.series(layer, quantity, "min")
    largest = run.series(layer, quantity, "max")
    shown: list[dict[str, Any] | None] = []
    for sample in samples:
        step = int(steps[sample])
        counts = run.histogram(layer, quantity, step)
        filled = np.flatnonzero(counts)
        if not filled.size:
            shown.append(None)
            continue
        least_id, most_id = run.extremes(layer, quantity, step)
        shown.append(
            {
                "step": step,
                "first": int(filled[0]),
                "counts": counts[filled[0] : filled[-1] + 1].tolist(),
                "least": float(smallest[sample]),
                "least_id": least_id,
                "most": float(largest[sample]),
                "most_id": most_id,
            }
        )
    return shown
