"""Averaged motion of a weight vector under noise: the recursions behind every forecast.

A step is  w <- (1-a) w - u,  and norm and angle follow from E⟨w,u⟩ and E‖u‖² alone. Rules whose update is linear in
weight, momentum and gradient share one recursion of E‖w‖², E⟨w,m⟩ and E‖m‖²; they differ in coefficients and step size.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from gyroscope.theory.weights import Weights

Number: TypeAlias = Any
"""A float, a NumPy array or a tensor: closed forms are made of operators, so each of them works."""

Array = npt.NDArray[np.float64]

BLOCK = 64
"""Steps that are prepared, or worked out, at once: enough to amortise, few enough to stay in cache."""


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
        tangential = np.sqrt(np.maximum(self.square * start2 - self.cross * self.cross, 0.0))
        return np.asarray(np.arctan2(tangential, (1 - self.decay) * start2 - self.cross))


class Motion(ABC):
    """A rule's averaged motion on its way: the moments of now, and how many steps have led to them."""

    def __init__(self, norm2: Array) -> None:
        self.done = 0
        self.norm2 = norm2

    def advance(self, lr: Array, weights: Weights) -> Step:
        """Take the next steps, at these learning rates; arrays are (steps, layers)."""
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
        """Coefficients of E⟨self, other⟩ on E‖w‖², E⟨w,m⟩, E‖m‖², D, E‖g‖²; g is new noise, orthogonal to both."""
        return np.array(
            [
                self.weight * other.weight,
                self.weight * other.momentum + self.momentum * other.weight,
                self.momentum * other.momentum,
                0.0,
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
        """Coefficients (step, quantity, moment) of a step's outcome, or (…, power of s × moment) where D is given.

        Quantities are E⟨w,u⟩, E‖u‖², E‖w'‖², E⟨w',m'⟩, E‖m'‖² and what D' has of these; moments E‖w‖², E⟨w,m⟩, E‖m‖²,
        D and E‖g‖².
        """
        keep, scale, D = 1 - decay[:, None], scale[:, None], self.D or Scale()
        forms = np.zeros((len(decay), 6, 3, 5))
        forms[:, 0, 1] = scale * WEIGHT.dot(self.update)
        forms[:, 1, 2] = scale**2 * self.excess * self.update.dot(self.update)
        forms[:, 2, 0] = keep**2 * WEIGHT.dot(WEIGHT)
        forms[:, 2, 1] = -2 * keep * forms[:, 0, 1]
        forms[:, 2, 2] = forms[:, 1, 2]
        forms[:, 3, 0] = keep * WEIGHT.dot(self.momentum)
        forms[:, 3, 1] = -scale * self.update.dot(self.momentum)
        forms[:, 4, 0] = self.momentum.dot(self.momentum)
        forms[:, 5] = D.weight * forms[:, 2] + D.cross * forms[:, 3] + D.momentum * forms[:, 4]
        forms[:, 5, 0, 3] = D.keep
        return forms.reshape(len(decay), 6, 15) if self.D else forms.sum(2)


class Inputs(NamedTuple):
    """What a linear rule is told for a block of steps: a and scale_t of each, then E‖g‖²·E‖w‖² and `size` by layer."""

    decay: Array
    scale: Array
    unit_grad2: Number = 1.0
    size: Number = 1.0


@final
class LinearMotion(Motion):
    """A linear rule on its way; `inputs` makes what it needs from learning rates, steps done and the weights.

    The next moments are polynomials in s with coefficients linear in the moments of now: one small matrix product with
    (moments, s·moments, s²·moments) makes a step for all layers. A hundred thousand steps are bound by the number of
    NumPy calls, so the arrays of a block are laid out and viewed once: rows 0 to 5 of a step receive the product, rows
    2 to 6 are the moments, rows 7 to 16 their multiples.
    """

    def __init__(self, rule: LinearRule, norm2: Array, inputs: Callable[[Array, int, Weights], Inputs]) -> None:
        super().__init__(norm2)
        self.rule, self.inputs = rule, inputs
        self._table = np.zeros((BLOCK + 1, 17, norm2.size))
        self._table[0, 2] = norm2
        self._table[0, 5] = norm2 * (rule.D.weight if rule.D else 0.0)
        basis = slice(2, 17 if rule.D else 7)
        self._views = [(t[2], t[5], t[6], t[2:7], t[7:12], t[12:17], t[basis]) for t in self._table[:-1]]
        self._products = [t[:6] for t in self._table[1:]]

    def _block(self, lr: Array, weights: Weights) -> Step:
        decay, scale, *by_layer = self.inputs(lr, self.done, weights)
        unit_grad2, size = (np.broadcast_to(value, self.norm2.shape).copy() for value in by_layer)
        root, s = np.empty_like(size), np.empty((5, size.size))
        forms, count = self.rule.forms(decay, scale), len(lr)
        for form, views, product in zip(forms, self._views[:count], self._products[:count], strict=True):
            y, D, g2, moments, once, twice, basis = views
            np.divide(unit_grad2, y, out=g2)
            if self.rule.D:
                np.add(D, g2, out=D)
                np.divide(size, D, out=root)
                np.sqrt(root, out=root)
                s[...] = root  # one copy for each moment: a product without broadcasting
                np.multiply(moments, s, out=once)
                np.multiply(once, s, out=twice)
            np.dot(form, basis, out=product)
        cross, square, norm2 = (self._table[1 : count + 1, row].copy() for row in range(3))
        self._table[0, :6] = self._table[count, :6]
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

    def __init__(self, norm2: Array, inputs: Callable[[Array, Weights], tuple[Array, Array, float, float]]) -> None:
        super().__init__(norm2)
        self.inputs = inputs  # learning rates and weights to decay, size of the update, first, ratio
        self.overlap = 0.0  # E⟨w, u⟩ / update_rms, alike for all layers

    def _block(self, lr: Array, weights: Weights) -> Step:
        decay, update_rms, first, ratio = self.inputs(lr, weights)
        cross, norm2, y = np.empty((len(lr), 1)), np.empty((len(lr), self.norm2.size)), self.norm2
        for t, (a, rms) in enumerate(zip(decay.tolist(), update_rms.tolist(), strict=True)):
            cross[t] = rms * self.overlap
            np.multiply(y, (1 - a) ** 2, out=norm2[t])
            y = norm2[t]
            y += rms * rms - 2 * (1 - a) * rms * self.overlap
            self.overlap = (1 - a) * ratio * self.overlap - first * rms
        return Step(decay[:, None], cross, update_rms[:, None] ** 2, norm2)
