"""Adam-S, Adam with one second moment per vector, and Adam-SRT, which also transports its momentum (SP)."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from gyroscope._types import Array, Number
from gyroscope.theory.law import Equilibrium, Weights, forgetting_time, leading_order, rotation_angle
from gyroscope.theory.recursion import Motion, Step
from gyroscope.theory.rules.coupled_adam import CoupledAdam, balance, heavy_ball_balance
from gyroscope.theory.rules.sgd_mrt import transported_power


@final
@dataclass(frozen=True)
class AdamS(CoupledAdam):
    """Adam-S with L2: a = lr·λ/√v, √v = g̃/(‖ω‖√C), momentum as AdamW's.

        leading order:  ‖ω‖³ = lr·√C·g̃/(2λ),   η_r = sqrt(2a·(1-β1)/(1+β1))     (ours)

    SP gives the rule. Its equilibrium is in docs/theory.md, "Adam-S, Adam-SRT and SGD-MRT". The exact form is Adam
    with L2's, because the norm does not depend on whether v is kept per entry or per vector.

    >>> f"{AdamS(1e-3, 1e-2).equilibrium(fan_in=512, unit_grad_norm=0.05).norm:.3f}"
    '0.384'
    """

    def balanced(self, lr: Number, C: Number, g_unit: Number, leading: bool) -> Equilibrium:
        """Return Adam with L2's balance, or the leading order without the decay's own share in v."""
        if not leading:
            return heavy_ball_balance(self, lr, C, g_unit)
        norm = np.cbrt(lr * C**0.5 * g_unit / (2 * self.weight_decay))
        decay = lr * self.weight_decay * norm * C**0.5 / g_unit
        return leading_order(decay, 1 / self.power, lr * (C * self.power) ** 0.5)


@final
class TransportedAdamMotion(Motion):
    """Motion under Adam-SRT: after each step m² and v shrink by ‖w‖²/‖w'‖², as gradients do.

    V = v·‖w‖²/(1-β2) <- β2·V + g̃² + λ²y²,   a = scale·(1-β1)·λ·sqrt(C·y/V),   y' = (1-a)² y + scale²·E‖m‖²·C·y/V
    """

    def __init__(self, rule: Any, norm2: Array) -> None:
        super().__init__(rule, norm2)
        self._v = np.zeros_like(norm2)

    def _block(self, lr: Array, weights: Weights) -> Step:
        beta1, beta2 = self.rule.betas
        wd = self.rule.weight_decay
        scale = self.rule.adam_scale(lr, self.done)
        filled = (1 - beta1) ** 2 * transported_power(beta1, self.done, len(lr))  # E‖m‖²·‖w‖²/g̃²
        g2_unit = weights.unit_grad_norm**2
        decay2 = np.broadcast_to(wd * wd, len(lr))
        # a and E‖u‖² are these times sqrt(y/V) and 1/V.
        per_decay = (scale * (1 - beta1) * wd)[:, None] * np.sqrt(weights.fan_in)
        per_square = (scale * scale * filled)[:, None] * (weights.fan_in * g2_unit)
        decay, square, norm2 = np.empty((3, len(lr), self.norm2.size))
        y = self.norm2
        for t in range(len(lr)):
            self._v = beta2 * self._v + (y * y * decay2[t] + g2_unit)
            decay[t] = np.sqrt(y / self._v) * per_decay[t]
            square[t] = per_square[t] / self._v
            norm2[t] = (1 - decay[t]) ** 2 * y + square[t]
            y = norm2[t]
        return Step(decay, np.zeros((len(lr), 1)), square, norm2)


@final
@dataclass(frozen=True)
class AdamSRT(CoupledAdam):
    """Adam-SRT with L2: transported momentum does not accumulate the decay, a = (1-β1)·lr·λ/√v, and stays tangent.

        leading order:  ‖ω‖³ = lr·√C·g̃/(2λ(1+β1)),   η_r = sqrt(2a)     (ours)
        exact:          a(2-a)‖ω‖² = E‖u‖²,             cos η_r = 1 - a     (ours)

    SP Algorithm 1 is the rule. Its equilibrium is in docs/theory.md, "Adam-S, Adam-SRT and SGD-MRT".

    >>> eq = AdamSRT(1e-3, 1e-2).equilibrium(fan_in=512, unit_grad_norm=0.05)
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm:.3f}"
    '0.01675 rad/step at norm 0.310'
    """

    transports_momentum: ClassVar[bool] = True
    motion_class: ClassVar[type[Motion]] = TransportedAdamMotion

    def balanced(self, lr: Number, C: Number, g_unit: Number, leading: bool) -> Equilibrium:
        """Return the balance of tangent updates and the decay that one step's momentum carries."""
        wd = self.weight_decay
        beta1 = self.betas[0]
        rms = lr * (C * self.power) ** 0.5
        if leading:
            norm = np.cbrt(lr * C**0.5 * g_unit / (2 * wd * (1 + beta1)))
            return leading_order((1 - beta1) * lr * wd * norm * C**0.5 / g_unit, 1.0, rms)
        norm, decay, damping = balance(lr, wd, C, g_unit, constant=1 / (1 + beta1), slope=1 - beta1)
        decay = (1 - beta1) * decay
        return Equilibrium(rotation_angle(decay), norm, rms * damping, forgetting_time(decay))
