"""Averaged motion of a weight vector under noise: the recursions behind every forecast.

A step is  w <- (1-a) w - u,  and norm and angle follow from E⟨w,u⟩ and E‖u‖² alone. Rules whose update is linear in
weight, momentum and gradient share one recursion of E‖w‖², E⟨w,m⟩ and E‖m‖²; they differ in coefficients and step size.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from gyroscope._types import Array, Number
from gyroscope.theory.law import Correlation, Weights

# Steps that are prepared, or worked out, at once: enough to amortise NumPy's calls, few enough to stay in cache.
BLOCK = 128


class Step(NamedTuple):
    """Second moments of a step  w <- (1-a) w - u, averaged over the noise: all that norm and angle need.

    Arrays over layers, or over (steps, layers) for a block of steps.
    """

    decay: Number
    """a"""
    cross: Number
    """E⟨w, u⟩"""
    square: Number
    """E‖u‖²"""
    norm2: Number
    """E‖w‖² after the step"""

    def angles(self, before2: Array) -> Array:
        """Angle of each step of a block, in radians; `before2` is E‖w‖² before the first."""
        start2 = np.concatenate([before2[None], self.norm2[:-1]])
        # Rounding may bring the difference below 0 where a step is purely radial.
        across2 = np.maximum(self.square * start2 - self.cross * self.cross, 0.0)
        along = (1 - self.decay) * start2 - self.cross
        # arcsin takes half the time of arctan2, and all digits of a small angle are in `across2`.
        angle = np.arcsin(np.sqrt(across2 / (across2 + along * along)))
        return np.asarray(np.where(along < 0, np.pi - angle, angle))


class Motion(ABC):
    """A rule's averaged motion on its way: the moments of now, and how many steps have led to them."""

    def __init__(self, norm2: Array) -> None:
        self.done = 0
        self.norm2 = norm2

    def advance(self, lr: Array, weights: Weights) -> Step:
        """Take the next steps, at these learning rates; arrays are (steps, layers)."""
        # In blocks, so that the tables of coefficients stay in the processor's cache.
        blocks = []
        for first in range(0, len(lr), BLOCK):
            part = lr[first : first + BLOCK]
            blocks.append(self._block(part, weights))
            self.done += len(part)
            self.norm2 = blocks[-1].norm2[-1]
        return blocks[0] if len(blocks) == 1 else Step(*map(np.concatenate, zip(*blocks, strict=True)))

    @abstractmethod
    def _block(self, lr: Array, weights: Weights) -> Step:
        """The next steps, at most `BLOCK` of them."""


class Combination(NamedTuple):
    """A vector as a combination of the weight, the momentum before the step and the gradient."""

    weight: float
    momentum: float
    gradient: float

    def dot(self, other: "Combination") -> Array:
        """Coefficients of E⟨self, other⟩ on E‖w‖², E⟨w,m⟩, E‖m‖² and E‖g‖²; g is new noise, orthogonal to both."""
        return np.array(
            [
                self.weight * other.weight,
                self.weight * other.momentum + self.momentum * other.weight,
                self.momentum * other.momentum,
                self.gradient * other.gradient,
            ]
        )


WEIGHT = Combination(1.0, 0.0, 0.0)


@dataclass(frozen=True)
class Scale:
    """D in the step size s = scale_t·sqrt(size/D):  D <- keep·D + weight·E‖w‖² + cross·E⟨w,m⟩ + momentum·E‖m‖² + E‖g‖².

    Adam's v (keep = β2, weight = λ²) and Lion's E‖c‖² (keep = 0) are both such a D.
    """

    keep: float = 0.0
    weight: float = 0.0
    cross: float = 0.0
    momentum: float = 0.0


@dataclass(frozen=True)
class LinearRule:
    """w <- (1-a) w - s·update,  m <- momentum,  update and momentum linear in weight, momentum and gradient.

    s = scale_t, or scale_t·sqrt(size/D) where D is given. E‖u‖² is `excess` times E‖s·update‖²: above 1 where the
    update adds its own noise.
    """

    update: Combination
    momentum: Combination
    D: Scale | None = None
    excess: float = 1.0

    def forms(self, decay: Array, scale: Array) -> Array:
        """Coefficients (step, quantity, moment) of a step's outcome; where D is given, on D and each power of s.

        Quantities are E⟨w,u⟩, E‖u‖², what D' has of the moments, E‖w'‖², E⟨w',m'⟩ and E‖m'‖²; columns are D, then
        E‖w‖², E⟨w,m⟩, E‖m‖² and E‖g‖², once or times 1, s and s².
        """
        keep = 1 - decay[:, None]
        scale = scale[:, None]
        D = self.D or Scale()
        # 13 columns: D, and four moments for each of s⁰, s¹ and s²; w' is quadratic in s at most.
        forms = np.zeros((len(decay), 6, 13))
        plain, once, twice = (forms[:, :, 1 + 4 * power : 5 + 4 * power] for power in range(3))
        once[:, 0] = scale * WEIGHT.dot(self.update)
        twice[:, 1] = twice[:, 3] = scale**2 * self.excess * self.update.dot(self.update)
        plain[:, 3] = keep**2 * WEIGHT.dot(WEIGHT)
        once[:, 3] = -2 * keep * once[:, 0]
        plain[:, 4] = keep * WEIGHT.dot(self.momentum)
        once[:, 4] = -scale * self.update.dot(self.momentum)
        plain[:, 5] = self.momentum.dot(self.momentum)
        # Without D the step size is known beforehand: the powers of s merge into one set of columns.
        if not self.D:
            return np.concatenate([forms[:, :, :1], plain + once + twice], axis=2)
        # D' needs the moments after the step, which are rows 3 to 5.
        forms[:, 2] = D.weight * forms[:, 3] + D.cross * forms[:, 4] + D.momentum * forms[:, 5]
        forms[:, 2, 0] = D.keep
        return forms


class Inputs(NamedTuple):
    """The inputs of a linear rule for a block of steps: a and scale_t of each, then E‖g‖²·E‖w‖² and `size` by layer."""

    decay: Array
    scale: Array
    unit_grad2: Number = 1.0
    size: Number = 1.0


@final
class LinearMotion(Motion):
    """A linear rule on its way; `inputs` makes what it needs from learning rates, steps done and the weights.

    The next moments are polynomials in s with coefficients linear in the moments of now: one small matrix product with
    (moments, s·moments, s²·moments) makes a step for all layers. A hundred thousand steps are bound by the number of
    NumPy calls and the time of each. So two tables, of a step and of the one after, are laid out and viewed once: rows
    0 to 5 receive the product, rows 2 to 6 are D and the moments, rows 7 to 14 their multiples.
    """

    def __init__(self, rule: LinearRule, norm2: Array, inputs: Callable[[Array, int, Weights], Inputs]) -> None:
        super().__init__(norm2)
        self.rule = rule
        self.inputs = inputs
        tables = np.zeros((2, 15, norm2.size))
        # Moments start at zero but for the norm; Adam's D begins with the decay's share, λ²·E‖w‖².
        tables[0, 2] = norm2 * (rule.D.weight if rule.D else 0.0)
        tables[0, 3] = norm2
        basis = slice(2, 15 if rule.D else 7)
        self._views = tuple(
            (now[3], now[2], now[6], now[3:7], now[7:11], now[11:15], now[basis], after[:6], after[:4])
            for now, after in (tables, tables[::-1])
        )

    def _block(self, lr: Array, weights: Weights) -> Step:
        decay, scale, *by_layer = self.inputs(lr, self.done, weights)
        unit_grad2, size = (np.broadcast_to(value, self.norm2.shape).copy() for value in by_layer)
        root = np.empty_like(size)
        s = np.empty((4, size.size))
        outcome = np.empty((len(lr), 4, size.size))
        has_D = self.rule.D is not None
        now, after = self._views
        for form, result in zip(self.rule.forms(decay, scale), outcome, strict=True):
            y, D, g2, moments, once, twice, basis, product, first_four = now
            np.divide(unit_grad2, y, g2)
            if has_D:
                np.add(D, g2, D)
                np.divide(size, D, root)
                np.sqrt(root, root)
                s[...] = root  # one copy for each moment: a product without broadcasting
                np.multiply(moments, s, once)
                np.multiply(once, s, twice)
            form.dot(basis, product)
            result[...] = first_four
            now, after = after, now
        self._views = (now, after)
        cross, square, _, norm2 = outcome.transpose(1, 0, 2)
        return Step(decay[:, None], cross, square, norm2)


def adam_scale(lr: Array, betas: tuple[float, float], done: int = 0) -> Array:
    """lr with both bias corrections, for a D that sums what v averages: lr/(1-β1^t)·sqrt((1-β2^t)/(1-β2)), t > done.

    >>> adam_scale(np.array([0.5]), (0.5, 0.5)).tolist()
    [1.0]
    """
    t = np.arange(done + 1, done + len(lr) + 1)
    return np.asarray(lr / (1 - betas[0] ** t) * ((1 - betas[1] ** t) / (1 - betas[1])) ** 0.5)


@final
class StationaryMotion(Motion):
    """Motion under updates of known size, whose autocorrelation is first·ratio^(k-1).

    The overlap of the weight with the next update follows from the overlap with the last one:
    E⟨w', u'⟩ = (1-a)·ratio·E⟨w, u⟩ - first·E‖u‖², both in units of the update's size.
    """

    def __init__(self, norm2: Array, inputs: Callable[[Array, Weights], tuple[Array, Array, Correlation]]) -> None:
        super().__init__(norm2)
        self.inputs = inputs  # from learning rates and weights to the decay, size and correlation of the updates
        self.overlap = 0.0  # E⟨w, u⟩ / update_rms, alike for all layers

    def _block(self, lr: Array, weights: Weights) -> Step:
        decay, update_rms, correlation = self.inputs(lr, weights)
        cross = np.empty((len(lr), 1))
        norm2 = np.empty((len(lr), self.norm2.size))
        y = self.norm2
        for t, (a, rms) in enumerate(zip(decay.tolist(), update_rms.tolist(), strict=True)):
            cross[t] = rms * self.overlap
            np.multiply(y, (1 - a) ** 2, out=norm2[t])
            y = norm2[t]
            y += rms * rms - 2 * (1 - a) * rms * self.overlap
            self.overlap = (1 - a) * correlation.ratio * self.overlap - correlation.first * rms
        return Step(decay[:, None], cross, update_rms[:, None] ** 2, norm2)
