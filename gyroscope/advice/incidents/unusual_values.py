"""Losses, gradients and updates beyond what their own past allows."""

from collections import deque
from collections.abc import Mapping
from math import exp, inf, log, nan
from typing import final

import numpy as np

from gyroscope._types import Array
from gyroscope.advice import thresholds as limit
from gyroscope.advice.incidents.baseline import Baseline, LayerBaselines
from gyroscope.advice.incidents.layer_values import Detected, LayerValues, jumped

# Logarithms of what a gradient that is too large leaves in a layer, and the deviation of each that counts at least:
# over most layers, and of one layer alone.
FLOORS = {
    "gradient": limit.INCIDENT_FLOOR,
    "update": limit.INCIDENT_FLOOR,
    "denominator": limit.DENOMINATOR_FLOOR,
}
LAYER_FLOORS = {
    "gradient": limit.LAYER_FLOOR,
    "update": limit.LAYER_FLOOR,
    "denominator": limit.LAYER_DENOMINATOR_FLOOR,
}


@final
class Losses:
    """Logged losses beyond what their own past allows: known of every step, the best that tells a batch from others."""

    def __init__(self) -> None:
        per_sample = limit.LOSSES_PER_SAMPLE
        level = per_sample * limit.INCIDENT_LEVEL
        self._baseline = Baseline(level, per_sample * limit.INCIDENT_MEMORY, limit.INCIDENT_FLOOR)
        self._last_step = -1

    @property
    def is_judging(self) -> bool:
        """Whether enough losses were logged to judge others by."""
        return self._baseline.is_judging

    def update(self, steps: Array, losses: Array) -> Detected | None:
        """What is unusual among the losses since the last sample."""
        unusual: list[tuple[int, int, float]] = []
        for step, loss in zip(steps.astype(int).tolist(), losses.tolist(), strict=True):
            # A loss that is not positive has no logarithm, and is not judged.
            excess = self._baseline.excess(log(loss) if 0 < loss < inf else nan)
            if excess > 0:
                unusual.append((self._last_step + 1, step, excess))
            self._last_step = step
        if not unusual:
            return None
        evidence = {"loss": exp(max(excess for _, _, excess in unusual))}
        return Detected(unusual[0][0], unusual[0][1], unusual[-1][1], (), "the loss", evidence)


@final
class Gradients:
    """Gradients, updates and Adam's denominators that go beyond their own past, in most layers at once or in one."""

    def __init__(self) -> None:
        self._baselines = {name: self._new_baseline(floor) for name, floor in FLOORS.items()}
        self._of_layers = LayerBaselines(list(LAYER_FLOORS.values()))
        self._past: deque[Array] = deque(maxlen=limit.INCIDENT_LEVEL)
        self._denominators: Array | float = nan
        self._lr: Array | float = nan
        self._last_step = -1

    def update(self, now: LayerValues) -> tuple[Detected | None, Detected | None]:
        """What is unusual in a sample: in most layers, and in a layer alone."""
        # η_e = lr/(‖w‖²·B): B grows between samples where one of the gradients between them was large.
        denominators = np.log(now["lr"] / (now["effective_lr"] * now["norm"] ** 2))
        series = {
            "gradient": np.log(now["unit_grad_norm"]),
            "update": np.log(now["tangential_update"] / now["lr"]),
            "denominator": denominators - self._denominators,
        }
        table = np.array(list(series.values()))
        table[~np.isfinite(table)] = nan
        series = dict(zip(series, table, strict=True))
        if jumped(now["lr"], self._lr, limit.MAX_SMOOTH_FACTOR).any():
            # Some optimizers' updates follow another power of the learning rate.
            self._baselines["update"] = self._new_baseline(FLOORS["update"])
        self._lr = now["lr"]
        self._denominators = denominators
        since = self._last_step + 1
        self._last_step = now.step
        return self._of_most(since, now.step, series), self._of_one(since, now, table)

    def _of_most(self, since: int, step: int, series: Mapping[str, Array]) -> Detected | None:
        """Layers in the order in which they differ from their own past."""
        excesses = {name: self._baselines[name].excess(_middle(values)) for name, values in series.items()}
        evidence = {name: exp(excess) for name, excess in excesses.items() if excess > 0}
        gradient = series["gradient"]
        if not evidence:
            self._past.append(gradient)
            return None
        deviations = gradient - np.array([_middle(layer) for layer in np.array(self._past).T])
        reached = [number for number in np.argsort(-deviations).tolist() if deviations[number] > limit.INCIDENT_FLOOR]
        return Detected(since, step, step, tuple(reached), "the gradients", evidence)

    def _of_one(self, since: int, now: LayerValues, table: Array) -> Detected | None:
        """The layer that differs most from its own past, and from what the other layers do."""
        excesses = self._of_layers.excess(table)
        if not excesses.any():
            return None
        first = excesses[excesses.any(1).argmax()]
        layer = int(first.argmax())
        found = zip(LAYER_FLOORS, excesses[:, layer].tolist(), strict=True)
        evidence = {name: exp(excess) for name, excess in found if excess > 0}
        evidence["beta2"] = float(now["beta2"][layer])
        return Detected(since, now.step, now.step, (layer,), "the layer", evidence)

    @staticmethod
    def _new_baseline(floor: float) -> Baseline:
        return Baseline(limit.INCIDENT_LEVEL, limit.INCIDENT_MEMORY, floor)


def _middle(values: Array) -> float:
    """Median over the layers that have a number."""
    known = np.sort(values[~np.isnan(values)])
    # NumPy's own median checks its arguments for longer than it takes.
    return float(known[(known.size - 1) // 2] + known[known.size // 2]) / 2 if known.size else nan
