"""Predictions for each layer of a run: equilibrium, forecast and the warmup that its start needs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from gyroscope._types import Mask
from gyroscope.theory.convergence import MEMORY_PASSED
from gyroscope.theory.forecast import SETTLED, Forecast, RuleDuring, follow, forecast
from gyroscope.theory.law import Equilibrium, Weights, safe_divide
from gyroscope.theory.rules.base import UpdateRule
from gyroscope.theory.schedules import Schedule, constant

# Memories of the momentum after a warmup within which rotation is fastest. The momentum is then 99 % filled.
MEMORIES = 5
# Most steps that are computed after a warmup, so that a momentum of 0.999999 takes seconds. They contain five memories
# of any momentum up to 0.9995. The forecast of the whole run shows a later maximum.
MOST_FILLING = 10_000
# If a run is shorter than this many warmups, a warmup does not help, because the initial norm is too small.
SHORTEST_RUN = 10
# Radians per step. First steps at full rate that rotate a layer further cost loss: a GPT that began at 0.15 rad ended
# 0.3 nats higher than with a warmup, and one that began at 0.05 rad, 44 times its equilibrium rotation, did not.
MAX_START_ANGLE = 0.1
# Warmups that are tried, in steps, because people use round numbers: 10, 20, 50, 100 and so on.
WARMUPS = tuple(digit * 10**power for power in range(1, 6) for digit in (1, 2, 5))


@final
@dataclass(frozen=True)
class InitialLayer:
    """A kind of weight vector before the first step: its sizes, its gradient if known, and its RMS norm.

    The vectors of an embedding are tokens. They are predicted but not judged, because a rare token rotates late.
    """

    name: str
    weights: Weights
    norm: float
    is_embedding: bool = False

    @property
    def known(self) -> dict[str, Any]:
        """The inputs of `equilibrium` and `forecast`."""
        return {name: getattr(self.weights, name) for name in ("fan_in", "unit_grad_norm", "shape")}

    def missing(self, rule: UpdateRule) -> tuple[str, ...]:
        """Return the inputs that the rule's norm needs and that were not given."""
        return tuple(name for name in rule.needs if self.known.get(name) is None)


@final
@dataclass(frozen=True)
class LayerPrediction:
    """The prediction for one kind of layer under a rule and a schedule."""

    layer: InitialLayer
    rule: UpdateRule
    schedule: Schedule
    equilibrium: Equilibrium
    forecast: Forecast | None = None  # None if an input is missing
    warmup: int | None = None  # steps of warmup that keep the start below `MAX_START_ANGLE`, if there are any
    settled_at: int | None = None  # first step after the warmup within 10 % of equilibrium, if X ≥ 1
    falls_out_at: int | None = None  # first step after that with a norm too large for its learning rate
    changes: Mapping[str, Any] = field(default_factory=dict)  # `forecast`'s weight_decay_schedule and betas_schedule

    @property
    def name(self) -> str:
        """The layer's name."""
        return self.layer.name

    @property
    def total_decay(self) -> float:
        """X = Σ a_t over the run, NaN without forecast."""
        return float("nan") if self.forecast is None else float(self.forecast.total_decay)

    @property
    def is_longer_than_memory(self) -> bool:
        """Whether the run forgets its start, X ≥ 1, so that it is compared with equilibrium."""
        return self.rule.keeps_norm or self.total_decay >= MEMORY_PASSED

    @property
    def grows_without_end(self) -> bool:
        """Whether there is no norm to settle at: without decay, or if steps are relative to the norm."""
        return self.equilibrium.norm is not None and bool(np.isinf(self.equilibrium.norm))

    @property
    def fastest(self) -> tuple[float, int]:
        """The largest angle over the equilibrium's at full rate, and its step. (nan, 0) without forecast."""
        if self.forecast is None:
            return float("nan"), 0
        angles = self.forecast.angular_update
        step = int(angles.argmax())
        return float(safe_divide(angles[step], self.forecast.equilibrium_angular_update.max())), step


def predict_layers(
    rule: UpdateRule,
    schedule: Schedule,
    layers: Sequence[InitialLayer],
    progress: Callable[[int], None] | None = None,
    **changes: Any,
) -> tuple[LayerPrediction, ...]:
    """Return the equilibrium of every layer and, if the inputs allow it, the forecast of the whole run.

    `progress` receives the number of steps done, of all layers together. `changes` are `forecast`'s
    weight_decay_schedule and betas_schedule, which the needed warmup ignores.

    >>> from gyroscope.theory import AdamW
    >>> layer = InitialLayer("weight", Weights(fan_in=256.0), norm=1.0)
    >>> prediction = predict_layers(AdamW(1e-2, 0.5), constant(2000), [layer])[0]
    >>> prediction.settled_at, prediction.warmup, prediction.fastest[1]
    (152, 10, 0)
    """
    # Extreme settings overflow to infinity, which sentences can state.
    with np.errstate(all="ignore"):
        complete = [layer for layer in layers if not layer.missing(rule)]
        forecasts = _forecasts(rule, schedule, complete, progress, changes)
        warmups = needed_warmups(rule, schedule.steps, complete)
        futures = dict(zip(complete, zip(forecasts, warmups, strict=True), strict=True))
        predictions = []
        for layer in layers:
            future, warmup = futures.get(layer, (None, None))
            equilibrium = rule.equilibrium(**layer.known)
            prediction = LayerPrediction(layer, rule, schedule, equilibrium, future, warmup, changes=changes)
            # In a shorter run, a falling equilibrium may pass the norm, which does not settle.
            if future is not None and prediction.is_longer_than_memory:
                # While lr climbs, a norm only passes its equilibrium, so count from the end of the warmup.
                settled, out = future.settled_after(max(schedule.warmup - 1, 0))
                prediction = replace(prediction, settled_at=settled, falls_out_at=out)
            predictions.append(prediction)
    return tuple(predictions)


def _forecasts(
    rule: UpdateRule,
    schedule: Schedule,
    layers: Sequence[InitialLayer],
    progress: Callable[[int], None] | None,
    changes: Mapping[str, Any],
) -> list[Forecast]:
    """Return the forecast of each layer. All are computed together, unless they need their whole shape."""
    if not layers:
        return []
    if rule.whole_matrix:
        return [
            forecast(rule, schedule, norm=layer.norm, **layer.known, **changes, progress=progress) for layer in layers
        ]
    inputs = _together(rule, layers)
    norms = np.array([layer.norm for layer in layers])
    of_all = None if progress is None else lambda done: progress(done * len(layers))
    together = forecast(rule, schedule, norm=norms, **inputs, **changes, progress=of_all)
    return [together.layer(number) for number in range(len(layers))]


def _together(rule: UpdateRule, layers: Sequence[InitialLayer]) -> dict[str, Any]:
    """Return the inputs that the rule needs, as arrays over layers."""
    return {name: np.array([layer.known[name] for layer in layers]) for name in rule.needs}


def tried_warmups(steps: int) -> tuple[int, ...]:
    """Return the warmups that are tried in a run of `steps` steps: none, then those of `WARMUPS` up to its tenth.

    >>> tried_warmups(500)
    (0, 10, 20, 50)
    """
    return (0, *(warmup for warmup in WARMUPS if warmup <= steps // SHORTEST_RUN))


def needed_warmups(rule: UpdateRule, steps: int, layers: Sequence[InitialLayer]) -> list[int | None]:
    """Return for each layer the first warmup that keeps the start below `MAX_START_ANGLE`.

    If equilibrium at full rate is faster than that, the start may rotate 10 % faster than equilibrium. The warmup is
    one of `tried_warmups`, or None if none of them is enough.
    """
    needed: list[int | None] = [None] * len(layers)
    with np.errstate(all="ignore"):  # as in `predict_layers`
        for warmup in tried_warmups(steps):
            waiting = [number for number, known in enumerate(needed) if known is None]
            # A rule that needs the whole shape takes one layer at a time.
            for batch in [[number] for number in waiting] if rule.whole_matrix else [waiting]:
                fits = _is_enough(warmup, rule, steps, [layers[number] for number in batch])
                for number, fit in zip(batch, fits, strict=True):
                    needed[number] = warmup if fit else None
    return needed


def _is_enough(warmup: int, rule: UpdateRule, steps: int, layers: Sequence[InitialLayer]) -> Mask:
    """Return which layers rotate slowly enough during a warmup and while the momentum fills."""
    filling = min(round(MEMORIES * rule.momentum_memory), MOST_FILLING)
    # Steps beyond the end of the run never happen. One step after the warmup is the first at full rate.
    horizon = min(warmup + filling, max(steps, warmup + 1))
    lr = rule.lr * constant(horizon, warmup)(np.arange(horizon))
    fits = np.ones(len(layers), dtype=bool)
    if not layers:
        return fits
    weights = layers[0].weights if rule.whole_matrix else Weights(**_together(rule, layers))
    settled = [rule.equilibrium(**layer.known).angular_update or 0.0 for layer in layers]
    limits = np.maximum((1 + SETTLED) * np.array(settled, dtype=np.float64), MAX_START_ANGLE)
    start2 = np.square([layer.norm for layer in layers])
    for _, _, angles in follow(RuleDuring(rule), start2, lr, weights):
        # Angles that overflowed are NaN and exceed any limit.
        fits &= (angles <= limits).all(0)
        if not fits.any():  # most starts that are too fast are too fast early
            break
    return fits
