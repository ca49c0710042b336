"""Adam with L2 in the gradient: the decay is scaled like the gradient, so it depends on it."""

from dataclasses import dataclass
from typing import ClassVar, final

from gyroscope._checks import check_betas, check_decay
from gyroscope._types import Array, Number
from gyroscope.theory.law import Equilibrium, Weights, forgetting_time, over
from gyroscope.theory.recursion import LinearMotion
from gyroscope.theory.rules.base import MomentumStep, UpdateRule
from gyroscope.theory.rules.coupled import (
    UNDETERMINED,
    balance,
    coupled_adam_equilibrium,
    coupled_adam_motion,
    never_settles,
)
from gyroscope.theory.rules.sgdm import HeavyBall


@final
@dataclass(frozen=True)
class AdamL2(UpdateRule):
    """Adam with L2 regularisation (RE Appendix I): torch's Adam with weight_decay. Everything depends on the gradient.

        a = lr·λ·sqrt(C/E‖g + λω‖²)
        exact:          the heavy ball's fixed point at step size lr·(1-β1)/√v,   cos η_r = 1 - a·(1-β1)/(1+β1)
        leading order:  4λ²x³ - C·lr²λ²x² - C·lr²g̃² = 0 for x = ‖ω‖²,   η_r² = lr²·C·(1-β1)/(1+β1)/(x·(1 + λ²x²/g̃²))

    >>> eq = AdamL2(1e-3, 1e-2).equilibrium(fan_in=512, unit_grad_norm=0.05)
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm:.3f}"
    '0.01352 rad/step at norm 0.384'
    """

    lr: float
    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.999)

    needs: ClassVar[tuple[str, ...]] = ("fan_in", "unit_grad_norm")
    norm_power: ClassVar[float] = 1 / 3

    def __post_init__(self) -> None:
        check_decay(self.lr, self.weight_decay)
        check_betas(self.betas)

    @property
    def adam_betas(self) -> tuple[float, float] | None:
        """The betas; with β2 = 0 the update is the sign of the gradient and always bounded."""
        return self.betas if self.betas[1] > 0 else None

    @property
    def momentum_step(self) -> MomentumStep | None:
        """m <- β1·m + (1-β1)·g."""
        return MomentumStep(self.betas[0], 1 - self.betas[0]) if self.betas[0] else None

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Exact, or the paper's cubic, which is exact at β1 = 0."""
        kappa = (1 - self.betas[0]) / (1 + self.betas[0])
        C, g_unit, wd = weights.fan_in, weights.unit_grad_norm, self.weight_decay
        if C is None or g_unit is None:
            return UNDETERMINED
        if not leading:
            return coupled_adam_equilibrium(lr, wd, C, g_unit, self.betas[0])
        if wd == 0:
            return never_settles(lr * (C * kappa) ** 0.5)
        norm, decay, damping = balance(lr, wd, C, g_unit)
        rms = lr * (C * kappa) ** 0.5 * damping
        return Equilibrium(over(rms, norm), norm, rms, forgetting_time(decay))

    def motion(self, norm2: Array) -> LinearMotion:
        """The heavy ball with the step size that v allows."""
        return coupled_adam_motion(HeavyBall.of(self.betas[0], nesterov=False), self.weight_decay, self.betas, norm2)
