"""Averaged motion of a weight vector under noise: the recursions behind every forecast.

A step is  w <- (1-a) w - u,  and norm and angle follow from E⟨w,u⟩ and E‖u‖² alone. Rules whose update is linear in
weight, momentum and gradient share one recursion of E‖w‖², E⟨w,m⟩ and E‖m‖²; they differ in coefficients and step size.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Number: TypeAlias = Any
"""A float, a NumPy array or a tensor: closed forms are made of operators, so each of them works."""

Array = npt.NDArray[np.float64]

BLOCK = 512
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

    @classmethod
    def of(cls, norm2: Number, decay: Number, cross: Number, square: Number) -> "Step":
        """The step that starts at squared norm `norm2`: y' = (1-a)² y - 2 (1-a) E⟨w,u⟩ + E‖u‖²."""
        keep = 1 - decay
        return cls(decay, cross, square, keep * keep * norm2 - 2 * keep * cross + square)


class Combination(NamedTuple):
    """A vector as a combination of the weight, the momentum before the step and the gradient."""

    weight: float
    momentum: float
    gradient: float

    def dot(self, other: "Combination") -> Array:
        """Coefficients of E⟨self, other⟩ on E‖w‖², E⟨w,m⟩, E‖m‖², E‖g‖²; g is new noise, orthogonal to both."""
        return np.array(
            [
                self.weight * other.weight,
                self.weight * other.momentum + self.momentum * other.weight,
                self.momentum * other.momentum,
                self.gradient * other.gradient,
            ]
        )


WEIGHT = Combination(1.0, 0.0, 0.0)

StepSize: TypeAlias = Callable[[Array], Array]
"""Moments (E‖w‖², E⟨w,m⟩, E‖m‖², E‖g‖²) to the part of the step size that differs between layers."""


@dataclass(frozen=True)
class LinearRule:
    """w <- (1-a) w - s·update,  m <- momentum,  update and momentum linear in weight, momentum and gradient.

    s = scale_t · step_size(moments). E‖u‖² is `excess` times E‖s·update‖²: above 1 where the update adds its own noise.
    """

    update: Combination
    momentum: Combination
    step_size: StepSize | None = None
    excess: float = 1.0

    def mean_field(self, norm2: Array, decay: Array, scale: Array, unit_grad2: Number) -> Iterator[Step]:
        """Blocks of steps with these `decay` and `scale`, from squared norms `norm2`, with E‖g‖² = unit_grad2/E‖w‖².

        The next moments are polynomials in s with coefficients linear in the moments of now: one small matrix product
        with (moments, s·moments, s²·moments) makes a step for all layers, which matters over a hundred thousand steps.
        """
        powers = 1 if self.step_size is None else 3
        basis = np.zeros((powers, 4, norm2.size))
        moments, flat = basis[0], basis.reshape(4 * powers, -1)
        y, state, g2 = moments[0], moments[:3], moments[3]
        y[...] = norm2
        unit_grad2, s = np.broadcast_to(unit_grad2, y.shape).copy(), np.empty_like(moments)
        for first in range(0, len(decay), BLOCK):
            a = decay[first : first + BLOCK]
            forms = self._forms(a, scale[first : first + BLOCK])
            forms = forms.reshape(len(a), 5, -1) if self.step_size else forms.sum(2)
            record = np.empty((len(a), 5, norm2.size))
            for form, new in zip(forms, record, strict=True):
                np.divide(unit_grad2, y, out=g2)
                if self.step_size:
                    s[...] = self.step_size(moments)  # one copy for each moment: a product without broadcasting
                    np.multiply(moments, s, out=basis[1])
                    np.multiply(basis[1], s, out=basis[2])
                np.dot(form, flat, out=new)
                state[...] = new[:3]
            yield Step(a[:, None], record[:, 3], record[:, 4], record[:, 0])

    def _forms(self, decay: Array, scale: Array) -> Array:
        """(step, quantity, power of s, moment): coefficients of E‖w'‖², E⟨w',m'⟩, E‖m'‖², E⟨w,u⟩ and E‖u‖²."""
        keep, scale = 1 - decay[:, None], scale[:, None]
        forms = np.zeros((len(decay), 5, 3, 4))
        forms[:, 3, 1] = scale * WEIGHT.dot(self.update)
        forms[:, 4, 2] = scale**2 * self.excess * self.update.dot(self.update)
        forms[:, 0, 0] = keep**2 * WEIGHT.dot(WEIGHT)
        forms[:, 0, 1] = -2 * keep * forms[:, 3, 1]
        forms[:, 0, 2] = forms[:, 4, 2]
        forms[:, 1, 0] = keep * WEIGHT.dot(self.momentum)
        forms[:, 1, 1] = -scale * self.update.dot(self.momentum)
        forms[:, 2, 0] = self.momentum.dot(self.momentum)
        return forms


@dataclass
class AdamStepSize:
    """sqrt(C/v) with v <- β2·v + E‖g + λw‖²: Adam's step size but for what all layers share (`adam_scale`)."""

    beta2: float
    fan_in: Number
    l2: float = 0.0
    v: Number = 0.0

    def __call__(self, moments: Array) -> Array:
        """Advance v by one gradient and give the step size it allows."""
        self.v = self.beta2 * self.v + moments[3]
        if self.l2:
            self.v += self.l2 * self.l2 * moments[0]
        return np.asarray(np.sqrt(self.fan_in / self.v))


def adam_scale(lr: Array, betas: tuple[float, float]) -> Array:
    """lr with both bias corrections and the units of `AdamStepSize`: lr/(1-β1^t)·sqrt((1-β2^t)/(1-β2)), t from 1.

    >>> adam_scale(np.array([0.5]), (0.5, 0.5)).tolist()
    [1.0]
    """
    t = np.arange(1, len(lr) + 1)
    return np.asarray(lr / (1 - betas[0] ** t) * ((1 - betas[1] ** t) / (1 - betas[1])) ** 0.5)


def in_blocks(steps: Iterator[Step]) -> Iterator[Step]:
    """Gather single steps into blocks."""
    while block := list(islice(steps, BLOCK)):
        gathered = Step(*(np.empty((len(block), block[0].norm2.size)) for _ in Step._fields))
        for t, step in enumerate(block):
            for values, value in zip(gathered, step, strict=True):
                values[t] = value
        yield gathered


def stationary_mean_field(norm2: Array, decay: Array, update_rms: Array, first: float, ratio: float) -> Iterator[Step]:
    """Motion under updates of known size, whose autocorrelation is first·ratio^(k-1).

    The overlap of the weight with the next update follows from the overlap with the last one:
    E⟨w', u'⟩ = (1-a)·ratio·E⟨w, u⟩ - first·E‖u‖², both in units of the update's size.
    """
    overlap: Number = np.zeros_like(norm2)  # E⟨w, u⟩ / update_rms
    for a, rms in zip(decay.tolist(), update_rms.tolist(), strict=True):
        step = Step.of(norm2, a, rms * overlap, rms * rms)
        overlap = (1 - a) * ratio * overlap - first * rms
        norm2 = step.norm2
        yield step
