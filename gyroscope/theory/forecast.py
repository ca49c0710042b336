"""Norm and rotation at every step of a run, under any schedule, for many layers at once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from gyroscope._checks import check_betas, check_decay, positive_array
from gyroscope._types import Array, Mask, Number
from gyroscope.theory.law import Weights, angle_to_start, plain, safe_divide
from gyroscope.theory.recursion import MAX_LENGTH, Step
from gyroscope.theory.rules.base import UpdateRule, require
from gyroscope.theory.schedules import Multiplier, multipliers

# A norm within this fraction of its equilibrium has settled.
SETTLED = 0.1
# The arrays of a forecast over steps and layers.
SERIES = ("norm", "angular_update", "equilibrium_norm", "equilibrium_angular_update", "forgotten")
# Steps × layers that a forecast will hold in memory: five arrays of 1.6 GB.
LARGEST = 200_000_000
# Steps of the first block, after which a search for a warmup may stop.
SHORTEST_BLOCK = 128


@final
@dataclass(frozen=True)
class Forecast:
    """A predicted run. Arrays are (steps,), or (steps, layers) if layers were given. Other values are then per layer.

    rule, lr            the rule, and its learning rate at each step
    initial_norm        norm before the first step
    norm                RMS norm after each step
    angular_update      angle of each step in radians
    equilibrium_norm, equilibrium_angular_update  where they would settle at the learning rate of the step
    forgotten           X = -Σ ln(1-a) after each step, of the decay that acts at its norm. NaN if it is unknown
    total_decay         X = Σ a_t, how often the run forgets its direction. Below 0.3 it never settles, above 3 it does
    """

    rule: UpdateRule
    lr: Array
    initial_norm: Number
    norm: Array
    angular_update: Array
    equilibrium_norm: Array
    equilibrium_angular_update: Array
    forgotten: Array
    total_decay: Number

    def layer(self, number: int) -> "Forecast":
        """Return one layer of a forecast of several."""
        series = {name: getattr(self, name)[:, number] for name in SERIES}
        start = float(self.initial_norm[number])
        return replace(self, initial_norm=start, total_decay=float(self.total_decay[number]), **series)

    @property
    def settled_at(self) -> Any:
        """First step after which the norm is within 10 % of its equilibrium, or None."""
        return self.settled_after(0)[0]

    @property
    def falls_out_at(self) -> Any:
        """First step, once settled, with a norm above 1.3 times its equilibrium (SGD: 1.2), or None.

        At the end of a schedule the equilibrium norm falls faster than the norm can decay.
        """
        return self.settled_after(0)[1]

    def settled_after(self, start: int) -> tuple[Any, Any]:
        """Return `settled_at` and `falls_out_at`, counted from step `start`, such as the end of a warmup."""
        # At a learning rate of 0 the equilibrium norm is 0 and the quotient inf or NaN, which is not near.
        settled: Mask = np.abs(safe_divide(self.norm, self.equilibrium_norm) - 1) <= SETTLED
        settled[:start] = False
        # Only what has settled can fall out. A start above equilibrium is on its way in.
        out = self.norm > self.rule.falls_out_ratio * self.equilibrium_norm
        return _first(settled), _first(np.maximum.accumulate(settled, axis=0) & out)

    @property
    def over_rotation(self) -> Any:
        """The angle of the first step over its equilibrium. Above 1, a warmup is needed."""
        return plain(safe_divide(self.angular_update[0], self.equilibrium_angular_update[0]))

    @property
    def filled_over_rotation(self) -> Any:
        """The same three memories of the momentum into the run, when it has 95 % of its size."""
        filled = min(round(3 * self.rule.momentum_memory), len(self.lr) - 1)
        return plain(safe_divide(self.angular_update[filled], self.equilibrium_angular_update[filled]))

    @property
    def angle_to_start(self) -> Array:
        """Angle between the initial weights and those after each step in radians, if gradients are noise.

            cos θ_t = ‖w_0‖·Π(1-a)/‖w_t‖     (`law.angle_to_start`)

        Rules that keep norms forget by their own memory. It is NaN if that is unknown, as for a Hyperball without
        momentum.

        >>> from gyroscope.theory import AdamW, cosine
        >>> course = forecast(AdamW(1e-2, 0.5), cosine(400, warmup=20), norm=1.0, fan_in=256)
        >>> f"{course.angle_to_start[0]:.3f} rad after the first step, {course.angle_to_start[-1]:.2f} at the end"
        '0.008 rad after the first step, 1.25 at the end'
        """
        return np.asarray(angle_to_start(self.initial_norm, self.norm, self.forgotten))

    @property
    def end_norm_ratio(self) -> Any:
        """Norm at the end over the equilibrium norm at the peak of the schedule."""
        return plain(safe_divide(self.norm[-1], self.equilibrium_norm[np.argmax(self.lr)]))


def forecast(
    rule: UpdateRule,
    schedule: Multiplier | Sequence[float] | None = None,
    *,
    steps: int | None = None,
    norm: npt.ArrayLike,
    fan_in: npt.ArrayLike | None = None,
    unit_grad_norm: npt.ArrayLike | None = None,
    shape: tuple[int, ...] | None = None,
    weight_decay_schedule: Multiplier | Sequence[float] | None = None,
    betas_schedule: Callable[[int], tuple[float, float]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Forecast:
    """Follow the mean norm and rotation of a scale-invariant vector through a run.

    A mean-field recursion of E‖w‖², E⟨w,m⟩ and E‖m‖², within 1 % of a random walk if the norm starts above 8 steps of
    lr·√C (Lion: 32). From one step, norms are 3 % off (Lion: 11 %). Ours: docs/theory.md, "Mean-field recursions".

    schedule               a named schedule, any function of the step, or one multiplier of lr for each step
    steps                  length of the run, needed if the schedule has none
    norm                   initial norm, like the next two a number or an array with one value for each layer
    fan_in                 entries of one vector
    unit_grad_norm         RMS gradient norm times the weight norm
    shape                  of the whole matrix, for Muon
    weight_decay_schedule  multiplier of the rule's weight decay, in the form of `schedule`
    betas_schedule         from the step to its (β1, β2), for AdamW and NAdam. Bias corrections use them, as in torch
    progress               called now and then with the number of steps done

    >>> from gyroscope.theory import AdamW, cosine
    >>> f = forecast(AdamW(1e-2, 0.5), cosine(2000, warmup=100), norm=1.0, fan_in=256)
    >>> f.settled_at, f.falls_out_at, f"{f.norm.max():.3f}"
    (31, 1298, '1.356')
    """
    lr = rule.lr * multipliers(schedule, steps)
    weights = Weights.checked(fan_in, unit_grad_norm, shape)
    require(weights, rule, rule.needs)
    start = positive_array("norm", norm)
    layers = _layers(norm=start, fan_in=weights.fan_in, unit_grad_norm=weights.unit_grad_norm)
    if len(lr) * max(layers, default=1) > LARGEST:
        raise ValueError(
            f"{len(lr)} steps × {max(layers, default=1)} layers do not fit in memory. Forecast fewer at once"
        )
    with np.errstate(over="ignore"):  # an infinite square is refused below, in a sentence
        # A copy, because the motion writes into it. Without layers it has one column.
        start2 = np.array(np.broadcast_to(np.square(start), layers or (1,)), dtype=np.float64)
    rules = RuleDuring(rule, _changing_settings(rule, lr, weight_decay_schedule, betas_schedule))
    norms, angles, forgotten = _follow(rules, start2, lr, weights, progress)
    equilibrium_norms, equilibrium_angles, total_decay = _equilibria(rules, start, lr, weights, start2.size)
    series = (norms, angles, equilibrium_norms, equilibrium_angles, forgotten)
    by_layer = {name: values.reshape(-1, *layers) for name, values in zip(SERIES, series, strict=True)}
    return Forecast(rule, lr, start, **by_layer, total_decay=plain(total_decay.reshape(layers)))


class RuleDuring(NamedTuple):
    """A rule, and its settings that change: one value for each step, along the last axis."""

    rule: UpdateRule
    settings: Mapping[str, Array] = MappingProxyType({})

    def at(self, index: Any) -> UpdateRule:
        """Return the rule of the steps that `index` takes from the last axis."""
        if not self.settings:
            return self.rule
        return self.rule.during(**{name: values[(..., *index)] for name, values in self.settings.items()})


def _changing_settings(
    rule: UpdateRule,
    lr: Array,
    weight_decay_schedule: Multiplier | Sequence[float] | None,
    betas_schedule: Callable[[int], tuple[float, float]] | None,
) -> dict[str, Array]:
    settings: dict[str, Array] = {}
    if rule.counts_steps:
        settings["steps_done"] = (rule.settings["steps_done"] or 0) + np.arange(len(lr), dtype=np.float64)
    if weight_decay_schedule is not None:
        if not rule.has_weight_decay:
            raise ValueError(f"{rule.name} has no weight decay that could change: leave out weight_decay_schedule")
        decays = rule.weight_decay * multipliers(weight_decay_schedule, len(lr))
        largest = np.argmax(lr * decays)
        check_decay(lr[largest], decays[largest])
        settings["weight_decay"] = decays
    if betas_schedule is not None:
        if not rule.betas_may_change:
            raise ValueError(f"betas_schedule is for AdamW and NAdam, not for {rule!r}: leave it out")
        pairs = [betas_schedule(t) for t in range(len(lr))]
        for pair in pairs:
            check_betas(pair)
        settings["betas"] = np.array(pairs, dtype=np.float64).T
    return settings


def _equilibria(
    rules: RuleDuring, start: Number, lr: Array, weights: Weights, layers: int
) -> tuple[Array, Array, Array]:
    """Return equilibrium norm and angle at the learning rate of every step, and the sum of the decays."""
    norm = np.empty((len(lr), layers), order="F")  # as in `_follow`
    total_decay = np.zeros(layers)
    first_angle = np.asarray(rules.at(np.s_[:1, None]).at(lr[:1, None], weights).angular_update)
    angle = np.empty((len(lr), first_angle.size))  # one column if it does not depend on the layer
    for first in range(0, len(lr), MAX_LENGTH):
        block = slice(first, first + MAX_LENGTH)
        eq = rules.at((block, None)).at(lr[block, None], weights)
        norm[block] = start if eq.norm is None else eq.norm
        angle[block] = eq.angular_update
        if eq.timescale is not None:
            total_decay += (np.zeros((len(lr[block]), 1)) + 1 / eq.timescale).sum(0)
    return norm, np.broadcast_to(angle, norm.shape), total_decay


def _follow(
    rules: RuleDuring, start2: Array, lr: Array, weights: Weights, progress: Callable[[int], None] | None
) -> tuple[Array, Array, Array]:
    """Return the norm after each step, the angle of each step, and the sum of the decays up to it."""
    # A layer's steps are contiguous, because sentences and pages read one layer at a time.
    norm, angle, forgotten = np.empty((3, start2.size, len(lr))).transpose(0, 2, 1)
    total = np.zeros(start2.size)
    with np.errstate(all="ignore"):  # overflow is refused below
        for block, step, angles in follow(rules, start2, lr, weights):
            if not (np.isfinite(step.norm2).all() and (step.norm2 > 0).all()):
                raise ValueError("Numeric overflow: check the magnitude of lr, weight decay and norms")
            np.sqrt(step.norm2, out=norm[block])
            angle[block] = angles
            forgotten[block] = total - np.cumsum(np.log1p(-step.forgets), axis=0)
            total = forgotten[block.stop - 1]
            if progress is not None:
                progress(block.stop)
    return norm, angle, forgotten


def follow(rules: RuleDuring, start2: Array, lr: Array, weights: Weights) -> Iterator[tuple[slice, Step, Array]]:
    """Yield blocks of steps at these learning rates, short ones at first, with the angles of each step."""
    motion = rules.rule.motion(start2)
    while motion.done < len(lr):
        first = motion.done
        block = slice(first, min(first + min(max(first, SHORTEST_BLOCK), MAX_LENGTH), len(lr)))
        before2 = motion.norm2
        motion.rule = rules.at((block,))
        step = motion.advance(lr[block], weights)
        yield block, step, step.angles(before2)


def _layers(**inputs: Number | None) -> tuple[int, ...]:
    shapes = {name: np.shape(value) for name, value in inputs.items() if value is not None}
    try:
        layers = np.broadcast_shapes(*shapes.values())
    except ValueError:
        raise ValueError(f"one value for each layer: the inputs have different lengths, {shapes}") from None
    if len(layers) > 1:
        raise ValueError(f"the inputs have shapes {shapes}: pass flat arrays, one value for each layer")
    return layers


def _first(mask: Mask) -> Any:
    """Return the index of the first True along axis 0, or None. With layers, return a tuple."""
    if mask.ndim == 1:
        return int(mask.argmax()) if mask.any() else None
    return tuple(_first(layer) for layer in mask.T)
