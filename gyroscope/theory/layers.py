"""What theory says about the layers of a run: equilibrium, forecast and the warmup that the start needs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gyroscope.theory.forecast import Forecast, forecast
from gyroscope.theory.law import Equilibrium, Weights
from gyroscope.theory.rules.base import UpdateRule
from gyroscope.theory.schedules import Schedule, constant

OVER_ROTATION = 1.1
"""Rotation over its equilibrium above which the start counts as too fast."""


@dataclass(frozen=True)
class Layer:
    """One kind of weight vector: what is known of its size, its gradient and where it starts."""

    name: str
    weights: Weights
    norm: float

    @property
    def known(self) -> dict[str, Any]:
        """The inputs of `equilibrium` and `forecast`."""
        return {name: getattr(self.weights, name) for name in ("fan_in", "unit_grad_norm", "shape")}

    def missing(self, rule: UpdateRule) -> tuple[str, ...]:
        """The inputs that the rule's norm needs and that were not given."""
        return tuple(name for name in rule.needs if self.known[name] is None)


@dataclass(frozen=True)
class Prediction:
    """What one kind of layer will do; the forecast is None where an input for it is missing."""

    layer: Layer
    equilibrium: Equilibrium
    forecast: Forecast | None
    warmup: int | None
    """Steps of warmup that keep the start within its equilibrium rotation; None where there is no such warmup."""
    settles_at: int | None = None
    """First step after the warmup within 10 % of equilibrium."""
    falls_out_at: int | None = None
    """First step after that with a norm too large for its rate."""


def predict(
    rule: UpdateRule, schedule: Schedule, layers: Sequence[Layer], progress: Callable[[int], None] | None = None
) -> tuple[Prediction, ...]:
    """Equilibrium of every layer and, where the inputs allow it, the forecast of the whole run."""
    told = [layer for layer in layers if not layer.missing(rule)]
    forecasts = iter(foretell(rule, schedule, told, progress))
    warmups = iter(needed_warmups(rule, schedule.steps, told))
    predictions = []
    for layer in layers:
        equilibrium = rule.equilibrium(**layer.known)
        if layer.missing(rule):
            predictions.append(Prediction(layer, equilibrium, None, None))
            continue
        course = next(forecasts)
        settled = course.settled_after(max(schedule.warmup - 1, 0))
        predictions.append(Prediction(layer, equilibrium, course, next(warmups), *settled))
    return tuple(predictions)


def foretell(
    rule: UpdateRule, schedule: Schedule, layers: Sequence[Layer], progress: Callable[[int], None] | None = None
) -> list[Forecast]:
    """The forecast of each layer; all are followed together, but for those that need their whole shape."""
    if not layers:
        return []
    if rule.whole_matrix:
        return [forecast(rule, schedule, norm=layer.norm, **layer.known, progress=progress) for layer in layers]
    inputs: dict[str, Any] = {name: np.array([layer.known[name] for layer in layers]) for name in rule.needs}
    told = None if progress is None else lambda done: progress(done * len(layers))
    course = forecast(rule, schedule, norm=np.array([layer.norm for layer in layers]), **inputs, progress=told)
    return [_column(course, number) for number in range(len(layers))]


def _column(course: Forecast, number: int) -> Forecast:
    """One layer of a forecast of several."""
    return Forecast(
        rule=course.rule,
        lr=course.lr,
        initial_norm=float(course.initial_norm[number]),
        norm=course.norm[:, number],
        angular_update=course.angular_update[:, number],
        equilibrium_norm=course.equilibrium_norm[:, number],
        equilibrium_angular_update=course.equilibrium_angular_update[:, number],
        total_decay=float(course.total_decay[number]),
    )


def at_equilibrium(rule: UpdateRule, layer: Layer) -> Layer:
    """The same layer, started at its equilibrium norm."""
    norm = rule.equilibrium(**layer.known).norm
    return replace(layer, norm=float(norm)) if norm is not None and 0 < norm < np.inf else layer


def needed_warmups(rule: UpdateRule, steps: int, layers: Sequence[Layer]) -> list[int | None]:
    """For each layer the shortest warmup, to a few percent, after which no step turns faster than at full rate settled.

    None where a tenth of the run would not do: then the norm itself starts too small, and a warmup is no remedy.
    """
    limits = [OVER_ROTATION * float(rule.equilibrium(**layer.known).angular_update or 0.0) for layer in layers]
    needed: dict[int, int] = {}

    def sorted_by(warmup: int, numbers: list[int]) -> tuple[list[int], list[int]]:
        """Those layers for which the warmup is enough, and the others."""
        horizon = constant(warmup + round(5 * rule.momentum_memory), warmup)
        starts = foretell(rule, horizon, [layers[number] for number in numbers])
        fits = {n: bool(f.angular_update.max() <= limits[n]) for n, f in zip(numbers, starts, strict=True)}
        return [n for n in numbers if fits[n]], [n for n in numbers if not fits[n]]

    def narrow(numbers: list[int], short: int, long: int) -> None:
        """Bisect, all layers together while they agree: `short` is too short and `long` enough."""
        if not numbers or long - short <= max(1, long // 16):
            needed.update(dict.fromkeys(numbers, long))
            return
        middle = round((max(short, 1) * long) ** 0.5) if long > 4 * max(short, 1) else (short + long) // 2
        enough, too_short = sorted_by(middle, numbers)
        narrow(enough, short, middle)
        narrow(too_short, middle, long)

    none, open_ones = sorted_by(0, list(range(len(layers))))
    needed.update(dict.fromkeys(none, 0))
    long = max(steps // 10, 1)
    while open_ones and long > 0:  # a long warmup may fail where a short one does: norms shrink while lr is low
        enough, open_ones = sorted_by(long, open_ones)
        narrow(enough, 0, long)
        long //= 2
    return [needed.get(number) for number in range(len(layers))]
