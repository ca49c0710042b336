"""Averaged motion of a weight vector under noise: the recursions behind every forecast.

A step is  w <- (1-a) w - u,  and norm and angle follow from E⟨w,u⟩ and E‖u‖² alone. Rules whose update is linear in
weight, momentum and gradient share one recursion of E‖w‖², E⟨w,m⟩ and E‖m‖² with their own coefficients and step size.

A moment follows  x' = keep·x + added,  where `added` depends on the norm. Many steps are solved at once: from a guess
of all norms follow all moments and better norms, until they agree with the guess.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from gyroscope._types import Array, Mask, Number
from gyroscope.theory.cautious import TINY, MaskedDecay, masked_decay
from gyroscope.theory.law import Correlation, Weights

# Steps that are solved at once: at first, and at most. More would not fit in a cache.
FIRST_LENGTH = 16
MAX_LENGTH = 1024
# Relative difference between guessed and resulting moments at which steps are solved. Most rounds divide it by ten or
# more.
TOLERANCE = 1e-13
# Rounds after which fewer steps are tried.
MAX_ROUNDS = 24
# Rounds below which more steps are tried next time.
FEW_ROUNDS = 12
# The smallest product of `keep` by which sums are divided. Float64 ends at 1e-308.
SMALLEST_PRODUCT = 1e-250
# Steps in which averages fill: five memories of a momentum of 0.99. Adam's v is corrected for what it lacks.
FILLING = 500


class Step(NamedTuple):
    """Second moments of a step  w <- (1-a) w - u, averaged over the noise. Several steps are (steps, layers)."""

    decay: Number  # a
    cross: Number  # E⟨w, u⟩
    square: Number  # E‖u‖²
    norm2: Number  # E‖w‖² after the step

    def angles(self, before2: Array) -> Array:
        """Return the angle of each step in radians. `before2` is E‖w‖² before the first."""
        start2 = np.concatenate([before2[None], self.norm2[:-1]])
        # Rounding may bring the difference below 0 if a step is purely radial.
        across2 = np.maximum(self.square * start2 - self.cross * self.cross, 0.0)
        along = (1 - self.decay) * start2 - self.cross
        # arcsin takes half the time of arctan2, and all digits of a small angle are in `across2`.
        angle = np.arcsin(np.sqrt(across2 / (across2 + along * along)))
        return np.asarray(np.where(along < 0, np.pi - angle, angle))


# The moments of a motion by attribute, before each step and after the last: (steps + 1, layers).
Moments: TypeAlias = dict[str, Array]
# From a part of the steps, and a guess of their moments, to the steps and to better moments.
Improve: TypeAlias = Callable[[slice, Moments], tuple[Step, Moments]]


def filtered(start: Array, keep: Array, added: Array) -> Array:
    """Return x_0 … x_n of  x_t = keep_t·x_{t-1} + added_t  from x_0 = `start`, along the first axis.

    >>> filtered(np.array([1.0]), np.array([[0.5], [0.5]]), np.array([[0.0], [1.0]])).ravel().tolist()
    [1.0, 0.5, 1.25]
    """
    values = np.empty((len(added) + 1, start.size))
    values[0] = start
    product = np.cumprod(keep, axis=0)
    if np.abs(product[-1]).min() >= SMALLEST_PRODUCT:
        np.cumsum(added / product, axis=0, out=values[1:])
        values[1:] += start
        values[1:] *= product
    elif not keep.any():
        values[1:] = added
    elif len(added) == 1:
        values[1] = keep[0] * start + added[0]
    else:
        half = len(added) // 2
        values[: half + 1] = filtered(start, keep[:half], added[:half])
        values[half:] = filtered(values[half], keep[half:], added[half:])
    return values


class Motion(ABC):
    """A rule's averaged motion: the current moments and the number of steps before.

    `rule` may be replaced between steps by one of the same kind, because moments belong to the weights.
    """

    def __init__(self, rule: Any, norm2: Array, **moments: Array) -> None:
        self.rule = rule
        self.norm2 = norm2
        self.done = 0
        self._length = FIRST_LENGTH
        self._names = ("norm2", *moments)
        vars(self).update(moments)

    def advance(self, lr: Array, weights: Weights) -> Step:
        """Take the next steps at these learning rates. Arrays are (steps, layers)."""
        improve = self._improve(lr, weights)
        solved = []
        first = 0
        with np.errstate(all="ignore"):  # an early guess may be far off
            while first < len(lr):
                step = self._solve(improve, slice(first, min(first + self._length, len(lr))))
                first += len(step.norm2)
                solved.append(step)
        self.done += len(lr)
        return solved[0] if len(solved) == 1 else Step(*map(np.concatenate, zip(*solved, strict=True)))

    def _solve(self, improve: Improve, part: slice) -> Step:
        """Return steps from the first of `part` on, all of them if they can be solved in a few rounds."""
        steps = part.stop - part.start
        guess = {name: np.broadcast_to(value, (steps + 1, value.size)) for name, value in self.moments().items()}
        for rounds in range(MAX_ROUNDS):
            step, moments = improve(part, guess)
            # Only the first two are guessed. The others follow from them.
            if steps == 1 or all(_agree(moments[name], guess[name]) for name in self._names[:2]):
                vars(self).update({name: values[-1] for name, values in moments.items()})
                self._length = min(2 * steps if rounds < FEW_ROUNDS else steps, MAX_LENGTH)
                return step
            guess = moments
        return self._solve(improve, slice(part.start, part.start + steps // 2))

    def fill(self, lr: float, weights: Weights) -> None:
        """Fill the averages of the gradient while the norm stays, for weights that have been trained before."""
        norm2 = self.norm2.copy()
        for _ in range(FILLING):
            self.advance(np.array([lr]), weights)
            self.norm2 = norm2

    def moments(self) -> dict[str, Array]:
        """Return the current moments by attribute."""
        return {name: getattr(self, name) for name in self._names}

    def state(self) -> dict[str, Any]:
        """Return the current moments in lists and numbers, without the rule, for a file."""
        return {"done": self.done, **{name: values.tolist() for name, values in self.moments().items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        for name, value in state.items():
            setattr(self, name, np.array(value) if isinstance(value, list) else value)

    @abstractmethod
    def _improve(self, lr: Array, weights: Weights) -> Improve:
        """Return the function that solves parts of the next steps, from the current moments and a guess."""


def _agree(values: Array, guess: Array) -> bool:
    difference = np.abs(values - guess)[:-1].max(0)
    return bool((difference <= TOLERANCE * np.abs(values).max(0)).all())


class Combination(NamedTuple):
    """A vector as a combination of the weight, the momentum before the step and the gradient."""

    weight: Number
    momentum: Number
    gradient: Number


class StepNormaliser(NamedTuple):
    """D in the step size s = scale·sqrt(size/D):  D <- keep·D + weight·E‖w‖² + momentum·E‖m‖² + E‖g‖².

    Adam's v (keep = β2, weight = λ², unit = 1-β2) and Lion's E‖c‖² (keep = 0) are both such a D. D counts gradients in
    full and `unit`·D is the true average, so D is rescaled if the unit changes.
    """

    keep: Number = 0.0
    weight: Number = 0.0
    momentum: Number = 0.0
    unit: Number = 1.0


@dataclass(frozen=True)
class LinearSteps:
    """Steps  w <- (1-a) w - s·update,  m <- momentum,  update and momentum linear in weight, momentum and gradient.

    s = scale, or scale·sqrt(size/D) if D is given and the step is not `unadapted`. Settings that change during the run
    make coefficients arrays over steps.
    """

    decay: Array  # for each step
    scale: Array  # for each step
    update: Combination
    momentum: Combination
    D: StepNormaliser | None = None
    unadapted: Mask | None = None
    excess: float = 1.0  # E‖u‖² over E‖s·update‖², above 1 if the update adds its own noise
    coupling: Number = 1.0  # E⟨u, m'⟩ over E⟨s·update, m'⟩, not 1 if that noise is correlated over steps
    unit_grad2: Number = 1.0  # E‖g‖²·E‖w‖², for each layer
    size: Number = 1.0  # for each layer


@final
class LinearMotion(Motion):
    """Motion of a rule whose `linear_steps` give the coefficients at learning rates, steps done and weights.

    y = E‖w‖², p = E⟨w,m⟩, q = E‖m‖², and D as in `StepNormaliser`. The share of a cautious decay depends on them.
    """

    def __init__(self, rule: Any, norm2: Array) -> None:
        super().__init__(rule, norm2, **{name: np.zeros_like(norm2) for name in ("_p", "_q", "_D")})
        self._unit: float | None = None  # D's, of the last step

    def _improve(self, lr: Array, weights: Weights) -> Improve:
        steps: LinearSteps = self.rule.linear_steps(lr, self.done, weights)
        normaliser = steps.D or StepNormaliser()
        unit = np.broadcast_to(normaliser.unit, len(lr))
        before = np.append(unit[0] if self._unit is None else self._unit, unit[:-1])
        self._unit = float(unit[-1])
        unadapted = steps.D is None if steps.unadapted is None else steps.unadapted
        by_step = (steps.decay, steps.scale, steps.coupling, unadapted, *steps.update, *steps.momentum)
        by_step = (*by_step, normaliser.keep * (before / unit), normaliser.weight, normaliser.momentum)
        columns = [np.broadcast_to(values, len(lr))[:, None] for values in by_step]

        is_coupled = np.any(steps.update.weight) or np.any(steps.momentum.weight)
        is_cautious = self.rule.cautious_decay

        def improve(part: slice, guess: Moments) -> tuple[Step, Moments]:
            a, scale, coupling, unadapted, *coefficients = (column[part] for column in columns)
            # Of w, m and g in the update, of the same in the new momentum, and of D, w and m in the new D.
            uw, um, ug, mw, mm, mg, keep_D, Dw, Dm = coefficients
            y = guess["norm2"][:-1]
            p = guess["_p"][:-1]
            g2 = steps.unit_grad2 / y
            q = filtered(self._q, mm * mm, mg * mg * g2 + (mw * (mw * y + 2 * mm * p) if is_coupled else 0.0))
            s = scale
            D = np.broadcast_to(self._D, q.shape)
            if steps.D:
                D = filtered(self._D, keep_D, g2 + Dm * q[:-1] + (Dw * y if is_coupled else 0.0))
                s = np.where(unadapted, scale, scale * np.sqrt(steps.size / D[1:]))
            # E‖update‖² without the part of w.
            update2 = um * um * q[:-1] + ug * ug * g2
            masked = MaskedDecay(a)
            if is_cautious:
                linear2 = np.maximum(s * s * update2, TINY * y)
                masked = masked_decay(a, s * um * p / np.sqrt(y * linear2), np.sqrt(y / linear2))
            left = 1 - masked.decay
            pushed = masked.push * s
            coupled = pushed * coupling
            keep = left * mm
            added = -coupled * (um * mm * q[:-1] + ug * mg * g2)
            if is_coupled:
                keep = keep - coupled * (uw * mm + um * mw)
                added = added + (left - coupled * uw) * mw * y
            p = filtered(self._p, keep, added)
            power = (masked.push * masked.push + (steps.excess - 1)) * (s * s)
            radial = um * p[:-1]
            square = power * (update2 + 2 * uw * radial if is_coupled else update2)
            # The weight's own part of cross and square is kept, because added it would not converge at a strong decay.
            own = power * uw * uw + masked.noise
            y = filtered(self.norm2, left * left - 2 * left * pushed * uw + own, square - 2 * left * pushed * radial)
            cross = pushed * (uw * y[:-1] + radial)
            square = square + own * y[:-1]
            if is_cautious and steps.excess > 1:  # a sign: longer steps that point outwards less
                longer = 2 * masked.sign_overlap * np.sqrt(steps.excess * linear2 * y[:-1])
                square = square + longer
                cross = cross + longer / (2 * left)
            moments = {"norm2": y, "_p": p, "_q": q, "_D": D}
            return Step(np.broadcast_to(masked.decay, cross.shape), cross, square, y[1:]), moments

        return improve


class StationarySteps(NamedTuple):
    """Decay and size of each update, and their correlation. E‖u‖² is the layer's `size` times `update_rms`²."""

    decay: Array
    update_rms: Array
    correlation: Correlation
    size: Number = 1.0


@final
class StationaryMotion(Motion):
    """Motion under updates of known size, the rule's `stationary_steps`, whose autocorrelation is first·ratio^(k-1).

    The overlap o = E⟨w, u⟩/update_rms follows  o' = (1-a)·ratio·o - first·update_rms·size  if the decay is plain.
    """

    def __init__(self, rule: Any, norm2: Array) -> None:
        super().__init__(rule, norm2, _overlap=np.zeros_like(norm2))

    def _improve(self, lr: Array, weights: Weights) -> Improve:
        decay, update_rms, correlation, size = self.rule.stationary_steps(lr, weights)
        by_step = (decay, update_rms, correlation.first, correlation.ratio)
        columns = [np.broadcast_to(values, len(lr))[:, None] for values in by_step]

        def improve(part: slice, guess: Moments) -> tuple[Step, Moments]:
            a, rms, first, ratio = (column[part] for column in columns)
            y = guess["norm2"][:-1]
            masked = MaskedDecay(a)
            if self.rule.cautious_decay:
                length = np.maximum(rms * size**0.5, np.sqrt(TINY * y))
                masked = masked_decay(a, guess["_overlap"][:-1] / np.sqrt(y * size), np.sqrt(y) / length)
            left = 1 - masked.decay
            pushed = masked.push * rms
            overlap = filtered(self._overlap, left * ratio, -first * pushed * size + 0 * y)
            cross = pushed * overlap[:-1]
            square = pushed * pushed * size
            y = filtered(self.norm2, left * left + masked.noise, square - 2 * left * cross)
            step = Step(np.broadcast_to(masked.decay, cross.shape), cross, square + masked.noise * y[:-1], y[1:])
            return step, {"norm2": y, "_overlap": overlap}

        return improve
