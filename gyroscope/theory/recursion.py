"""Averaged motion of a weight vector under noise: the recursions behind every forecast.

A step is  w <- (1-a) w - u,  and norm and angle follow from E⟨w,u⟩ and E‖u‖² alone. Rules whose update is linear in
weight, momentum and gradient share one recursion of E‖w‖², E⟨w,m⟩ and E‖m‖²; they differ in coefficients and step size.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from gyroscope._types import Array, Mask, Number
from gyroscope.theory.law import Correlation, Weights

# Steps that are prepared, or worked out, at once: enough to amortise NumPy's calls, few enough to stay in cache.
BLOCK = 128
# Steps in which averages fill: five memories of a momentum of 0.99. Adam's v is corrected for what it lacks.
FILLING = 500


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
    """A rule's averaged motion on its way: the moments of now, and how many steps have led to them.

    `rule` may be exchanged between steps for one of the same kind: moments are the weights' own.
    """

    def __init__(self, rule: Any, norm2: Array) -> None:
        self.rule = rule
        self.norm2 = norm2
        self.done = 0

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

    def fill(self, lr: float, weights: Weights) -> None:
        """Let the averages of the gradient fill while the norm stays: of weights that have been trained before."""
        norm2 = self.norm2.copy()
        for _ in range(FILLING):
            self.advance(np.array([lr]), weights)
            self._hold(norm2)

    def _hold(self, norm2: Array) -> None:
        """Bring the weight back to a norm."""
        self.norm2 = norm2

    def state(self) -> dict[str, Any]:
        """The moments of now in lists and numbers, all but the rule: for a file."""
        return {name: np.asarray(value).tolist() for name, value in vars(self).items() if name != "rule"}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where a saved motion was."""
        for name, value in state.items():
            setattr(self, name, np.array(value) if isinstance(value, list) else value)

    @abstractmethod
    def _block(self, lr: Array, weights: Weights) -> Step:
        """The next steps, at most `BLOCK` of them."""


class Combination(NamedTuple):
    """A vector as a combination of the weight, the momentum before the step and the gradient."""

    weight: Number
    momentum: Number
    gradient: Number

    def dot(self, other: "Combination") -> Array:
        """Coefficients of E⟨self, other⟩ on E‖w‖², E⟨w,m⟩, E‖m‖² and E‖g‖², along the last axis."""
        # Settings that change during the run make these arrays over steps; the others follow suit.
        coefficients = (
            self.weight * other.weight,
            self.weight * other.momentum + self.momentum * other.weight,
            self.momentum * other.momentum,
            self.gradient * other.gradient,  # g is new noise, orthogonal to w and m
        )
        return np.array(np.broadcast_arrays(*coefficients)).T


WEIGHT = Combination(1.0, 0.0, 0.0)


class StepNormaliser(NamedTuple):
    """D in the step size s = scale·sqrt(size/D):  D <- keep·D + weight·E‖w‖² + momentum·E‖m‖² + E‖g‖².

    Adam's v (keep = β2, weight = λ², unit = 1-β2) and Lion's E‖c‖² (keep = 0) are both such a D. D counts gradients in
    full: `unit`·D is what is really kept, so that D is rescaled where the unit changes.
    """

    keep: Number = 0.0
    weight: Number = 0.0
    momentum: Number = 0.0
    unit: Number = 1.0

    def aging(self, steps: int, unit_before: float | None) -> tuple[Array, Array, Array]:
        """What D keeps, and takes of E‖w‖² and E‖m‖², on entering each of `steps` steps."""
        keep, weight, momentum, unit = (np.broadcast_to(value, steps) for value in self)
        before = np.concatenate([unit[:1] if unit_before is None else [unit_before], unit[:-1]])
        return keep * (before / unit), weight, momentum


@dataclass(frozen=True)
class LinearSteps:
    """Steps  w <- (1-a) w - s·update,  m <- momentum,  update and momentum linear in weight, momentum and gradient.

    s = scale, or scale·sqrt(size/D) if D is given and the step is not `unadapted`. E‖u‖² is `excess` times
    E‖s·update‖²: above 1 if the update adds its own noise. E⟨u, m'⟩ is `coupling` times E⟨s·update, m'⟩: not 1 if that
    noise is correlated over steps. Decay, scale and coupling have a value for each step, coefficients may.
    `unit_grad2` = E‖g‖²·E‖w‖² and `size` have one for each layer.
    """

    decay: Array
    scale: Array
    update: Combination
    momentum: Combination
    D: StepNormaliser | None = None
    unadapted: Mask | None = None
    excess: float = 1.0
    coupling: Array | None = None
    unit_grad2: Number = 1.0
    size: Number = 1.0

    def forms(self, aging: tuple[Array, Array, Array] | None) -> Array:
        """Coefficients (step, quantity, moment) of a step's outcome; with a D, given by its `aging`, by power of s.

        Quantities are E⟨w,u⟩, E‖u‖², what D' has of the moments, E‖w'‖², E⟨w',m'⟩ and E‖m'‖²; columns are D, then
        E‖w‖², E⟨w,m⟩, E‖m‖² and E‖g‖², once or times 1, s and s².
        """
        keep = 1 - self.decay[:, None]
        scale = self.scale[:, None]
        coupling = 1.0 if self.coupling is None else self.coupling[:, None]
        # 13 columns: D, and four moments for each of s⁰, s¹ and s²; w' is quadratic in s at most.
        forms = np.zeros((len(keep), 6, 13))
        plain, once, twice = (forms[:, :, 1 + 4 * power : 5 + 4 * power] for power in range(3))
        once[:, 0] = scale * WEIGHT.dot(self.update)
        twice[:, 1] = twice[:, 3] = scale**2 * self.excess * self.update.dot(self.update)
        plain[:, 3] = keep**2 * WEIGHT.dot(WEIGHT)
        once[:, 3] = -2 * keep * once[:, 0]
        plain[:, 4] = keep * WEIGHT.dot(self.momentum)
        once[:, 4] = -scale * coupling * self.update.dot(self.momentum)
        plain[:, 5] = self.momentum.dot(self.momentum)
        # Without D the step size is known beforehand: the powers of s merge into one set of columns.
        if aging is None:
            return np.concatenate([forms[:, :, :1], plain + once + twice], axis=2)
        # D enters a step with that step's settings and the moments before it, rows 3 to 5 of the step before. After the
        # last step it stays as it is, for only the next block knows what it enters.
        keep_D, weight, momentum = (values[1:, None] for values in aging)
        forms[:-1, 2] = weight * forms[:-1, 3] + momentum * forms[:-1, 5]
        forms[:-1, 2, :1] = keep_D
        forms[-1, 2, 0] = 1.0
        return forms


@final
class LinearMotion(Motion):
    """A rule on its way whose `linear_steps` give the coefficients at learning rates, steps done and weights.

    The next moments are polynomials in s with coefficients linear in the moments of now: one small matrix product with
    (moments, s·moments, s²·moments) makes a step for all layers. A hundred thousand steps are bound by the number of
    NumPy calls and the time of each. So two tables, of a step and of the one after, are laid out and viewed once: rows
    0 to 5 receive the product, rows 2 to 6 are D and the moments, rows 7 to 14 their multiples.
    """

    def __init__(self, rule: Any, norm2: Array) -> None:
        super().__init__(rule, norm2)
        tables = np.zeros((2, 15, norm2.size))
        tables[0, 3] = norm2  # the other moments start at zero
        self._tables = (tables[0], tables[1])
        self._unit: float | None = None  # D's, of the last step

    def _hold(self, norm2: Array) -> None:
        super()._hold(norm2)
        self._tables[0][3] = norm2

    def _block(self, lr: Array, weights: Weights) -> Step:
        steps: LinearSteps = self.rule.linear_steps(lr, self.done, weights)
        unit_grad2, size = (np.broadcast_to(x, self.norm2.shape).copy() for x in (steps.unit_grad2, steps.size))
        root = np.empty_like(size)
        s = np.empty((4, size.size))
        outcome = np.empty((len(lr), 4, size.size))
        basis = slice(2, 15 if steps.D else 7)
        aging = None
        if steps.D:
            aging = steps.D.aging(len(lr), self._unit)
            keep_D, weight, momentum = (values[0] for values in aging)
            _, _, D, y, _, q, *_ = self._tables[0]
            D[...] = keep_D * D + weight * y + momentum * q
            self._unit = np.broadcast_to(steps.D.unit, len(lr))[-1]
        now, after = (
            (table[3], table[2], table[6], table[3:7], table[7:11], table[11:15], table[basis], other[:6], other[:4])
            for table, other in (self._tables, self._tables[::-1])
        )
        unadapted = np.zeros(len(lr), dtype=bool) if steps.unadapted is None else steps.unadapted
        for form, result, is_unadapted in zip(steps.forms(aging), outcome, unadapted.tolist(), strict=True):
            y, D, g2, moments, once, twice, columns, product, first_four = now
            np.divide(unit_grad2, y, g2)
            if steps.D:
                np.add(D, g2, D)
                np.divide(size, D, root)
                np.sqrt(root, root)
                s[...] = 1.0 if is_unadapted else root  # one copy for each moment: a product without broadcasting
                np.multiply(moments, s, once)
                np.multiply(once, s, twice)
            form.dot(columns, product)
            result[...] = first_four
            now, after = after, now
        if len(lr) % 2:
            self._tables = self._tables[::-1]
        cross, square, _, norm2 = outcome.transpose(1, 0, 2)
        return Step(steps.decay[:, None], cross, square, norm2)


def adam_scale(lr: Array, betas: tuple[Number, Number], done: int = 0) -> Array:
    """lr with both bias corrections, for a D that sums what v averages: lr/(1-β1^t)·sqrt((1-β2^t)/(1-β2)), t > done.

    >>> adam_scale(np.array([0.5]), (0.5, 0.5)).tolist()
    [1.0]
    """
    t = np.arange(done + 1, done + len(lr) + 1)
    return np.asarray(lr / (1 - betas[0] ** t) * ((1 - betas[1] ** t) / (1 - betas[1])) ** 0.5)


class StationarySteps(NamedTuple):
    """Decay and size of each update of a block, and how the updates are correlated: first·ratio^(k-1).

    E‖u‖² is `size`, of each layer, times the square of `update_rms`.
    """

    decay: Array
    update_rms: Array
    correlation: Correlation
    size: Number = 1.0


@final
class StationaryMotion(Motion):
    """Motion under updates of known size, the rule's `stationary_steps`, whose autocorrelation is first·ratio^(k-1).

    The overlap of the weight with the next update follows from the overlap with the last one:
    E⟨w', u'⟩ = (1-a)·ratio·E⟨w, u⟩ - first·E‖u‖², both in units of the update's size.
    """

    overlap = 0.0
    """E⟨w, u⟩ / (size · update_rms), alike for all layers"""

    def _block(self, lr: Array, weights: Weights) -> Step:
        decay, update_rms, correlation, size = self.rule.stationary_steps(lr, weights)
        cross = np.empty((len(lr), 1))
        norm2 = np.empty((len(lr), self.norm2.size))
        y = self.norm2
        correlations = np.broadcast_to(correlation.first, len(lr))
        by_step = zip(decay.tolist(), update_rms.tolist(), correlations.tolist(), strict=True)
        for t, (a, rms, first) in enumerate(by_step):
            cross[t] = rms * self.overlap
            np.multiply(y, (1 - a) ** 2, out=norm2[t])
            y = norm2[t]
            y += size * (rms * rms - 2 * (1 - a) * rms * self.overlap)
            self.overlap = (1 - a) * correlation.ratio * self.overlap - first * rms
        return Step(decay[:, None], cross * size, update_rms[:, None] ** 2 * size, norm2)
