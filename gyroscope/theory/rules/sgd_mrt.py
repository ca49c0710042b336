"""SGD-MRT: momentum that is transported with the weight and stays tangent (SP Appendix E.2)."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from gyroscope._types import Array, Number
from gyroscope.theory.law import Equilibrium, Weights, equilibrium_angle, rotation_angle, safe_divide
from gyroscope.theory.recursion import Combination, LinearSteps
from gyroscope.theory.rules.base import MomentumRule
from gyroscope.theory.rules.sgdm import gradient_scaled_equilibrium, update_power


def angular_update(lr: Number, weight_decay: Number) -> Number:
    """Return the angle per step in SGD-MRT's equilibrium, in radians: sqrt(2·lr·weight_decay) (ours).

    Unlike SGDM's, transported momentum never accumulates the L2 term and never points inwards.

    >>> f"{angular_update(0.1, 5e-4):.5f}"
    '0.01000'
    """
    return equilibrium_angle(lr * weight_decay, 1.0)


def transported_power(momentum: float, done: int, steps: int) -> Array:
    """Return E‖m‖²·‖w‖²/g̃² of transported momentum at the steps after `done`: (1-α^(2t))/(1-α²), t from 1.

    >>> transported_power(0.5, 0, 2).tolist()
    [1.0, 1.25]
    """
    squared = momentum**2
    return np.asarray((1 - squared ** np.arange(done + 1, done + steps + 1)) / (1 - squared))


@final
@dataclass(frozen=True)
class SGDMRT(MomentumRule):
    """SGD with momentum rescaled and transported (RT): a = lr·λ, tangent updates of size g/sqrt(1-α²).

        exact:          ‖ω‖⁴ = lr·g̃²/(λ(1-α²)(2 - lr·λ)),   cos η_r = 1 - lr·λ
        leading order:  ‖ω‖⁴ = lr·g̃²/(2λ(1-α²)),             η_r = sqrt(2·lr·λ)

    Both ours (SP E.2 gives the rule): docs/theory.md, "Adam-S, Adam-SRT and SGD-MRT".

    >>> f"{SGDMRT(0.1, 5e-4, momentum=0.9).equilibrium(unit_grad_norm=0.5).norm:.3f}"
    '3.387'
    """

    momentum: float = 0.9

    needs: ClassVar[tuple[str, ...]] = ("unit_grad_norm",)
    norm_power: ClassVar[float] = 0.25
    transports_momentum: ClassVar[bool] = True
    gradient_scales_update: ClassVar[bool] = True

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Return the balance of tangent updates and a decay of lr·λ."""
        wd = self.weight_decay
        g_unit = weights.unit_grad_norm
        # Transport rescales the momentum as gradients are, so in their unit it is as long as the heavy ball's.
        power = update_power(self.momentum, nesterov=False)
        room = 2.0 if leading else 2 - lr * wd
        norm2 = None if g_unit is None else g_unit * safe_divide(lr * power, wd * room) ** 0.5
        angle = angular_update(lr, wd) if leading else rotation_angle(lr * wd)
        return gradient_scaled_equilibrium(angle, norm2, lr * power**0.5, g_unit, lr * wd)

    def linear_steps(self, lr: Array, done: int, weights: Weights) -> LinearSteps:
        """Return steps along new noise as long as the momentum, because transport keeps that tangent to the weight."""
        scale = lr * transported_power(self.momentum, done, len(lr)) ** 0.5
        noise = Combination(0.0, 0.0, 1.0)
        return LinearSteps(
            lr * self.weight_decay, scale, noise, Combination(0.0, 0.0, 0.0), unit_grad2=weights.unit_grad_norm**2
        )
