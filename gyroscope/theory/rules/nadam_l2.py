"""NAdam with L2 in the gradient, as torch's NAdam has it unless told to decouple the decay."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from gyroscope._checks import check_betas, check_decay
from gyroscope._types import Array, Number
from gyroscope.theory.law import Equilibrium, Weights, equilibrium_angle, forgetting_time, turning_angle
from gyroscope.theory.recursion import LinearMotion
from gyroscope.theory.rules.base import MomentumStep, UpdateRule
from gyroscope.theory.rules.coupled import (
    UNDETERMINED,
    coupled_adam_motion,
    fourth,
    never_settles,
    relative_norm,
    strength,
)
from gyroscope.theory.rules.sgdm import HeavyBall, update_power


@final
@dataclass(frozen=True)
class NAdamL2(UpdateRule):
    """NAdam with L2 in the gradient: Nesterov's heavy ball at step size s = lr·(1-β1)/√v, v the mean of (g + λω)².

    The norm is Adam with L2's to leading order, the rotation larger by the square root of the ratio of τ. Ours.

    >>> eq = NAdamL2(1e-3, 1e-2).equilibrium(fan_in=512, unit_grad_norm=0.05)
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm:.3f}"
    '0.01566 rad/step at norm 0.384'
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
    def adam_betas(self) -> tuple[float, float] | None:
        """The betas; with β2 = 0 the update is the sign of the gradient and always bounded."""
        return self.betas if self.betas[1] > 0 else None

    @property
    def momentum_step(self) -> MomentumStep | None:
        """m <- β1·m + (1-β1)·g."""
        return MomentumStep(self.betas[0], 1 - self.betas[0]) if self.betas[0] else None

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """The heavy ball's fixed point, where its step size is the one that v allows at that norm."""
        C, g_unit, wd, beta1 = weights.fan_in, weights.unit_grad_norm, self.weight_decay, self.betas[0]
        if C is None or g_unit is None:
            return UNDETERMINED
        power = update_power(beta1, nesterov=True)
        if wd == 0:
            return never_settles(lr * (1 - beta1) * (C * power) ** 0.5)
        ball, per_lr = self._ball, strength(wd, C, g_unit)
        x = relative_norm(lr, per_lr, 1.0, 0.0)  # the leading order; the exact root is near
        x = x / (1 + max(-ball.bend, 0.0) / 3 * fourth(x))  # and nearer still in the next order, where that lowers it
        twice_k = np.maximum(lr, 1e-100) * (2 * (1 - beta1) * per_lr)
        for _ in range(40):
            z = fourth(x)
            one_z = 1 + z
            e = twice_k * x / one_z**0.5  # the ball's lr·λ
            share = 2 * (1 - beta1) if leading else ball.gradient_share(e)
            lack = e / (share * z) - 1  # of z to the z that belongs to the ball's fixed point
            x = x * (1 + lack / (5 - 2 / one_z))
            if np.abs(lack).max() < 1e-10:
                break
        decay, norm = e / (1 - beta1), x * (g_unit / wd) ** 0.5
        leading_angle = equilibrium_angle(decay, 1 / ((1 - beta1) ** 2 * power))
        angle = leading_angle if leading else turning_angle(ball.shrink(e))
        return Equilibrium(angle, norm, e * (g_unit / wd * power**0.5) / norm, forgetting_time(decay))

    def motion(self, norm2: Array) -> LinearMotion:
        """Adam with L2's motion with Nesterov's update."""
        return coupled_adam_motion(self._ball, self.weight_decay, self.betas, norm2)

    @property
    def _ball(self) -> HeavyBall:
        return HeavyBall.of(self.betas[0], nesterov=True)
