"""Adam with L2 in the gradient: the decay is scaled like the gradient, so it depends on it."""

from dataclasses import dataclass, field
from typing import ClassVar, final

from gyroscope._types import Number
from gyroscope.theory.law import Equilibrium, forgetting_time, over
from gyroscope.theory.rules.coupled_adam import CoupledAdam, balance, heavy_ball_balance


@final
@dataclass(frozen=True)
class AdamL2(CoupledAdam):
    """Adam with L2 regularisation (RE Appendix I): torch's Adam with weight_decay. Everything depends on the gradient.

        a = lr·λ·sqrt(C/E‖g + λω‖²)     (RE 76, 78)
        leading order:  4λ²x³ - C·lr²λ²x² - C·lr²g̃² = 0 for x = ‖ω‖²     (RE 84)
                        η_r² = lr²·C·(1-β1)/(1+β1)/(x·(1 + λ²x²/g̃²))     (RE 87)
        exact:          the heavy ball's fixed point at step size lr·(1-β1)/√v,   cos η_r = 1 - a·(1-β1)/(1+β1)   (ours)

    Derived in docs/theory.md, "Adam with L2". The paper's cubic is exact at β1 = 0. With `rectified` it is RAdam, as
    torch has it by default.

    >>> eq = AdamL2(1e-3, 1e-2).equilibrium(fan_in=512, unit_grad_norm=0.05)
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm:.3f}"
    '0.01352 rad/step at norm 0.384'
    """

    rectified: bool = field(default=False, repr=False)

    second_moment_per_entry: ClassVar[bool] = True

    def balanced(self, lr: Number, C: Number, g_unit: Number, leading: bool) -> Equilibrium:
        """Exact, or the paper's cubic."""
        if not leading:
            return heavy_ball_balance(self, lr, C, g_unit)
        norm, decay, damping = balance(lr, self.weight_decay, C, g_unit)
        rms = lr * (C * self.power) ** 0.5 * damping
        return Equilibrium(over(rms, norm), norm, rms, forgetting_time(decay))
