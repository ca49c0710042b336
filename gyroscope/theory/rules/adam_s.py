"""Adam-S, Adam with one second moment per vector, and Adam-SRT, which also transports its momentum (SP)."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from gyroscope._types import Array, Number
from gyroscope.theory.law import Equilibrium, Weights, forgetting_time, leading_order, turning_angle
from gyroscope.theory.recursion import Motion, Step
from gyroscope.theory.rules.coupled_adam import CoupledAdam, balance, heavy_ball_balance
from gyroscope.theory.rules.sgd_mrt import transported_power


@final
@dataclass(frozen=True)
class AdamS(CoupledAdam):
    """Adam-S with L2: a = lr·λ/√v, √v = g̃/(‖ω‖√C), momentum as AdamW's.

        leading order:  ‖ω‖³ = lr·√C·g̃/(2λ),   η_r = sqrt(2a·(1-β1)/(1+β1))     (ours)

    SP gives the rule, not its equilibrium: docs/theory.md, "Adam-S, Adam-SRT and SGD-MRT". The exact form is Adam with
    L2's: for the norm it does not matter whether v is kept per entry or per vector.

    >>> f"{AdamS(1e-3, 1e-2).equilibrium(fan_in=512, unit_grad_norm=0.05).norm:.3f}"
    '0.384'
    """

    def balanced(self, lr: Number, C: Number, g_unit: Number, leading: bool) -> Equilibrium:
        """Exact as Adam with L2, or with the decay's own share in v left out."""
        if not leading:
            return heavy_ball_balance(self, lr, C, g_unit)
        norm = np.cbrt(lr * C**0.5 * g_unit / (2 * self.weight_decay))
        decay = lr * self.weight_decay * norm * C**0.5 / g_unit
        return leading_order(decay, 1 / self.power, lr * (C * self.power) ** 0.5)


@final
class TransportedAdamMotion(Motion):
    """Adam-SRT on its way: after each step m² and v shrink by ‖w‖²/‖w'‖², as gradients do.

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
        y = self.norm2
        v = self._v
        beside = np.empty_like(y)
        # As arrays: NumPy is slower with a plain number. In place, for a hundred thousand steps are bound by NumPy's
        # calls and not by arithmetic.
        g2_unit, keep, unit = (np.full_like(y, value) for value in (weights.unit_grad_norm**2, beta2, 1.0))
        decay2 = np.broadcast_to(np.reshape(wd * wd, (-1, 1)), (len(lr), y.size)).copy()
        # a and E‖u‖² are these times sqrt(y/V) and 1/V.
        per_decay = (scale * (1 - beta1) * wd)[:, None] * np.sqrt(weights.fan_in)
        per_square = (scale * scale * filled)[:, None] * (weights.fan_in * g2_unit)
        decay, square, norm2 = np.empty((3, len(lr), y.size))
        for a, u2, after, per_a, per_u, wd2 in zip(decay, square, norm2, per_decay, per_square, decay2, strict=True):
            np.multiply(y, y, beside)
            beside *= wd2
            beside += g2_unit
            v *= keep
            v += beside
            np.divide(y, v, a)
            np.sqrt(a, a)
            a *= per_a
            np.divide(per_u, v, u2)
            np.subtract(unit, a, beside)
            beside *= beside
            np.multiply(beside, y, after)
            after += u2
            y = after
        return Step(decay, np.zeros((len(lr), 1)), square, norm2)


@final
@dataclass(frozen=True)
class AdamSRT(CoupledAdam):
    """Adam-SRT with L2: transported momentum does not accumulate the decay, a = (1-β1)·lr·λ/√v, and stays tangent.

        leading order:  ‖ω‖³ = lr·√C·g̃/(2λ(1+β1)),   η_r = sqrt(2a)     (ours)
        exact:          a(2-a)‖ω‖² = E‖u‖²,             cos η_r = 1 - a     (ours)

    SP Algorithm 1 is the rule; its equilibrium is in docs/theory.md, "Adam-S, Adam-SRT and SGD-MRT".

    >>> eq = AdamSRT(1e-3, 1e-2).equilibrium(fan_in=512, unit_grad_norm=0.05)
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm:.3f}"
    '0.01675 rad/step at norm 0.310'
    """

    transports_momentum: ClassVar[bool] = True
    motion_class: ClassVar[type[Motion]] = TransportedAdamMotion

    def balanced(self, lr: Number, C: Number, g_unit: Number, leading: bool) -> Equilibrium:
        """Tangent updates against the decay that one step's momentum carries."""
        wd = self.weight_decay
        beta1 = self.betas[0]
        rms = lr * (C * self.power) ** 0.5
        if leading:
            norm = np.cbrt(lr * C**0.5 * g_unit / (2 * wd * (1 + beta1)))
            return leading_order((1 - beta1) * lr * wd * norm * C**0.5 / g_unit, 1.0, rms)
        norm, decay, damping = balance(lr, wd, C, g_unit, constant=1 / (1 + beta1), slope=1 - beta1)
        decay = (1 - beta1) * decay
        return Equilibrium(turning_angle(decay), norm, rms * damping, forgetting_time(decay))
