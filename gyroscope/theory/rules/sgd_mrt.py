"""SGD-MRT: momentum that is transported with the weight and stays tangent (SP Appendix E.2)."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from gyroscope._types import Array, Number
from gyroscope.theory.law import Equilibrium, Weights, equilibrium_angle, forgetting_time, over, turning_angle
from gyroscope.theory.recursion import Motion, Step
from gyroscope.theory.rules.base import MomentumRule
from gyroscope.theory.rules.sgdm import update_power


def angular_update(lr: Number, weight_decay: Number) -> Number:
    """Angle a weight vector turns per step in SGD-MRT's equilibrium, in radians: sqrt(2·lr·weight_decay) (ours).

    Not SGDM's: transported momentum never accumulates the L2 term nor points back inwards.

    >>> f"{angular_update(0.1, 5e-4):.5f}"
    '0.01000'
    """
    return equilibrium_angle(lr * weight_decay, 1.0)


def transported_power(momentum: float, done: int, steps: int) -> Array:
    """E‖m‖²·‖w‖²/g̃² of transported momentum at the steps after `done`: (1-α^(2t))/(1-α²), t from 1.

    >>> transported_power(0.5, 0, 2).tolist()
    [1.0, 1.25]
    """
    squared = momentum**2
    return np.asarray((1 - squared ** np.arange(done + 1, done + steps + 1)) / (1 - squared))


@final
class TransportedMotion(Motion):
    """SGD-MRT on its way: transport shrinks m as gradients shrink, so that E‖m‖²·‖w‖² does not know the weight.

    y' = (1-a)² y + lr²·E‖m‖²
    """

    def _block(self, lr: Array, weights: Weights) -> Step:
        decay = lr * self.rule.weight_decay
        keep2 = (1 - decay) ** 2
        # E‖m‖²·‖w‖² is known for all steps beforehand.
        scale = lr * lr * transported_power(self.rule.momentum, self.done, len(lr))
        y = self.norm2
        g2_unit = np.broadcast_to(weights.unit_grad_norm**2, y.shape).copy()
        square, norm2 = np.empty((2, len(lr), y.size))
        for u2, after, keep, s2 in zip(square, norm2, keep2.tolist(), scale.tolist(), strict=True):
            np.divide(g2_unit, y, out=u2)
            np.multiply(u2, s2, out=u2)
            np.multiply(y, keep, out=after)
            np.add(after, u2, out=after)
            y = after
        return Step(decay[:, None], np.zeros((len(lr), 1)), square, norm2)


@final
@dataclass(frozen=True)
class SGDMRT(MomentumRule):
    """SGD with momentum rescaled and transported (RT): a = lr·λ, updates of size g/sqrt(1-α²) that never turn inwards.

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
    motion_class: ClassVar[type[Motion]] = TransportedMotion

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Tangent updates against a decay of lr·λ."""
        wd = self.weight_decay
        g_unit = weights.unit_grad_norm
        # Transport rescales the momentum as gradients are: in their unit it is as long as the heavy ball's.
        power = update_power(self.momentum, nesterov=False)
        room = 2.0 if leading else 2 - lr * wd
        norm2 = None if g_unit is None else g_unit * over(lr * power, wd * room) ** 0.5
        return Equilibrium(
            angular_update=angular_update(lr, wd) if leading else turning_angle(lr * wd),
            norm=None if norm2 is None else norm2**0.5,
            update_rms=None if norm2 is None else over(lr * power**0.5 * g_unit, norm2**0.5),
            timescale=forgetting_time(lr * wd),
        )
