"""One layer on a page: its line in the table, the spread of its neurons, and their distributions at a few steps."""

from collections.abc import Sequence

import numpy as np

from gyroscope._types import Array
from gyroscope.advice.history import LayerHistory
from gyroscope.advice.neuron_spread import noise_ratio
from gyroscope.report.run_data import DISTRIBUTIONS, Distribution, LayerSummary, Spread
from gyroscope.store import Run
from gyroscope.theory.law import safe_divide

# Steps of a run at which a page in a file holds the distributions: the first, the last and some between.
SHOWN_STEPS = 7


def summary(history: LayerHistory) -> LayerSummary:
    """Return a layer in one line, over the part of the run that findings judge. NaN once it has diverged."""
    dead = history.series("dead_vectors")[history.window]
    dead = dead[np.isfinite(dead)]
    return LayerSummary(
        diverged=history.diverged,
        reference=history.reference,
        rotation=history.rms(history.rms_angle),
        predicted_rotation=history.rms(history.reference_angle),
        rotation_ratio=history.speed,
        norm=history.mean(history.series("norm", "rms")),
        norm_ratio=history.mean(history.norm_ratio),
        decay_ratio=history.mean(_ratio(history.series("lambda_e", "q50"), history.series("weight_decay"))),
        rotation_discrepancy=history.mean(history.series("rotation_discrepancy", "q50")),
        alignment=history.mean(history.series("alignment")),
        imbalance=history.mean(history.quantile_ratio()) / noise(history),
        # The least: a vector is dead if it never rotated in the whole window.
        dead_vectors=float(dead.min()) if dead.size else float("nan"),
        frozen_share=history.mean(_ratio(history.series("frozen_entries"), history.series("entries"))),
        settled_at=history.settled_at,
    )


def spread(history: LayerHistory) -> Spread:
    """Quantiles of the neurons' rotation over its median."""
    median = history.series("angular_update", "q50")
    ratios = {
        name: history.mean(_ratio(history.series("angular_update", name), median))
        for name in ("q05", "q25", "q75", "q95")
    }
    return Spread(**ratios, noise=noise(history))


def noise(history: LayerHistory) -> float:
    """95th over 5th percentile of the rotation in a single step, if nothing but white noise rotates the neurons."""
    return noise_ratio(history.layer.fan_in, history.layer.vectors)


def distributions(run: Run, layer: str, at: int | None = None) -> dict[str, list[Distribution]]:
    """Return those of each quantity at a few steps, and at the sample next to the step `at`."""
    # The last sample of a run may have norms and no rotation.
    known = np.flatnonzero(np.isfinite(run.series(layer, "angular_update")))
    places = np.linspace(0, len(known) - 1, SHOWN_STEPS if known.size else 0).round().astype(int)
    nearest = [] if at is None or not known.size else [int(np.abs(run.steps[known] - at).argmin())]
    samples = known[np.unique([*places, *nearest]).astype(int)].tolist()
    quantities = [name for name in DISTRIBUTIONS if name in run.quantities]
    shown = {name: distributions_at(run, layer, name, samples) for name in quantities}
    return {name: [item for item in items if item is not None] for name, items in shown.items()}


def distributions_at(run: Run, layer: str, quantity: str, samples: Sequence[int]) -> list[Distribution | None]:
    """Return values at some samples, given by index. None if the layer was not measured there."""
    steps = run.steps
    smallest = run.series(layer, quantity, "min")
    largest = run.series(layer, quantity, "max")
    shown: list[Distribution | None] = []
    for sample in samples:
        step = int(steps[sample])
        counts = run.histogram(layer, quantity, step)
        filled = np.flatnonzero(counts)
        if not filled.size:
            shown.append(None)
            continue
        least_id, most_id = run.extremes(layer, quantity, step)
        shown.append(
            Distribution(
                step=step,
                first=int(filled[0]),
                counts=counts[filled[0] : filled[-1] + 1].tolist(),
                least=float(smallest[sample]),
                least_id=least_id,
                most=float(largest[sample]),
                most_id=most_id,
            )
        )
    return shown


def _ratio(numerator: Array, denominator: Array) -> Array:
    ratio = np.asarray(safe_divide(numerator, denominator))
    return np.where(np.isfinite(ratio), ratio, np.nan)
