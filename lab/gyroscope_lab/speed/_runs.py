"""All runs of a result as one table, which of them are good, and measurements at the best learning rate."""

from dataclasses import dataclass, fields
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gyroscope.tools import Array
from gyroscope_lab.framework.experiment import Result
from gyroscope_lab.speed._lr_search import PLACES, lr_at
from gyroscope_lab.speed._training import QUANTITIES

Mask = NDArray[np.bool_]

# Fixed before the runs: loss over the best of the same task, optimizer, length and seed, minus 1.
GOOD = 0.03
BAD = 0.10
# Reference fan-in and run length of the corrections.
FAN_IN = 64.0
STEPS = 200.0


@final
@dataclass(frozen=True, eq=False)
class Runs:
    """One row for each run. `cell` numbers the settings that share a best run: task, optimizer, length and seed."""

    task: Array
    optimizer: Array
    steps: Array
    cell: Array
    seed: Array
    place: Array
    lr: Array
    loss: Array
    regret: Array
    """Loss over the best of the cell, minus 1."""
    best_place: Array
    """The place of the best learning rate of the cell, refined by a parabola."""
    peak: Array
    mid: Array
    end: Array
    total: Array
    memories: Array
    forecast_mid: Array
    forecast_total: Array
    fan_in: Array

    def where(self, chosen: Any) -> "Runs":
        """Return the chosen rows."""
        return Runs(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    @property
    def good(self) -> Mask:
        """Which runs are near the best of their cell."""
        return np.asarray(self.regret <= GOOD)

    @property
    def too_slow(self) -> Mask:
        """Which runs are bad at a learning rate below the best of their cell."""
        return np.asarray((self.regret > BAD) & (self.place < self.best_place))

    @property
    def too_fast(self) -> Mask:
        """Which runs are bad at a learning rate above the best of their cell."""
        return np.asarray((self.regret > BAD) & (self.place > self.best_place))


def table(result: Result[Any]) -> Runs:
    """Return the runs of all cells."""
    rows: list[dict[str, Any]] = []
    parts = list(result.config.parts)
    for seed in range(len(result["loss"])):
        for number, (task, optimizer, steps) in enumerate(parts):
            values = {name: result[name][seed, number] for name in QUANTITIES}
            cell = {"task": task, "optimizer": optimizer, "steps": steps, "cell": seed * len(parts) + number}
            rows += [{**cell, "seed": seed, **row} for row in _cell(values)]
    columns = {field.name: np.array([row[field.name] for row in rows]) for field in fields(Runs)}
    return Runs(**columns)


def _cell(values: dict[str, Array]) -> list[dict[str, float]]:
    """Return the runs of one cell. Each quantity has the shape (places,), with NaN for places without a run."""
    loss = values["loss"]
    best = refined_place(loss)
    lowest = np.nanmin(loss)
    return [
        {
            "place": place,
            "lr": lr_at(place),
            "best_place": best,
            "regret": loss[i] / lowest - 1,
            **{name: array[i] for name, array in values.items()},
        }
        for i, place in enumerate(PLACES)
        if np.isfinite(loss[i])
    ]


def refined_place(loss: Array) -> float:
    """Return the place of the lowest loss, refined by a parabola if it has two neighbours.

    >>> refined_place(np.array([np.nan] * 5 + [2.0, 1.0, 1.5] + [np.nan] * 6))
    -3.8333333333333335
    """
    i = int(np.nanargmin(loss))
    if 0 < i < len(loss) - 1 and np.isfinite(loss[i - 1]) and np.isfinite(loss[i + 1]):
        below, least, above = loss[i - 1 : i + 2]
        curvature = below + above - 2 * least
        shift = 0.5 * (below - above) / curvature if curvature > 0 else 0.0
        return PLACES[i] + float(shift)
    return float(PLACES[i])


def at_best(runs: Runs, values: Array) -> Array:
    """Return a value at the best learning rate of each cell, interpolated between two runs in logarithms."""
    found = []
    for cell in np.unique(runs.cell):
        own = (runs.cell == cell) & np.isfinite(values) & (values > 0)
        order = np.argsort(runs.place[own])
        places = runs.place[own][order]
        logarithms = np.log(values[own][order])
        found.append(np.exp(np.interp(runs.best_place[runs.cell == cell][0], places, logarithms)))
    return np.array(found)


def scatter(values: Array) -> float:
    """Return the factor by which values scatter: exp of the standard deviation of their logarithms.

    >>> f"{scatter(np.array([1.0, 4.0])):.2f}"
    '2.67'
    """
    return float(np.exp(np.std(np.log(values), ddof=1)))
