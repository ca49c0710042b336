"""Adam-S, Adam with one second moment per vector, and Adam-SRT, which also transports its momentum (SP)."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from gyroscope._types import Array, Number
from gyroscope.theory.law import (
    UNDETERMINED,
    Equilibrium,
    Weights,
    forgetting_time,
    leading_order,
    never_settles,
    turning_angle,
)
from gyroscope.theory.recursion import LinearMotion, Motion, Step, adam_scale
from gyroscope.theory.rules.base import BetaRule
from gyroscope.theory.rules.coupled_adam import balance, coupled_adam_equilibrium, coupled_adam_motion
from gyroscope.theory.rules.sgd_mrt import transported_power
from gyroscope.theory.rules.sgdm import HeavyBall


@final
@dataclass(frozen=True)
class AdamS(BetaRule):
    """Adam-S with L2: a = lr·λ/√v, √v = g̃/(‖ω‖√C), momentum as AdamW's.

        leading order:  ‖ω‖³ = lr·√C·g̃/(2λ),   η_r = sqrt(2a·(1-β1)/(1+β1))     (ours)

    SP gives the rule, not its equilibrium: docs/theory.md, "Adam-S, Adam-SRT and SGD-MRT". The exact form is Adam with
    L2's: for the norm it does not matter whether v is kept per entry or per vector.

    >>> f"{AdamS(1e-3, 1e-2).equilibrium(fan_in=512, unit_grad_norm=0.05).norm:.3f}"
    '0.384'
    """

    needs: ClassVar[tuple[str, ...]] = ("fan_in", "unit_grad_norm")
    norm_power: ClassVar[float] = 1 / 3

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Exact as Adam with L2, or with the decay's own share in v left out."""
        C = weights.fan_in
        g_unit = weights.unit_grad_norm
        wd = self.weight_decay
        beta1 = self.betas[0]
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


@final
@dataclass(frozen=True)
class AdamSRT(BetaRule):
    """Adam-SRT with L2: transported momentum does not accumulate the decay, a = (1-β1)·lr·λ/√v, and stays tangent.

        leading order:  ‖ω‖³ = lr·√C·g̃/(2λ(1+β1)),   η_r = sqrt(2a)     (ours)
        exact:          a(2-a)‖ω‖² = E‖u‖²,             cos η_r = 1 - a     (ours)

    SP Algorithm 1 is the rule; its equilibrium is in docs/theory.md, "Adam-S, Adam-SRT and SGD-MRT".

    >>> eq = AdamSRT(1e-3, 1e-2).equilibrium(fan_in=512, unit_grad_norm=0.05)
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm:.3f}"
    '0.01675 rad/step at norm 0.310'
    """

    needs: ClassVar[tuple[str, ...]] = ("fan_in", "unit_grad_norm")
    norm_power: ClassVar[float] = 1 / 3
    transports_momentum: ClassVar[bool] = True

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Tangent updates against the decay that one step's momentum carries."""
        C = weights.fan_in
        g_unit = weights.unit_grad_norm
        wd = self.weight_decay
        beta1 = self.betas[0]
        if C is None or g_unit is None:
            return UNDETERMINED
        rms = lr * (C * (1 - beta1) / (1 + beta1)) ** 0.5
        if wd == 0:
            return never_settles(rms)
        if leading:
            norm = np.cbrt(lr * C**0.5 * g_unit / (2 * wd * (1 + beta1)))
            return leading_order((1 - beta1) * lr * wd * norm * C**0.5 / g_unit, 1.0, rms)
        norm, decay, damping = balance(lr, wd, C, g_unit, constant=1 / (1 + beta1), slope=1 - beta1)
        decay = (1 - beta1) * decay
        return Equilibrium(turning_angle(decay), norm, rms * damping, forgetting_time(decay))

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
        beta1, beta2 = self.rule.betas
        wd = self.rule.weight_decay
        scale = adam_scale(lr, self.rule.betas, self.done)
        filled = (1 - beta1) ** 2 * transported_power(beta1, self.done, len(lr))  # E‖m‖²·‖w‖²/g̃²
        y = self.norm2
        v = self._v
        beside = np.empty_like(y)
        # As arrays: NumPy is slower with a plain number. In place, for a hundred thousand steps are bound by NumPy's
        # calls and not by arithmetic.
        constants = (weights.unit_grad_norm**2, beta2, wd * wd, 1.0)
        g2_unit, keep, wd2, unit = (np.full_like(y, value) for value in constants)
        per_decay = (scale * (1 - beta1) * wd)[:, None] * np.sqrt(weights.fan_in)
        per_square = (scale * scale * filled)[:, None] * (weights.fan_in * g2_unit)
        decay, square, norm2 = np.empty((3, len(lr), y.size))
        for a, u2, after, per_a, per_u in zip(decay, square, norm2, per_decay, per_square, strict=True):
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
