"""Rules that keep each vector's norm: the update is made tangent and scaled, and the norm is restored."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from gyroscope._types import Array, Number
from gyroscope.theory.law import Equilibrium, Weights
from gyroscope.theory.recursion import Motion, Step
from gyroscope.theory.rules.base import UpdateRule

# The largest angle in radians. A step along the tangent, however long, rotates by less than π/2.
STEEPEST = 1.5


@final
class FixedNormMotion(Motion):
    """Tangent steps at a constant norm, by the rule's angle or by those of a base that starts there and changes it."""

    def __init__(self, rule: Any, norm2: Array) -> None:
        super().__init__(rule, norm2)
        self._base = rule.plain.motion(norm2.copy()) if rule.follows_base else None

    def _block(self, lr: Array, weights: Weights) -> Step:
        if self._base is None:
            angle = self.rule.at(lr[:, None], weights).angular_update
        else:
            before2 = self._base.norm2
            self._base.rule = self.rule.plain
            angle = np.minimum(self._base.advance(lr, weights).angles(before2), STEEPEST)
        zero = np.zeros((len(lr), 1))
        return Step(
            zero, zero, np.tan(angle) ** 2 * self.norm2, np.broadcast_to(self.norm2, (len(lr), self.norm2.size))
        )


@final
@dataclass(frozen=True)
class FixedNorm(UpdateRule):
    """A rotational optimizer (RE Algorithm 1): norms stay, and tan η_r(t) = sqrt(2·a_t/τ) of `rule` in each step.

    With `follows_base` (`gyroscope.optim.follow`) each step rotates as under `rule` from the same initial norm.

    >>> from gyroscope.theory import AdamW
    >>> f"{FixedNorm(AdamW(1e-3, 0.1)).equilibrium().angular_update:.5f}"
    '0.00324'
    """

    rule: UpdateRule
    follows_base: bool = False

    weight_decay: ClassVar[float] = 0.0  # type: ignore[misc]  # the inner rule's sets the angle
    has_weight_decay: ClassVar[bool] = False
    keeps_norm: ClassVar[bool] = True
    angle_formula: ClassVar[str] = "tan η_r = sqrt(2a/τ); a: decay per step, τ: correlation time of the updates"
    norm_power: ClassVar[float] = 0.0
    motion_class: ClassVar[type[Motion]] = FixedNormMotion

    @property
    def lr(self) -> float:  # type: ignore[override]
        """The rule's."""
        return self.rule.lr

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """The inputs of a base that is followed, else the shape if the rule's angle depends on it."""
        if self.follows_base:
            return self.rule.needs
        return tuple(name for name in self.rule.needs if name == "shape")

    @property
    def angle_exponent(self) -> float:
        """The rule's."""
        return self.rule.angle_exponent

    @property
    def plain(self) -> UpdateRule:
        """The rule that sets the angle."""
        return self.rule

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Return the angle, and the rule's memory 1/a. Norms stay as they are."""
        settled = self.rule.at(lr, weights, leading=True)
        tangent: Number = settled.angular_update
        known = tangent is not None and not leading
        return Equilibrium(np.arctan(tangent) if known else tangent, None, None, settled.timescale)
