"""Rules that keep each vector's norm: the update is made tangent and scaled, and the norm restored."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from gyroscope._types import Array, Number
from gyroscope.theory.law import Equilibrium, Weights
from gyroscope.theory.recursion import Motion, Step
from gyroscope.theory.rules.base import UpdateRule

# Radians at most: a step along the tangent, however long, turns by less than π/2.
STEEPEST = 1.5


@final
class FixedNormMotion(Motion):
    """Tangent steps, by the rule's angle, at a norm that never changes."""

    def _block(self, lr: Array, weights: Weights) -> Step:
        tangent = np.tan(self.rule.at(lr[:, None], weights).angular_update)
        return tangent_steps(tangent, self.norm2, len(lr))


@final
class FollowingMotion(Motion):
    """Tangent steps at a norm that never changes, by the angles of a base whose norm does; both start at the same."""

    def __init__(self, rule: Any, norm2: Array) -> None:
        super().__init__(rule, norm2)
        self._base = rule.rule.motion(norm2.copy())

    def _block(self, lr: Array, weights: Weights) -> Step:
        before2 = self._base.norm2
        self._base.rule = self.rule.rule
        angle = self._base.advance(lr, weights).angles(before2)
        return tangent_steps(np.tan(np.minimum(angle, STEEPEST)), self.norm2, len(lr))


def tangent_steps(tangent: Number, norm2: Array, steps: int) -> Step:
    """Return steps along the tangent, of `tangent` times the norm, after each of which the norm is restored."""
    zero = np.zeros((steps, 1))
    return Step(zero, zero, tangent**2 * norm2, np.broadcast_to(norm2, (steps, norm2.size)))


@final
@dataclass(frozen=True)
class FixedNorm(UpdateRule):
    """A rotational optimizer (RE Algorithm 1): norms stay, and each step turns by the equilibrium angle of `rule`.

        tan η_r(t) = sqrt(2·a_t/τ)

    The step of that length along the tangent, brought back to the norm, turns by the arctangent of it. With
    `follows_base` (`gyroscope.optim.follow`) it turns at each step as `rule` would by then, from the same norm.

    >>> from gyroscope.theory import AdamW
    >>> f"{FixedNorm(AdamW(1e-3, 0.1)).equilibrium().angular_update:.5f}"
    '0.00324'
    """

    rule: UpdateRule
    follows_base: bool = False

    weight_decay: ClassVar[float] = 0.0  # type: ignore[misc]  # the inner rule's sets the angle and decays nothing
    has_weight_decay: ClassVar[bool] = False
    keeps_norm: ClassVar[bool] = True
    angle_formula: ClassVar[str] = "tan η_r = sqrt(2a/τ); a: decay per step, τ: correlation time of the updates"
    norm_power: ClassVar[float] = 0.0

    @property
    def lr(self) -> float:  # type: ignore[override]
        """The rule's."""
        return self.rule.lr

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """The whole shape if the rule's angle depends on it; norms are as they are, but for those of a base."""
        if self.follows_base:
            return self.rule.needs
        return tuple(name for name in self.rule.needs if name == "shape")

    def motion(self, norm2: Array) -> Motion:
        """At these squared norms, by the equilibrium angle or by that of the base on its way."""
        return (FollowingMotion if self.follows_base else FixedNormMotion)(self, norm2)

    @property
    def angle_exponent(self) -> float:
        """The rule's."""
        return self.rule.angle_exponent

    @property
    def plain(self) -> UpdateRule:
        """The rule whose angle is taken."""
        return self.rule

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """The angle, and the rule's memory of directions, 1/a: any norm stays as it is."""
        settled = self.rule.at(lr, weights, leading=True)
        tangent: Number = settled.angular_update
        known = tangent is not None and not leading
        return Equilibrium(np.arctan(tangent) if known else tangent, None, None, settled.timescale)
