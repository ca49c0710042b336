"""Adam-SRT: Adam-S whose momentum is rescaled and transported with the weight (SP Algorithm 1)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from gyroscope.theory.adam_l2 import UNDETERMINED, decay_power, never_settles
from gyroscope.theory.mean_field import Array, Number, Step, adam_scale, in_blocks
from gyroscope.theory.rule import Equilibrium, UpdateRule, Weights, forgetting_time, leading_order, turning_angle
from gyroscope.theory.sgd_mrt import transported_power
from gyroscope.theory.validate import check_betas, check_decay


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
        z = decay_power(lr, wd, C, g_unit, 1 / (1 + beta1), 1 - beta1)
        y = g_unit * z**0.5 / wd
        decay = (1 - beta1) * lr * wd * (C * y / (g_unit**2 * (1 + z))) ** 0.5
        return Equilibrium(turning_angle(decay), y**0.5, lr * (C * kappa / (1 + z)) ** 0.5, forgetting_time(decay))

    def mean_field(self, norm2: Array, lr: Array, weights: Weights) -> Iterator[Step]:
        """After each step m² and v shrink by ‖w‖²/‖w'‖², as gradients do: times ‖w‖² they only remember gradients."""
        return in_blocks(self._steps(norm2, lr, weights))

    def _steps(self, norm2: Array, lr: Array, weights: Weights) -> Iterator[Step]:
        (beta1, beta2), wd = self.betas, self.weight_decay
        scales = adam_scale(lr, self.betas)
        filled = (1 - beta1) ** 2 * transported_power(beta1, len(lr))  # E‖m‖²·‖w‖²/g̃²
        y, v = norm2, np.zeros_like(norm2)  # v·‖w‖²
        g2_unit, C = weights.unit_grad_norm**2, weights.fan_in
        for scale, square in zip(scales.tolist(), (scales * scales * filled).tolist(), strict=True):
            v = beta2 * v + g2_unit + wd * wd * y * y
            entries = C / v
            decay = (scale * (1 - beta1) * wd) * np.sqrt(entries * y)
            step = Step.of(y, decay, 0.0, square * g2_unit * entries)
            y = step.norm2
            yield step
