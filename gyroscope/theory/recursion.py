"""Averaged motion of a weight vector under noise: the recursions behind every forecast.

A step is  w <- (1-a) w - u,  and norm and angle follow from E⟨w,u⟩ and E‖u‖² alone. Rules whose update is linear in
weight, momentum and gradient share one recursion of E‖w‖², E⟨w,m⟩ and E‖m‖² with their own coefficients and step size.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from gyroscope._types import Array, Mask, Number
from gyroscope.theory.cautious import TINY, MaskedDecay, masked_decay
from gyroscope.theory.law import Correlation, Weights

# Steps that are computed at once: enough to amortise NumPy's calls, few enough to stay in cache.
BLOCK = 128
# Steps in which averages fill: five memories of a momentum of 0.99. Adam's v is corrected for what it lacks.
FILLING = 500


class Step(NamedTuple):
    """Second moments of a step  w <- (1-a) w - u, averaged over the noise. Blocks of steps are (steps, layers)."""

    decay: Number  # a
    cross: Number  # E⟨w, u⟩
    square: Number  # E‖u‖²
    norm2: Number  # E‖w‖² after the step

    def angles(self, before2: Array) -> Array:
        """Return the angle of each step of a block, in radians. `before2` is E‖w‖² before the first."""
        start2 = np.concatenate([before2[None], self.norm2[:-1]])
        # Rounding may bring the difference below 0 if a step is purely radial.
        across2 = np.maximum(self.square * start2 - self.cross * self.cross, 0.0)
        along = (1 - self.decay) * start2 - self.cross
        # arcsin takes half the time of arctan2, and all digits of a small angle are in `across2`.
        angle = np.arcsin(np.sqrt(across2 / (across2 + along * along)))
        return np.asarray(np.where(along < 0, np.pi - angle, angle))


class Motion(ABC):
    """A rule's averaged motion: the current moments and the number of steps before.

    `rule` may be replaced between steps by one of the same kind, because moments belong to the weights.
    """

    def __init__(self, rule: Any, norm2: Array) -> None:
        self.rule = rule
        self.norm2 = norm2
        self.done = 0

    def advance(self, lr: Array, weights: Weights) -> Step:
        """Take the next steps at these learning rates, in blocks. Arrays are (steps, layers)."""
        blocks = []
        for first in range(0, len(lr), BLOCK):
            part = lr[first : first + BLOCK]
            blocks.append(self._block(part, weights))
            self.done += len(part)
            self.norm2 = blocks[-1].norm2[-1]
        return blocks[0] if len(blocks) == 1 else Step(*map(np.concatenate, zip(*blocks, strict=True)))

    def fill(self, lr: float, weights: Weights) -> None:
        """Fill the averages of the gradient while the norm stays, for weights that have been trained before."""
        norm2 = self.norm2.copy()
        for _ in range(FILLING):
            self.advance(np.array([lr]), weights)
            self._hold(norm2)

    def _hold(self, norm2: Array) -> None:
        """Set the weight's squared norm."""
        self.norm2 = norm2

    def state(self) -> dict[str, Any]:
        """Return the current moments in lists and numbers, without the rule, for a file."""
        return {name: np.asarray(value).tolist() for name, value in vars(self).items() if name != "rule"}

    def moments(self) -> dict[str, Array]:
        """Return copies of the current moments."""
        return {name: value.copy() for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        for name, value in state.items():
            setattr(self, name, np.array(value) if isinstance(value, list) else value)

    @abstractmethod
    def _block(self, lr: Array, weights: Weights) -> Step:
        """Return the next steps, at most `BLOCK` of them."""


class Combination(NamedTuple):
    """A vector as a combination of the weight, the momentum before the step and the gradient."""

    weight: Number
    momentum: Number
    gradient: Number

    def dot(self, other: "Combination") -> Array:
        """Return the coefficients of E⟨self, other⟩ on E‖w‖², E⟨w,m⟩, E‖m‖² and E‖g‖², along the last axis."""
        # Settings that change during the run make these arrays over steps.
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
    full and `unit`·D is the true average, so D is rescaled if the unit changes.
    """

    keep: Number = 0.0
    weight: Number = 0.0
    momentum: Number = 0.0
    unit: Number = 1.0

    def aging(self, steps: int, unit_before: float | None) -> tuple[Array, Array, Array]:
        """Return what D keeps, and takes of E‖w‖² and E‖m‖², on entering each of `steps` steps."""
        keep, weight, momentum, unit = (np.broadcast_to(value, steps) for value in self)
        before = np.concatenate([unit[:1] if unit_before is None else [unit_before], unit[:-1]])
        return keep * (before / unit), weight, momentum


@dataclass(frozen=True)
class LinearSteps:
    """Steps  w <- (1-a) w - s·update,  m <- momentum,  update and momentum linear in weight, momentum and gradient.

    s = scale, or scale·sqrt(size/D) if D is given and the step is not `unadapted`.
    """

    decay: Array  # for each step
    scale: Array  # for each step
    update: Combination
    momentum: Combination
    D: StepNormaliser | None = None
    unadapted: Mask | None = None
    excess: float = 1.0  # E‖u‖² over E‖s·update‖², above 1 if the update adds its own noise
    coupling: Array | None = None  # E⟨u, m'⟩ over E⟨s·update, m'⟩, not 1 if that noise is correlated over steps
    unit_grad2: Number = 1.0  # E‖g‖²·E‖w‖², for each layer
    size: Number = 1.0  # for each layer

    def forms(self, aging: tuple[Array, Array, Array] | None) -> Array:
        """Return the coefficients (step, quantity, moment) of a step's outcome, by power of s if there is a D.

        Quantities are E⟨w,u⟩, E‖u‖², the moments' part of D', E‖w'‖², E⟨w',m'⟩ and E‖m'‖². Columns are D, then
        E‖w‖², E⟨w,m⟩, E‖m‖² and E‖g‖², once or times 1, s and s².
        """
        keep = 1 - self.decay[:, None]
        scale = self.scale[:, None]
        coupling = 1.0 if self.coupling is None else self.coupling[:, None]
        # 13 columns: D, and four moments for each of s⁰, s¹ and s². w' is quadratic in s at most.
        forms = np.zeros((len(keep), 6, 13))
        plain, once, twice = (forms[:, :, 1 + 4 * power : 5 + 4 * power] for power in range(3))
        once[:, 0] = scale * WEIGHT.dot(self.update)
        twice[:, 1] = twice[:, 3] = scale**2 * self.excess * self.update.dot(self.update)
        plain[:, 3] = keep**2 * WEIGHT.dot(WEIGHT)
        once[:, 3] = -2 * keep * once[:, 0]
        plain[:, 4] = keep * WEIGHT.dot(self.momentum)
        once[:, 4] = -scale * coupling * self.update.dot(self.momentum)
        plain[:, 5] = self.momentum.dot(self.momentum)
        # Without D the step size is known beforehand, so the powers of s merge into one set of columns.
        if aging is None:
            return np.concatenate([forms[:, :, :1], plain + once + twice], axis=2)
        # D enters a step with that step's settings and the moments before it, rows 3 to 5 of the step before. The next
        # block ages it after the last step.
        keep_D, weight, momentum = (values[1:, None] for values in aging)
        forms[:-1, 2] = weight * forms[:-1, 3] + momentum * forms[:-1, 5]
        forms[:-1, 2, :1] = keep_D
        forms[-1, 2, 0] = 1.0
        return forms


@final
class LinearMotion(Motion):
    """Motion of a rule whose `linear_steps` give the coefficients at learning rates, steps done and weights.

    One matrix product with (D, moments, s·moments, s²·moments) makes a step for all layers. The share of a cautious
    decay depends on the current moments, so that its steps are computed one by one.
    """

    def __init__(self, rule: Any, norm2: Array) -> None:
        super().__init__(rule, norm2)
        self._moments = np.zeros((4, norm2.size))  # D, E‖w‖², E⟨w,m⟩ and E‖m‖²
        self._moments[1] = norm2
        self._unit: float | None = None  # D's, of the last step

    def _hold(self, norm2: Array) -> None:
        super()._hold(norm2)
        self._moments[1] = norm2

    def _block(self, lr: Array, weights: Weights) -> Step:
        steps: LinearSteps = self.rule.linear_steps(lr, self.done, weights)
        if self.rule.cautious_decay:
            return self._cautious_block(steps)
        unadapted = np.zeros(len(lr), dtype=bool) if steps.unadapted is None else steps.unadapted
        aging = None
        if steps.D:
            aging = steps.D.aging(len(lr), self._unit)
            keep_D, weight, momentum = (values[0] for values in aging)
            D, y, _, q = self._moments
            D[...] = keep_D * D + weight * y + momentum * q
            self._unit = np.broadcast_to(steps.D.unit, len(lr))[-1]
        outcome = np.empty((len(lr), 6, self.norm2.size))
        columns = np.empty((13 if steps.D else 5, self.norm2.size))
        moments, once, twice = columns[1:5], columns[5:9], columns[9:]
        before = self._moments
        for form, product, is_unadapted in zip(steps.forms(aging), outcome, unadapted.tolist(), strict=True):
            columns[:4] = before
            columns[4] = steps.unit_grad2 / before[1]
            if steps.D:
                columns[0] += columns[4]
                s = 1.0 if is_unadapted else np.sqrt(steps.size / columns[0])
                np.multiply(moments, s, out=once)
                np.multiply(once, s, out=twice)
            np.dot(form, columns, out=product)
            before = product[2:]
        self._moments = before.copy()
        cross, square, _, norm2, _, _ = outcome.transpose(1, 0, 2)
        return Step(steps.decay[:, None], cross, square, norm2)

    def _cautious_block(self, steps: LinearSteps) -> Step:
        assert steps.D is not None  # the gradient's scale cancels, so E‖g‖²·E‖w‖² may be 1
        old, new = steps.update.momentum, steps.update.gradient
        keep, share = steps.momentum.momentum, steps.momentum.gradient
        decay, cross, square, norm2 = np.empty((4, len(steps.scale), self.norm2.size))
        coupling = np.ones(len(steps.scale)) if steps.coupling is None else steps.coupling
        D, y, p, q = self._moments
        for t in range(len(steps.scale)):
            g2 = steps.unit_grad2 / y
            D = steps.D.keep * D + steps.D.momentum * q + g2
            s = steps.scale[t] * np.sqrt(steps.size / D)
            along = s * old * p  # E⟨w, L⟩ of the linear part L of u
            linear2 = np.maximum(s * s * (old * old * q + new * new * g2), TINY * y)
            masked = masked_decay(steps.decay[t], along / np.sqrt(y * linear2), np.sqrt(y / linear2))
            left = 1 - masked.decay
            decay[t] = masked.decay
            cross[t] = masked.push * along
            square[t] = (masked.push**2 + steps.excess - 1) * linear2 + masked.noise * y
            norm2[t] = left**2 * y - 2 * left * cross[t] + square[t]
            if steps.excess > 1:  # a sign: longer steps that point outwards less
                longer = 2 * masked.sign_overlap * np.sqrt(steps.excess * linear2 * y)
                square[t] += longer
                cross[t] += longer / (2 * left)
            taken_in = old * keep * q + new * share * g2
            p = left * keep * p - masked.push * s * coupling[t] * taken_in
            q = keep * keep * q + share * share * g2
            y = norm2[t]
        self._moments = np.stack(np.broadcast_arrays(D, y, p, q))
        return Step(decay, cross, square, norm2)


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
        super().__init__(rule, norm2)
        self._overlap = np.zeros_like(norm2)

    def _block(self, lr: Array, weights: Weights) -> Step:
        decays, update_rms, correlation, size = self.rule.stationary_steps(lr, weights)
        first = np.broadcast_to(correlation.first, len(lr))
        decay, cross, square, norm2 = np.empty((4, len(lr), self.norm2.size))
        y = self.norm2
        for t in range(len(lr)):
            masked = MaskedDecay(decays[t])
            rms = update_rms[t]
            if self.rule.cautious_decay:
                length = np.maximum(rms * size**0.5, np.sqrt(TINY * y))
                masked = masked_decay(decays[t], self._overlap / np.sqrt(y * size), np.sqrt(y) / length)
            left = 1 - masked.decay
            decay[t] = masked.decay
            cross[t] = masked.push * rms * self._overlap
            square[t] = (masked.push * rms) ** 2 * size + masked.noise * y
            norm2[t] = left**2 * y - 2 * left * cross[t] + square[t]
            self._overlap = left * correlation.ratio * self._overlap - first[t] * masked.push * rms * size
            y = norm2[t]
        return Step(decay, cross, square, norm2)
