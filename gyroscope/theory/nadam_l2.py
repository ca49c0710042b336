"""NAdam with L2 in the gradient, as torch's NAdam has it unless told to decouple the decay."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from gyroscope.theory.adam_l2 import UNDETERMINED, never_settles
from gyroscope.theory.mean_field import AdamStepSize, Array, Number, Step, adam_scale
from gyroscope.theory.rule import Equilibrium, UpdateRule, Weights, equilibrium_angle, forgetting_time, turning_angle
from gyroscope.theory.sgdm import HeavyBall, update_power
from gyroscope.theory.validate import check_betas, check_decay


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

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """The heavy ball's fixed point, where its step size is the one that v allows at that norm."""
        C, g_unit, wd, beta1 = weights.fan_in, weights.unit_grad_norm, self.weight_decay, self.betas[0]
        if C is None or g_unit is None:
            return UNDETERMINED
        power = update_power(beta1, nesterov=True)
        if wd == 0:
            return never_settles(lr * (1 - beta1) * (C * power) ** 0.5)
        y = g_unit * (lr / wd) ** 0.5
        for _ in range(40):  # y' ∝ y^(1/4) while the decay is a small part of v: each turn quarters the error
            s = (1 - beta1) * lr * (C * y / (g_unit**2 + (wd * y) ** 2)) ** 0.5
            share, shrink = (2 * wd * (1 - beta1), None) if leading else self._ball.fixed_point(s, wd)
            y = g_unit * (s / share) ** 0.5
        decay = s * wd / (1 - beta1)
        leading_angle = equilibrium_angle(decay, 1 / ((1 - beta1) ** 2 * power))
        angle = leading_angle if shrink is None else turning_angle(shrink)
        return Equilibrium(angle, y**0.5, s * g_unit * (power / y) ** 0.5, forgetting_time(decay))

    def mean_field(self, norm2: Array, lr: Array, weights: Weights) -> Iterator[Step]:
        """Adam with L2's motion with Nesterov's update."""
        motion = self._ball.motion(self.weight_decay, AdamStepSize(self.betas[1], weights.fan_in, l2=self.weight_decay))
        scale = (1 - self.betas[0]) * adam_scale(lr, self.betas)
        return motion.mean_field(norm2, np.zeros_like(lr), scale, unit_grad2=weights.unit_grad_norm**2)

    @property
    def _ball(self) -> HeavyBall:
        return HeavyBall.of(self.betas[0], nesterov=True)
