"""Adam-S: Adam with one second moment per vector (SP), which keeps the gradient's direction."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from gyroscope._checks import check_betas, check_decay
from gyroscope._types import Array, Number
from gyroscope.theory.law import Equilibrium, Weights, leading_order
from gyroscope.theory.recursion import LinearMotion
from gyroscope.theory.rules.base import MomentumStep, UpdateRule
from gyroscope.theory.rules.coupled import UNDETERMINED, coupled_adam_equilibrium, coupled_adam_motion, never_settles
from gyroscope.theory.rules.sgdm import HeavyBall


@final
@dataclass(frozen=True)
class AdamS(UpdateRule):
    """Adam-S with L2: a = lr·λ/√v, √v = g̃/(‖ω‖√C), momentum as AdamW's.

        leading order:  ‖ω‖³ = lr·√C·g̃/(2λ),   η_r = sqrt(2a·(1-β1)/(1+β1))

    The exact form is Adam with L2's: for the norm it does not matter whether v is kept per entry or per vector.

    >>> f"{AdamS(1e-3, 1e-2).equilibrium(fan_in=512, unit_grad_norm=0.05).norm:.3f}"
    '0.384'
    """

    lr: float
    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.999)

    needs: ClassVar[tuple[str, ...]] = ("fan_in", "unit_grad_norm")
    norm_power: ClassVar[float] = 1 / 3

    def __post_init__(self) -> None:
        check_decay(self.lr, self.weight_decay)
        check_betas(self.betas)

    @property
    def momentum_step(self) -> MomentumStep | None:
        """m <- β1·m + (1-β1)·g."""
        return MomentumStep(self.betas[0], 1 - self.betas[0]) if self.betas[0] else None

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Exact as Adam with L2, or with the decay's own share in v left out."""
        C, g_unit, wd, beta1 = weights.fan_in, weights.unit_grad_norm, self.weight_decay, self.betas[0]
        if C is None or g_unit is None:
            return UNDETERMINED
        if not leading:
            return coupled_adam_equilibrium(lr, wd, C, g_unit, beta1)
        tau = (1 + beta1) / (1 - beta1)
        if wd == 0:
            return never_settles(lr * (C / tau) ** 0.5)
        norm = np.cbrt(lr * C**0.5 * g_unit / (2 * wd))
        return leading_order(lr * wd * norm * C**0.5 / g_unit, tau, lr * (C / tau) ** 0.5)

    def motion(self, norm2: Array) -> LinearMotion:
        """Adam with L2's motion."""
        return coupled_adam_motion(HeavyBall.of(self.betas[0], nesterov=False), self.weight_decay, self.betas, norm2)
