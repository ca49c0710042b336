"""Hyperball: the update made tangent, scaled to lr times the norm, and the norm restored."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from gyroscope._checks import check_non_negative
from gyroscope.theory.law import Equilibrium
from gyroscope.theory.recursion import Array, Motion, Number, Step
from gyroscope.theory.rules.base import UpdateRule
from gyroscope.theory.weights import Weights


@final
@dataclass(frozen=True)
class Hyperball(UpdateRule):
    """Rotation by decree: tan η_r = lr at every step, at the norm the weight started with.

    Rotation follows lr_t here, where it follows sqrt(lr_t) under weight decay. How long a direction is remembered
    depends on the inner optimizer's momentum, so the timescale is left out.

    >>> f"{Hyperball(lr=0.01).equilibrium().angular_update:.6f}"
    '0.010000'
    """

    lr: float

    needs: ClassVar[tuple[str, ...]] = ()
    norm_power: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        check_non_negative("lr", self.lr)

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """The angle alone: any norm stays as it is."""
        return Equilibrium(lr if leading else np.arctan(lr), None, None, None)

    def motion(self, norm2: Array) -> Motion:
        """The tangent step of lr·‖w‖, and the norm unchanged."""
        return HyperballMotion(norm2)


@final
class HyperballMotion(Motion):
    """Tangent steps of lr·‖w‖ at a norm that never changes."""

    def _block(self, lr: Array, weights: Weights) -> Step:
        zero, still = np.zeros((len(lr), 1)), np.broadcast_to(self.norm2, (len(lr), self.norm2.size))
        return Step(zero, zero, lr[:, None] ** 2 * self.norm2, still)
