"""The step that the direction of a scale-invariant weight takes on the unit sphere (SP Theorem 2).

A weight x = r·u has radius r and direction u, and only u matters to the loss. Vectors lie along the last axis, so an
array of rows is a batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from gyroscope.tools import Array


def dot(a: Array, b: Array) -> Array:
    """Return inner products along the last axis, which stays."""
    return np.asarray(np.sum(a * b, axis=-1, keepdims=True))


def radius_and_direction(name: str, x: npt.ArrayLike) -> tuple[Array, Array]:
    """Return the radius and the direction of each vector. `name` is for the error about a zero vector."""
    x = np.asarray(x, dtype=np.float64)
    r = np.linalg.norm(x, axis=-1, keepdims=True)
    if not np.all(r > 0):
        raise ValueError(f"{name} contains a vector of norm {r.min()}, which has no direction: leave such vectors out")
    return r, x / r


@dataclass(frozen=True, eq=False)
class EffectiveStep:
    """One step on the sphere: from `start` u, by `learning_rate` η_e along minus the tangent `direction` c⊥.

    `radial_factor` is 1 - A⟨c, u⟩, the share of the radius that the radial part of the step leaves.
    """

    learning_rate: Array
    direction: Array
    start: Array
    radial_factor: Array

    @property
    def _tan(self) -> Array:
        return np.asarray(self.learning_rate * np.linalg.norm(self.direction, axis=-1))

    @property
    def angle(self) -> Array:
        """Exact angle by which the weight rotates in this step, in radians: arctan(η_e‖c⊥‖) (SP 37).

        >>> f"{effective_step([1.0, 0.0], a=[0.0, 1.0], b=1.0, lr=1.0).angle:.4f}"
        '0.7854'
        """
        return np.asarray(np.arctan(self._tan))

    @property
    def next_direction(self) -> Array:
        """Direction after the step, exactly: u' = (u - η_e·c⊥)/sqrt(1 + (η_e‖c⊥‖)²)     (SP 12).

        >>> effective_step([5.0, 0.0], a=[0.0, 3.0], b=1.0, lr=1.25).next_direction.round(3).tolist()
        [0.8, -0.6]
        """
        turned = self.start - self.learning_rate[..., None] * self.direction
        return np.asarray(turned / np.hypot(1, self._tan)[..., None])

    @property
    def radius_ratio(self) -> Array:
        """Radius after the step over the radius before it, exactly: (1 - A⟨c, u⟩)·sqrt(1 + (η_e‖c⊥‖)²)     (SP 13).

        >>> f"{effective_step([5.0, 0.0], a=[0.0, 3.0], b=1.0, lr=1.25).radius_ratio:.2f}"
        '1.25'
        """
        return np.asarray(self.radial_factor * np.hypot(1, self._tan))


def effective_step(weight: npt.ArrayLike, a: npt.ArrayLike, b: npt.ArrayLike, lr: npt.ArrayLike) -> EffectiveStep:
    """Return the effective learning rate and direction of the generic step x' = x - lr·a/b, divided by elements.

        c = r·a/(b/s),   A = lr/(r²s),   η_e = A/(1 - A⟨c, u⟩),   s = d^(-1/2)‖b‖, the RMS of b     (SP Theorem 2, 11)

    Exact for any a and b while 1 - A⟨c, u⟩ > 0, that is, unless the step throws the weight through the origin.
    SGD has b = 1 and the momentum for a. Adam has a = m/(1-β1), b = (sqrt(v̂)+eps)·(1-β1^(k+1))/(1-β1).

    >>> step = effective_step([[3.0, 4.0], [6.0, 8.0]], a=[[-0.8, 0.6], [-0.4, 0.3]], b=1.0, lr=0.1)
    >>> step.learning_rate.round(6).tolist()
    [0.004, 0.001]
    """
    r, u = radius_and_direction("weight", weight)
    b = np.broadcast_to(np.asarray(b, dtype=np.float64), u.shape)
    if not np.all(b):
        raise ValueError("b contains a zero, and the step divides by b: add the optimizer's eps to b, such as 1e-8")
    # Only the relative sizes of the entries of b change the direction. Its overall size is part of the learning rate.
    rms_b = np.sqrt(np.mean(b * b, axis=-1, keepdims=True))
    c = r * np.asarray(a, dtype=np.float64) / (b / rms_b)
    A = np.asarray(lr, dtype=np.float64)[..., None] / (r * r * rms_b)
    radial = dot(c, u)
    factor = 1 - A * radial
    if not np.all(factor > 0):
        raise ValueError(
            f"1 - A<c, u> = {factor.min():.6g} is not above 0: lr={lr!r} carries the weight through the origin. "
            f"Divide lr by more than {1 - factor.min():.6g}"
        )
    return EffectiveStep((A / factor)[..., 0], c - radial * u, u, factor[..., 0])


@final
@dataclass(frozen=True)
class SchemeComparison:
    """How far apart two schemes are: the largest distance over all vectors and steps.

    start           of the first directions u_0
    learning_rate   of η_e, relative to the first scheme's
    direction       of c⊥, relative to the first scheme's
    path            of the directions u_k that follow, k ≥ 1
    """

    start: float
    learning_rate: float
    direction: float
    path: float

    def are_equivalent(self, tolerance: float = 1e-9) -> bool:
        """Return whether Lemma 3 calls the schemes equivalent: equal starts, learning rates and directions."""
        return max(self.start, self.learning_rate, self.direction) <= tolerance


def compare_schemes(first: Iterable[EffectiveStep], second: Iterable[EffectiveStep]) -> SchemeComparison:
    """Compare the steps of two schemes by the premises and the conclusion of SP's Lemma 3.

        u_0 = ũ_0,  η_e = η̃_e and c⊥ = c̃⊥ at every step   ⟹   u_k = ũ_k for all k     (SP Lemma 3, 14)

    The premises are sufficient, not necessary. Schemes with other η_e and c⊥ but the same η_e·c⊥ have the same path.

    >>> plain = effective_step([1.0, 0.0], a=[0.0, 1.0], b=1.0, lr=0.1)
    >>> scaled = effective_step([2.0, 0.0], a=[0.0, 0.5], b=1.0, lr=0.4)  # twice the radius, four times lr
    >>> compare_schemes([plain], [scaled]).are_equivalent()
    True
    """
    distances = [_distances(one, other) for one, other in zip(first, second, strict=True)]
    if not distances:
        raise ValueError("there are no steps to compare: give both schemes the same number of steps, at least one")
    start = distances[0][0]
    rate, direction, path = np.max([later for _, *later in distances], axis=0)
    return SchemeComparison(start, float(rate), float(direction), float(path))


def _distances(one: EffectiveStep, other: EffectiveStep) -> tuple[float, float, float, float]:
    size = np.linalg.norm(one.direction, axis=-1)
    gaps = (
        np.linalg.norm(one.start - other.start, axis=-1),
        np.abs(other.learning_rate / one.learning_rate - 1),
        np.linalg.norm(one.direction - other.direction, axis=-1) / np.where(size > 0, size, 1),
        np.linalg.norm(one.next_direction - other.next_direction, axis=-1),
    )
    start, rate, direction, path = (float(gap.max()) for gap in gaps)
    return start, rate, direction, path
