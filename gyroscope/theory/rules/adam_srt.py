"""Adam-SRT: Adam-S whose momentum is rescaled and transported with the weight (SP Algorithm 1)."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from gyroscope._checks import check_betas, check_decay
from gyroscope._types import Array, Number
from gyroscope.theory.law import Equilibrium, Weights, forgetting_time, leading_order, turning_angle
from gyroscope.theory.recursion import Motion, Step, adam_scale
from gyroscope.theory.rules.base import UpdateRule
from gyroscope.theory.rules.coupled import UNDETERMINED, balance, never_settles
from gyroscope.theory.rules.sgd_mrt import transported_power


@final
@dataclass(frozen=True)
class AdamSRT(UpdateRule):
    """Adam-SRT with L2: transported momentum does not accumulate the decay, a = (1-β1)·lr·λ/√v, and stays tangent.

        leading order:  ‖ω‖³ = lr·√C·g̃/(2λ(1+β1)),   η_r = sqrt(2a)
        exact:          a(2-a)‖ω‖² = E‖u‖²,             cos η_r = 1 - a

    >>> eq = AdamSRT(1e-3, 1e-2).equilibrium(fan_in=512, unit_grad_norm=0.05)
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm:.3f}"
    '0.01675 rad/step at norm 0.310'
    """

    lr: float
    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.999)

    needs: ClassVar[tuple[str, ...]] = ("fan_in", "unit_grad_norm")
    norm_power: ClassVar[float] = 1 / 3
    transports_momentum: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_decay(self.lr, self.weight_decay)
        check_betas(self.betas)

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Tangent updates against the decay that one step's momentum carries."""
        C, g_unit, wd, beta1 = weights.fan_in, weights.unit_grad_norm, self.weight_decay, self.betas[0]
        if C is None or g_unit is None:
            return UNDETERMINED
        kappa = (1 - beta1) / (1 + beta1)
        if wd == 0:
            return never_settles(lr * (C * kappa) ** 0.5)
        if leading:
            norm = np.cbrt(lr * C**0.5 * g_unit / (2 * wd * (1 + beta1)))
            return leading_order((1 - beta1) * lr * wd * norm * C**0.5 / g_unit, 1.0, lr * (C * kappa) ** 0.5)
        norm, decay, damping = balance(lr, wd, C, g_unit, constant=1 / (1 + beta1), slope=1 - beta1)
        decay = (1 - beta1) * decay
        return Equilibrium(turning_angle(decay), norm, lr * (C * kappa) ** 0.5 * damping, forgetting_time(decay))

    def motion(self, norm2: Array) -> Motion:
        """Tangent steps of moments that, times ‖w‖², only remember gradients."""
        return TransportedAdamMotion(self, norm2)


@final
class TransportedAdamMotion(Motion):
    """Adam-SRT on its way: after each step m² and v shrink by ‖w‖²/‖w'‖², as gradients do.

    V = v·‖w‖²/(1-β2) <- β2·V + g̃² + λ²y²,   a = scale·(1-β1)·λ·sqrt(C·y/V),   y' = (1-a)² y + scale²·E‖m‖²·C·y/V
    """

    def __init__(self, rule: AdamSRT, norm2: Array) -> None:
        super().__init__(norm2)
        self.rule = rule
        self._v = np.zeros_like(norm2)

    def _block(self, lr: Array, weights: Weights) -> Step:
        (beta1, beta2), wd = self.rule.betas, self.rule.weight_decay
        scale = adam_scale(lr, self.rule.betas, self.done)
        filled = (1 - beta1) ** 2 * transported_power(beta1, self.done, len(lr))  # E‖m‖²·‖w‖²/g̃²
        y, v, beside = self.norm2, self._v, np.empty_like(self.norm2)
        whole = (weights.unit_grad_norm**2, beta2, wd * wd, 1.0)  # as arrays: NumPy is slower with a plain number
        g2_unit, keep, wd2, one = (np.full_like(y, value) for value in whole)
        per_decay = (scale * (1 - beta1) * wd)[:, None] * np.sqrt(weights.fan_in)
        per_square = (scale * scale * filled)[:, None] * (weights.fan_in * g2_unit)
        decay, square, norm2 = np.empty((3, len(lr), y.size))
        divide, multiply, sqrt, subtract = np.divide, np.multiply, np.sqrt, np.subtract
        for a, u2, after, per_a, per_u in zip(decay, square, norm2, per_decay, per_square, strict=True):
            multiply(y, y, beside)
            beside *= wd2
            beside += g2_unit
            v *= keep
            v += beside
            divide(y, v, a)
            sqrt(a, a)
            a *= per_a
            divide(per_u, v, u2)
            subtract(one, a, beside)
            beside *= beside
            multiply(beside, y, after)
            after += u2
            y = after
        return Step(decay, np.zeros((len(lr), 1)), square, norm2)
