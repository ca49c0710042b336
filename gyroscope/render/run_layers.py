"""One layer: its line in the table, the spread of its neurons, and their distributions at a few steps."""

from collections.abc import Sequence

import numpy as np

from gyroscope.advice.balance import noise_ratio
from gyroscope.advice.history import LayerHistory
from gyroscope.render.run_data import DISTRIBUTIONS, Array, Distribution, LayerSummary, Spread
from gyroscope.store import Run
from gyroscope.theory.law import over

LOOKS = 7
"""Steps of a run at which a page in a file holds the distributions: the first, the last and some between."""


def summary(reading: LayerHistory) -> LayerSummary:
    """A layer in one line, over the same part of the run that verdicts are about."""
    dead = reading.series("dead_vectors")[reading.window]
    dead = dead[np.isfinite(dead)]
    return LayerSummary(
        rotation=reading.mean(reading.angle),
        predicted_rotation=reading.mean(reading.predicted_angle),
        rotation_ratio=reading.speed,
        norm=reading.mean(reading.series("norm", "rms")),
        norm_ratio=reading.mean(reading.distance),
        decay_ratio=reading.mean(_ratio(reading.series("lambda_e", "q50"), reading.series("weight_decay"))),
        kappa=reading.mean(reading.series("kappa", "q50")),
        imbalance=reading.mean(reading.quantile_ratio()) / noise(reading),
        dead_vectors=float(dead.min()) if dead.size else float("nan"),
        frozen_share=reading.mean(_ratio(reading.series("frozen_entries"), reading.series("entries"))),
        settled_at=reading.settled_at,
    )


def spread(reading: LayerHistory) -> Spread:
    """Quantiles of the neurons' rotation over its median."""
    median = reading.series("angular_update", "q50")
    ratios = {
        name: reading.mean(_ratio(reading.series("angular_update", name), median))
        for name in ("q05", "q25", "q75", "q95")
    }
    return Spread(**ratios, noise=noise(reading))


def noise(reading: LayerHistory) -> float:
    """95th over 5th percentile of the rotation in a single step, if nothing but white noise turns the neurons."""
    return noise_ratio(reading.layer.fan_in, reading.layer.vectors)


def distributions(run: Run, layer: str) -> dict[str, list[Distribution]]:
    """Of each quantity at a few steps."""
    places = np.unique(np.linspace(0, len(run.steps) - 1, LOOKS).round().astype(int))
    wanted = [name for name in DISTRIBUTIONS if name in run.quantities]
    found = {name: distributions_at(run, layer, name, places.tolist()) for name in wanted}
    return {name: [one for one in ones if one is not None] for name, ones in found.items()}


def distributions_at(run: Run, layer: str, quantity: str, places: Sequence[int]) -> list[Distribution | None]:
    """At some of the run's samples; None where the layer was not measured in it."""
    steps, ends = run.steps, (run.series(layer, quantity, "min"), run.series(layer, quantity, "max"))
    return [_distribution(run, layer, quantity, int(steps[place]), place, ends) for place in places]


def _distribution(
    run: Run, layer: str, quantity: str, step: int, place: int, ends: tuple[Array, Array]
) -> Distribution | None:
    counts = run.histogram(layer, quantity, step)
    filled = np.flatnonzero(counts)
    if not filled.size:
        return None
    first, last = int(filled[0]), int(filled[-1])
    least, most = run.extremes(layer, quantity, step)
    return Distribution(
        step=step,
        first=first,
        counts=counts[first : last + 1].tolist(),
        least=float(ends[0][place]),
        least_id=least,
        most=float(ends[1][place]),
        most_id=most,
    )


def _ratio(numerator: Array, denominator: Array) -> Array:
    ratio = np.asarray(over(numerator, denominator))
    return np.where(np.isfinite(ratio), ratio, np.nan)
