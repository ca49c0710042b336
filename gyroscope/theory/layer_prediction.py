"""What theory predicts for each layer of a run: equilibrium, forecast and the warmup that its start needs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from gyroscope._types import Array
from gyroscope.theory.convergence import MEMORY_PASSED
from gyroscope.theory.forecast import SETTLED, Forecast, forecast
from gyroscope.theory.law import Equilibrium, Weights, over
from gyroscope.theory.rules.base import UpdateRule
from gyroscope.theory.schedules import Schedule, constant

# Memories of the momentum after a warmup within which a start turns fastest: the momentum is then 99 % filled.
MEMORIES = 5
# Steps at most that are followed after a warmup, so that a momentum of 0.999999 is answered in seconds: they hold
# five memories of any momentum up to 0.9995. A later maximum is still seen in the forecast of the whole run.
MOST_FILLING = 10_000
# Part of those steps that is looked at first: most starts that are too fast are so early, which saves the rest.
EARLY = 16
# Run over warmup below which a warmup is no remedy: the norm itself then starts too small.
SHORTEST_RUN = 10


@final
@dataclass(frozen=True)
class InitialLayer:
    """A kind of weight vector before the first step: its sizes, its gradient if known, and its RMS norm.

    The vectors of an embedding are tokens. They are predicted and not judged: a rare token rotates late.
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
        """The inputs that the rule's norm needs and that were not given."""
        return tuple(name for name in rule.needs if self.known[name] is None)


@final
@dataclass(frozen=True)
class LayerPrediction:
    """What one kind of layer will do under a rule and a schedule; the forecast is None where an input is missing."""

    layer: InitialLayer
    rule: UpdateRule
    schedule: Schedule
    equilibrium: Equilibrium
    forecast: Forecast | None = None
    warmup: int | None = None
    """Steps of warmup that keep the start within its equilibrium rotation; None where there is no such warmup."""
    settled_at: int | None = None
    """First step after the warmup within 10 % of equilibrium; None in a run shorter than its memory."""
    falls_out_at: int | None = None
    """First step after that with a norm too large for its rate."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What of the rule changes during the run: `forecast`'s weight_decay_schedule and betas_schedule, where given."""

    @property
    def name(self) -> str:
        """The layer's name."""
        return self.layer.name

    @property
    def total_decay(self) -> float:
        """X = Σ a_t over the run; NaN without forecast."""
        return float("nan") if self.forecast is None else float(self.forecast.total_decay)

    @property
    def is_longer_than_memory(self) -> bool:
        """Whether the run forgets where it started, X ≥ 1, so that equilibrium is what to compare it with."""
        return self.rule.keeps_norm or self.total_decay >= MEMORY_PASSED

    @property
    def grows_without_end(self) -> bool:
        """Whether there is no norm to settle at, as without decay, or where steps are relative to the norm."""
        return self.equilibrium.norm is not None and bool(np.isinf(self.equilibrium.norm))

    @property
    def base_speed(self) -> float | None:
        """How many times as fast the plain rule would turn this layer on average, from the same norm.

        None where nothing holds the norm, where the rule follows the plain one, or where an input of that is missing.
        """
        plain = self.rule.plain
        if plain is self.rule or self.rule.follows_base or self.layer.missing(plain):
            return None
        course = forecast(plain, self.schedule, norm=self.layer.norm, **self.layer.known, **self.changes)
        known = np.isfinite(course.angular_update)  # RAdam's first steps may not be
        return float(course.angular_update[known].mean() / course.equilibrium_angular_update[known].mean())

    @property
    def fastest(self) -> tuple[float, int]:
        """The largest angle of a step over the equilibrium's at full rate, and that step; (nan, 0) without forecast."""
        if self.forecast is None:
            return float("nan"), 0
        angles = self.forecast.angular_update
        step = int(np.nan_to_num(angles).argmax())
        return float(over(angles[step], self.forecast.equilibrium_angular_update.max())), step


def predict_layers(
    rule: UpdateRule,
    schedule: Schedule,
    layers: Sequence[InitialLayer],
    progress: Callable[[int], None] | None = None,
    **changes: Any,
) -> tuple[LayerPrediction, ...]:
    """Equilibrium of every layer and, where the inputs allow it, the forecast of the whole run.

    `progress` receives the number of steps done, of all layers together. `changes` are `forecast`'s
    weight_decay_schedule and betas_schedule; the warmup that a start needs is that of the rule as it is.

    >>> from gyroscope.theory import AdamW
    >>> layer = InitialLayer("weight", Weights(fan_in=256.0), norm=1.0)
    >>> prediction = predict_layers(AdamW(1e-2, 0.5), constant(2000), [layer])[0]
    >>> prediction.settled_at, prediction.warmup, prediction.fastest[1]
    (152, None, 0)
    """
    # Numbers far out of proportion overflow to infinity, which the sentences about them can state.
    with np.errstate(all="ignore"):
        complete = [layer for layer in layers if not layer.missing(rule)]
        forecasts = _forecasts(rule, schedule, complete, progress, changes)
        warmups = needed_warmups(rule, schedule.steps, complete)
        futures = dict(zip(complete, zip(forecasts, warmups, strict=True), strict=True))
        predictions = []
        for layer in layers:
            prediction = LayerPrediction(layer, rule, schedule, rule.equilibrium(**layer.known), changes=changes)
            if layer in futures:
                future, warmup = futures[layer]
                prediction = replace(prediction, forecast=future, warmup=warmup)
                # Below that a falling target may pass by the norm, which settles nowhere.
                if prediction.is_longer_than_memory:
                    # While lr climbs, a norm only passes its equilibrium: count from the end of the warmup.
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
    """The forecast of each layer; all are followed together, but for those that need their whole shape."""
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
    """The inputs that the rule needs, as arrays over layers."""
    return {name: np.array([layer.known[name] for layer in layers]) for name in rule.needs}


def needed_warmups(rule: UpdateRule, steps: int, layers: Sequence[InitialLayer]) -> list[int | None]:
    """For each layer the shortest warmup, to a few percent, with which no step turns faster than settled at full rate.

    Faster means by more than `forecast.SETTLED`, 10 %. None where a tenth of the run is not enough.
    """
    with np.errstate(all="ignore"):  # as in `predict_layers`
        search = WarmupSearch(rule, steps, layers)
        open_layers = search.split(0, list(range(len(layers))))[1]
        longest = max(steps // SHORTEST_RUN, 1)
        while open_layers and longest > 0:
            enough, open_layers = search.split(longest, open_layers)
            search.narrow(enough, 0, longest)
            # A long warmup may fail where a short one does not: norms shrink while lr is low.
            longest //= 2
    return [search.needed.get(number) for number in range(len(layers))]


@final
class WarmupSearch:
    """A bisection over warmups, for all layers of a rule together as long as they agree; `needed` is its result."""

    def __init__(self, rule: UpdateRule, steps: int, layers: Sequence[InitialLayer]) -> None:
        self.rule = rule
        self.steps = steps
        self.layers = layers
        angles = [float(rule.equilibrium(**layer.known).angular_update or 0.0) for layer in layers]
        self.limits = [(1 + SETTLED) * angle for angle in angles]
        self.needed: dict[int, int] = {}

    def split(self, warmup: int, numbers: list[int]) -> tuple[list[int], list[int]]:
        """The layers for which a warmup is enough, and the others; of 0 steps it is then needed."""
        filling = min(round(MEMORIES * self.rule.momentum_memory), MOST_FILLING)
        # Steps beyond the end of the run never happen; one step more is the first at full rate.
        horizon = min(warmup + filling, max(self.steps, warmup + 1))
        lr = self.rule.lr * constant(horizon, warmup)(np.arange(horizon))
        # A rule that needs the whole shape takes one layer at a time.
        batches = [[number] for number in numbers] if self.rule.whole_matrix else [numbers]
        enough = [number for batch in batches for number in self._slow_enough(batch, lr)]
        if warmup == 0:
            self.needed.update(dict.fromkeys(enough, 0))
        return enough, [number for number in numbers if number not in enough]

    def _slow_enough(self, numbers: list[int], lr: Array) -> list[int]:
        """The layers that stay within their limits at these learning rates."""
        if not numbers:
            return []
        layers = [self.layers[number] for number in numbers]
        weights = layers[0].weights if self.rule.whole_matrix else Weights(**_together(self.rule, layers))
        limits = np.array([self.limits[number] for number in numbers])
        motion = self.rule.motion(np.square([layer.norm for layer in layers]))
        fits = np.ones(len(numbers), dtype=bool)
        for part in np.split(lr, [len(lr) // EARLY]):
            if part.size and fits.any():
                before2 = motion.norm2.copy()
                # Angles that overflowed are NaN, and not within any limit.
                fits &= (motion.advance(part, weights).angles(before2) <= limits).all(0)
        return [number for number, fit in zip(numbers, fits, strict=True) if fit]

    def narrow(self, numbers: list[int], short: int, long: int) -> None:
        """Bisect between a warmup that is too short and one that is long enough."""
        # To a sixteenth, the few percent promised.
        if not numbers or long - short <= max(1, long // 16):
            self.needed.update(dict.fromkeys(numbers, long))
            return
        # Far apart, the geometric mean finds the order of magnitude first.
        middle = round((max(short, 1) * long) ** 0.5) if long > 4 * max(short, 1) else (short + long) // 2
        enough, too_short = self.split(middle, numbers)
        self.narrow(enough, short, middle)
        self.narrow(too_short, middle, long)
