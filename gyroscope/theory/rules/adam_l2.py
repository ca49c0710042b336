"""Adam with L2 in the gradient: the decay is scaled like the gradient, so it depends on it."""

from dataclasses import dataclass
from typing import ClassVar, final

from gyroscope._types import Array, Number
from gyroscope.theory.law import UNDETERMINED, Equilibrium, Weights, forgetting_time, never_settles, over
from gyroscope.theory.recursion import LinearMotion
from gyroscope.theory.rules.base import BetaRule
from gyroscope.theory.rules.coupled_adam import balance, coupled_adam_equilibrium, coupled_adam_motion
from gyroscope.theory.rules.sgdm import HeavyBall


@final
@dataclass(frozen=True)
class AdamL2(BetaRule):
    """Adam with L2 regularisation (RE Appendix I): torch's Adam with weight_decay. Everything depends on the gradient.

        a = lr·λ·sqrt(C/E‖g + λω‖²)     (RE 76, 78)
        leading order:  4λ²x³ - C·lr²λ²x² - C·lr²g̃² = 0 for x = ‖ω‖²     (RE 84)
                        η_r² = lr²·C·(1-β1)/(1+β1)/(x·(1 + λ²x²/g̃²))     (RE 87)
        exact:          the heavy ball's fixed point at step size lr·(1-β1)/√v,   cos η_r = 1 - a·(1-β1)/(1+β1)   (ours)

    Derived in docs/theory.md, "Adam with L2".

    >>> eq = AdamL2(1e-3, 1e-2).equilibrium(fan_in=512, unit_grad_norm=0.05)
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm:.3f}"
    '0.01352 rad/step at norm 0.384'
    """

    needs: ClassVar[tuple[str, ...]] = ("fan_in", "unit_grad_norm")
    norm_power: ClassVar[float] = 1 / 3
    second_moment_per_entry: ClassVar[bool] = True

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Exact, or the paper's cubic, which is exact at β1 = 0."""
        C = weights.fan_in
        g_unit = weights.unit_grad_norm
        wd = self.weight_decay
        if C is None or g_unit is None:
            return UNDETERMINED
        if not leading:
            return coupled_adam_equilibrium(lr, wd, C, g_unit, self.betas[0])
        kappa = (1 - self.betas[0]) / (1 + self.betas[0])
        if wd == 0:
            return never_settles(lr * (C * kappa) ** 0.5)
        norm, decay, damping = balance(lr, wd, C, g_unit)
        rms = lr * (C * kappa) ** 0.5 * damping
        return Equilibrium(over(rms, norm), norm, rms, forgetting_time(decay))

    def motion(self, norm2: Array) -> LinearMotion:
        """The heavy ball with the step size that v allows."""
        return coupled_adam_motion(HeavyBall.of(self.betas[0], nesterov=False), self.weight_decay, self.betas, norm2)
