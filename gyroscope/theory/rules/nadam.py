"""NAdam: Adam whose step looks one gradient ahead, with decoupled weight decay or with L2 in the gradient.

torch's slow ramp of β1 (`momentum_decay`) is over after some ten thousand steps and is left out.
"""

from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np

from gyroscope._types import Array, Number
from gyroscope.theory.law import Correlation, Equilibrium, Weights, equilibrium_angle, forgetting_time, turning_angle
from gyroscope.theory.recursion import Combination, LinearSteps
from gyroscope.theory.rules.base import BetaRule
from gyroscope.theory.rules.coupled_adam import CoupledAdam, fourth, relative_norm, strength
from gyroscope.theory.rules.decoupled import decoupled_adam_steps, decoupled_equilibrium
from gyroscope.theory.rules.sgdm import update_power


def nesterov_filter(beta: Number) -> tuple[Number, Number]:
    """c0 and c1 of β·m' + (1-β)·g, m' the average of g with β; from c1 on the coefficients fall by β each step.

    >>> nesterov_filter(0.5)
    (0.75, 0.125)
    """
    return 1 - beta * beta, (1 - beta) * beta * beta


def nesterov_power(beta: Number) -> Number:
    """Σc² of that filter, and 1/τ, for its coefficients add up to 1.

    >>> f"{nesterov_power(0.9):.4f}"
    '0.0706'
    """
    return (1 - beta) ** 2 * update_power(beta, nesterov=True)


@final
@dataclass(frozen=True)
class NAdam(BetaRule):
    """NAdam, decoupled: u ∝ β1·m' + (1-β1)·g, a filter with c0 = (1-β)(1+β), c_i = (1-β)β^(i+1).

        ‖ω‖ and η_r by the one law with τ = 1/Σc²     (ours)

    Derived in docs/theory.md, "Nesterov's momentum and NAdam".

    >>> f"{NAdam(lr=1e-3, weight_decay=0.1).equilibrium(fan_in=512).angular_update:.5f}"
    '0.00376'
    """

    corrected_decay: bool = False
    cautious_decay: bool = field(default=False, repr=False)

    needs: ClassVar[tuple[str, ...]] = ("fan_in",)
    second_moment_per_entry: ClassVar[bool] = True
    is_decoupled: ClassVar[bool] = True

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """The one law; E‖u‖² = lr²·C·Σc²."""
        beta1 = self.betas[0]
        C = weights.fan_in
        rms = None if C is None else lr * (C * nesterov_power(beta1)) ** 0.5
        return decoupled_equilibrium(self, lr, Correlation.of_filter(*nesterov_filter(beta1), beta1), rms, leading)

    def linear_steps(self, lr: Array, done: int, weights: Weights) -> LinearSteps:
        """AdamW's steps with u ∝ β1·m' + (1-β1)·g = β1²·m + (1-β1²)·g."""
        beta1 = self.betas[0]
        return decoupled_adam_steps(self, lr, done, weights, update=Combination(0.0, beta1**2, 1 - beta1**2))


@final
@dataclass(frozen=True)
class NAdamL2(CoupledAdam):
    """NAdam with L2, as torch's NAdam has it by default: Nesterov's heavy ball at step size s = lr·(1-β1)/√v.

    v is the mean of (g + λω)². The norm is Adam with L2's to leading order, the rotation larger by the square root of
    the ratio of τ. Ours: docs/theory.md, "Nesterov's momentum and NAdam".

    >>> eq = NAdamL2(1e-3, 1e-2).equilibrium(fan_in=512, unit_grad_norm=0.05)
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm:.3f}"
    '0.01566 rad/step at norm 0.384'
    """

    second_moment_per_entry: ClassVar[bool] = True
    looks_ahead: ClassVar[bool] = True

    @property
    def power(self) -> float:
        """Σc² of the filter, 1/τ."""
        return float(nesterov_power(self.betas[0]))

    def balanced(self, lr: Number, C: Number, g_unit: Number, leading: bool) -> Equilibrium:
        """The ball's fixed point, where its step size is the one that v allows at that norm."""
        wd = self.weight_decay
        x, e = self._balance(lr, strength(wd, C, g_unit), leading)
        decay = e / (1 - self.betas[0])
        norm = x * (g_unit / wd) ** 0.5
        angle = equilibrium_angle(decay, 1 / self.power) if leading else turning_angle(self.ball.shrink(e))
        return Equilibrium(angle, norm, decay * (g_unit / wd * self.power**0.5) / norm, forgetting_time(decay))

    def _balance(self, lr: Number, per_lr: Number, leading: bool) -> tuple[Number, Number]:
        """The relative norm x = ‖ω‖·sqrt(λ/g̃) at rest, and the ball's e = lr·λ there."""
        beta1 = self.betas[0]
        ball = self.ball
        x = relative_norm(lr, per_lr, 1.0, 0.0)  # the leading order; the exact root is near
        x = x / (1 + max(-ball.bend, 0.0) / 3 * fourth(x))  # and nearer still in the next order, where that lowers it
        # 1e-100 stands for lr = 0, where the root would be 0/0.
        twice_k = np.maximum(lr, 1e-100) * (2 * (1 - beta1) * per_lr)
        for _ in range(40):
            z = fourth(x)
            e = twice_k * x / (1 + z) ** 0.5
            share = 2 * (1 - beta1) if leading else ball.gradient_share(e)
            lack = e / (share * z) - 1  # of z to the z that belongs to the ball's fixed point
            # 5 - 2/(1+z) is minus the slope of ln(e/z) in ln x; the share hardly varies.
            x = x * (1 + lack / (5 - 2 / (1 + z)))
            if np.abs(lack).max() < 1e-10:
                break
        return x, e
