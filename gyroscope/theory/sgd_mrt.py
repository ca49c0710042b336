"""SGD-MRT: momentum that is transported with the weight and stays tangent (SP Appendix E.2)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from gyroscope.theory.mean_field import Array, Number, Step, in_blocks
from gyroscope.theory.rule import (
    Equilibrium,
    UpdateRule,
    Weights,
    equilibrium_angle,
    forgetting_time,
    over,
    turning_angle,
)
from gyroscope.theory.validate import check_decay, check_fraction


def angular_update(lr: Number, weight_decay: Number) -> Number:
    """Angle a weight vector turns per step in SGD-MRT's equilibrium, in radians: sqrt(2·lr·weight_decay).

    Not SGDM's: transported momentum never accumulates the L2 term nor points back inwards.

    >>> f"{angular_update(0.1, 5e-4):.5f}"
    '0.01000'
    """
    return equilibrium_angle(lr * weight_decay, 1.0)


def transported_power(momentum: float, steps: int) -> Array:
    """E‖m‖²·‖w‖²/g̃² of transported momentum at steps 1, 2, …: (1-α^(2t))/(1-α²).

    >>> transported_power(0.5, 2).tolist()
    [1.0, 1.25]
    """
    squared = momentum**2
    return np.asarray((1 - squared ** np.arange(1, steps + 1)) / (1 - squared))


@final
@dataclass(frozen=True)
class SGDMRT(UpdateRule):
    """SGD with momentum rescaled and transported (RT): a = lr·λ, updates of size g/sqrt(1-α²) that never turn inwards.

        exact:          ‖ω‖⁴ = lr·g̃²/(λ(1-α²)(2 - lr·λ)),   cos η_r = 1 - lr·λ
        leading order:  ‖ω‖⁴ = lr·g̃²/(2λ(1-α²)),             η_r = sqrt(2·lr·λ)

    >>> f"{SGDMRT(0.1, 5e-4, momentum=0.9).equilibrium(unit_grad_norm=0.5).norm:.3f}"
    '3.387'
    """

    lr: float
    weight_decay: float
    momentum: float = 0.9

    needs: ClassVar[tuple[str, ...]] = ("unit_grad_norm",)
    norm_power: ClassVar[float] = 0.25

    def __post_init__(self) -> None:
        check_decay(self.lr, self.weight_decay)
        check_fraction("momentum", self.momentum)

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Tangent updates against a decay of lr·λ."""
        wd, g_unit, power = self.weight_decay, weights.unit_grad_norm, 1 / (1 - self.momentum**2)
        room = 2.0 if leading else 2 - lr * wd
        norm2 = None if g_unit is None else g_unit * over(lr * power, wd * room) ** 0.5
        return Equilibrium(
            angular_update=angular_update(lr, wd) if leading else turning_angle(lr * wd),
            norm=None if norm2 is None else norm2**0.5,
            update_rms=None if norm2 is None else over(lr * power**0.5 * g_unit, norm2**0.5),
            timescale=forgetting_time(lr * wd),
        )

    def mean_field(self, norm2: Array, lr: Array, weights: Weights) -> Iterator[Step]:
        """E‖m‖²·‖w‖² does not know the weight: transport shrinks m as a gradient's square would, by ‖w‖²/‖w'‖²."""
        return in_blocks(self._steps(norm2, lr, weights))

    def _steps(self, norm2: Array, lr: Array, weights: Weights) -> Iterator[Step]:
        filled = transported_power(self.momentum, len(lr))
        y, g2_unit = norm2, weights.unit_grad_norm**2
        for decay, scale in zip((lr * self.weight_decay).tolist(), (lr * lr * filled).tolist(), strict=True):
            step = Step.of(y, decay, 0.0, scale * (g2_unit / y))
            y = step.norm2
            yield step
