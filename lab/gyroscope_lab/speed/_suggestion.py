"""Learning rates suggested before training, and how often they are near the best one."""

from collections.abc import Callable

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.speed._alarm import default_lrs, usual_lr
from gyroscope_lab.speed._runs import Mask, Runs, at_best

# Factors within which a suggested learning rate counts as near the best one.
FACTORS = (2.0, 3.0)
# Forecast quantities. A suggestion sets one of them to its value in good runs.
FORECASTS: dict[str, Callable[[Runs], Array]] = {
    "forecast angle to the start": lambda runs: runs.forecast_total,
    "forecast mid-run rotation": lambda runs: runs.forecast_mid,
}


def suggested_lrs(runs: Runs, values: Array, target: float) -> Array:
    """Return the learning rate at which each cell reaches the target, interpolated, or inf or 0 outside its runs.

    Forecasts exist only for the learning rates that were run. The search covers a wide range on each side of the best,
    so a learning rate outside it counts as far from the best.
    """
    suggested = []
    for cell in np.unique(runs.cell):
        own = (runs.cell == cell) & (values > 0)
        order = np.argsort(runs.place[own])
        # A higher learning rate never rotates less. Apart from rounding, forecasts increase.
        logarithms = np.maximum.accumulate(np.log(values[own][order]))
        logarithm = np.interp(np.log(target), logarithms, np.log(runs.lr[own][order]), left=-np.inf, right=np.inf)
        suggested.append(np.exp(logarithm))
    return np.array(suggested)


def suggestions(choosing: Runs, judged: Runs) -> dict[str, Array]:
    """Return the suggested learning rate of each judged cell, by method. The choosing half sets the targets."""
    _, first = np.unique(judged.cell, return_index=True)
    optimizers = [name.partition(",")[0] for name in judged.optimizer[first]]
    tuned = default_lrs(choosing)
    methods = {
        "usual lr of the optimizer": np.array([usual_lr(name) for name in optimizers]),
        "median best lr of the optimizer": np.array([tuned.get(name, np.nan) for name in optimizers]),
    }
    _, first_choosing = np.unique(choosing.cell, return_index=True)
    choosing_optimizers = np.array([name.partition(",")[0] for name in choosing.optimizer[first_choosing]])
    for name, unit in FORECASTS.items():
        best = at_best(choosing, unit(choosing))
        methods[f"{name}, one target"] = suggested_lrs(judged, unit(judged), _median(best))
        by_optimizer = {
            each: suggested_lrs(judged, unit(judged), _median(best[choosing_optimizers == each]))
            for each in np.unique(choosing_optimizers)
        }
        own = [by_optimizer[each][cell] for cell, each in enumerate(optimizers)]
        methods[f"{name}, a target for each optimizer"] = np.array(own)
    return methods


def _median(values: Array) -> float:
    return float(np.exp(np.median(np.log(values))))


def near_best(judged: Runs, suggested: Array, factor: float) -> Mask:
    """Return which cells have a suggestion within a factor of their best learning rate."""
    best = at_best(judged, judged.lr)
    with np.errstate(divide="ignore"):
        return np.asarray(np.abs(np.log(suggested / best)) <= np.log(factor))
