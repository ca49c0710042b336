"""Averaged motion of a weight vector under noise: the recursions behind every forecast.

A step is  w <- (1-a) w - u,  and norm and angle follow from E⟨w,u⟩ and E‖u‖² alone. A moment follows
x' = keep·x + added,  where `added` depends on the norm. Many steps are solved at once by Picard iteration: from a guess
of all norms follow all moments and better norms, until they agree with the guess.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from gyroscope._types import Array, Int64, Number
from gyroscope.theory.cautious import plain_equivalent
from gyroscope.theory.law import Correlation, Weights

# Steps that are solved at once: at first, and at most. More would not fit in a cache.
FIRST_LENGTH = 16
MAX_LENGTH = 2048
# Relative difference between guessed and resulting moments at which steps are solved. Most rounds divide it by ten or
# more. Forecasts differ from single steps by a few times this.
TOLERANCE = 1e-7
# Rounds after which fewer steps are tried.
MAX_ROUNDS = 24
# Rounds below which more steps are tried next time.
FEW_ROUNDS = 12
# Largest change per step of a squared norm's logarithm that a first guess assumes.
MAX_GROWTH = 1e-3
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
    forgets: Number  # share of its old direction that the weight loses: a, also if L2 in the gradient acts as decay

    def angles(self, before2: Array) -> Array:
        """Return the angle of each consecutive step in radians. `before2` is E‖w‖² before the first."""
        start2 = np.concatenate([before2[None], self.norm2[:-1]])
        # Rounding may bring the difference below 0 if a step is purely radial.
        across2 = np.maximum(self.square * start2 - self.cross * self.cross, 0.0)
        along = (1 - self.decay) * start2 - self.cross
        # arcsin takes half the time of arctan2, and all digits of a small angle are in `across2`.
        angle = np.arcsin(np.sqrt(across2 / (across2 + along * along)))
        return np.asarray(np.where(along < 0, np.pi - angle, angle))


class Series(NamedTuple):
    """A moment before and after each of some steps."""

    before: Array
    after: Array


# The moments of a motion by name before each step, a guess, and before and after each step, (steps, layers).
Guess: TypeAlias = dict[str, Array]
Moments: TypeAlias = dict[str, Series]
# From some of the steps and a guess of their moments, to the steps and to better moments.
Improve: TypeAlias = Callable[[slice, Guess], tuple[Step, Moments]]


def filtered(start: Array, keep: Number, added: Array) -> Series:
    """Return x before and after each step of  x <- keep·x + added  from `start`, along the first axis.

    >>> filtered(np.array([1.0]), np.array([[0.5], [0.5]]), np.array([[0.0], [1.0]])).after.ravel().tolist()
    [0.5, 1.25]
    """
    values = _consecutive(start, keep, added)
    return Series(values[:-1], values[1:])


def _consecutive(start: Array, keep: Number, added: Array) -> Array:
    # In Fortran's order, so that steps and not layers are the inner loop of every operation.
    values = np.empty((len(added) + 1, start.size), order="F")
    values[0] = start
    if not np.ndim(keep):
        keep = np.full((len(added), 1), keep)
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
        values[: half + 1] = _consecutive(start, keep[:half], added[:half])
        values[half:] = _consecutive(values[half], keep[half:], added[half:])
    return values


class Motion(ABC):
    """A rule's averaged motion: the current moments and the number of steps before.

    `rule` may be replaced between steps by one of the same kind, because moments belong to the weights.
    """

    def __init__(self, rule: Any, norm2: Array, **moments: Array) -> None:
        self.rule = rule
        self.moments = {"norm2": norm2, **moments}
        self.done = 0
        self.guessed = ["norm2"]  # the moments that `_improve` takes from a guess. The others follow from them
        self._length = FIRST_LENGTH
        # Logarithms of the squared norm now and one and two distances before, and this distance in steps.
        self._past = np.zeros((3, norm2.size)), 1

    @property
    def norm2(self) -> Array:
        """E‖w‖² of each layer."""
        return self.moments["norm2"]

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
        guess = {name: np.broadcast_to(value, (steps, value.size)) for name, value in self.moments.items()}
        guess["norm2"] = self._extrapolated(np.arange(steps))
        for rounds in range(MAX_ROUNDS):
            step, moments = improve(part, guess)
            if steps == 1 or self._agree(moments, guess):
                self.moments = {name: values.after[-1] for name, values in moments.items()}
                distance = max(steps // 2, 1)
                before = moments["norm2"].before
                self._past = np.log([self.norm2, before[-distance], before[max(steps - 2 * distance, 0)]]), distance
                self._length = min(2 * steps if rounds < FEW_ROUNDS else steps, MAX_LENGTH)
                return step
            guess = {name: values.before for name, values in moments.items()}
        return self._solve(improve, slice(part.start, part.start + steps // 2))

    def _extrapolated(self, t: Int64) -> Array:
        """Return a first guess of the squared norm: its logarithm follows the parabola through three past values."""
        (now, before, earlier), distance = self._past
        # Differences, so that a constant norm stays constant to the last digit.
        last = now - before
        previous = before - earlier
        slope = (3 * last - previous) / (2 * distance)
        curve = (last - previous) / (2 * distance * distance)
        t = t[:, None]
        growth = np.clip(t * (slope + t * curve), -MAX_GROWTH * t, MAX_GROWTH * t)
        return np.asfortranarray(self.norm2 * np.exp(growth))

    def _agree(self, moments: Moments, guess: Guess) -> bool:
        """Return whether the moments that were guessed are those that follow."""
        for name in self.guessed:
            values = moments[name].before
            if not (np.abs(values - guess[name]).max(0) <= TOLERANCE * np.abs(values).max(0)).all():
                return False
        return True

    def fill(self, lr: float, weights: Weights) -> None:
        """Fill the averages of the gradient while the norm stays, for weights that have been trained before."""
        improve = self._improve(np.full(FILLING, lr), weights)

        def at_this_norm(part: slice, guess: Guess) -> tuple[Step, Moments]:
            step, moments = improve(part, guess)
            return step, {**moments, "norm2": Series(guess["norm2"], guess["norm2"])}

        first = 0
        with np.errstate(all="ignore"):
            while first < FILLING:
                first += len(self._solve(at_this_norm, slice(first, FILLING)).norm2)
        self.done += FILLING

    def state(self) -> dict[str, Any]:
        """Return the current moments in lists and numbers, without the rule, for a file."""
        return {"done": self.done, **{name: values.tolist() for name, values in self.moments.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.done = state["done"]
        self.moments = {name: np.array(state[name]) for name in self.moments}

    @abstractmethod
    def _improve(self, lr: Array, weights: Weights) -> Improve:
        """Return the function that solves parts of the next steps, from the current moments and a guess."""


class StationarySteps(NamedTuple):
    """Decay and size of each update, and their correlation. E‖u‖² is the layer's `size` times `update_rms`²."""

    decay: Array
    update_rms: Array
    correlation: Correlation
    size: Number = 1.0


@final
class StationaryMotion(Motion):
    """Motion under updates of known size, the rule's `stationary_steps`, whose autocorrelation is first·ratio^(k-1).

    The overlap o = E⟨w, u⟩/update_rms follows  o' = (1-a)·ratio·o - first·update_rms·size.
    """

    def __init__(self, rule: Any, norm2: Array) -> None:
        super().__init__(rule, norm2, overlap=np.zeros_like(norm2))
        self.guessed = []  # no step depends on the norm

    def _improve(self, lr: Array, weights: Weights) -> Improve:
        rule, lr = plain_equivalent(self.rule, lr, weights)
        decay, update_rms, correlation, size = rule.stationary_steps(lr, weights)
        by_step = (decay, update_rms, correlation.first, correlation.ratio)
        columns = [np.broadcast_to(values, len(lr))[:, None] for values in by_step]

        def improve(part: slice, guess: Guess) -> tuple[Step, Moments]:
            a, rms, first, ratio = (column[part] for column in columns)
            left = 1 - a
            shape = guess["norm2"].shape
            overlap = filtered(self.moments["overlap"], left * ratio, np.broadcast_to(-first * rms * size, shape))
            cross = rms * overlap.before
            square = rms * rms * size
            norm2 = filtered(self.norm2, left * left, square - 2 * left * cross)
            decay = np.broadcast_to(a, cross.shape)
            step = Step(decay, cross, np.broadcast_to(square, cross.shape), norm2.after, decay)
            return step, {"norm2": norm2, "overlap": overlap}

        return improve
