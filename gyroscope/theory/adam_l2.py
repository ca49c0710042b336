"""Adam with L2 in the gradient: the decay is scaled like the gradient, so it depends on it."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from gyroscope.theory.mean_field import Array, Inputs, LinearMotion, Number, Scale, adam_scale
from gyroscope.theory.rule import Equilibrium, UpdateRule, forgetting_time, over, turning_angle
from gyroscope.theory.sgdm import HeavyBall
from gyroscope.theory.validate import check_betas, check_decay
from gyroscope.theory.weights import Weights

UNDETERMINED = Equilibrium(None, None, None, None)


def decay_power(lr: Number, weight_decay: Number, C: Number, g_unit: Number, constant: float, slope: float) -> Number:
    """z = (λ‖ω‖²/g̃)², the share of the decay in E‖g + λω‖²: root of z^(3/4)·sqrt(1+z) = k·(constant + slope·z).

    k = lr·sqrt(C·λ/g̃)/2. constant = slope = 1 is RE's cubic 4λ²x³ - C·lr²λ²x² - C·lr²g̃² = 0. The left over the right
    side grows with z whenever slope ≤ constant, so Newton's method in z^(1/4) finds the one root.

    >>> f"{decay_power(1e-3, 1e-2, 512, 0.05, 1.0, 1.0):.6f}"
    '0.000869'
    """
    per_lr, lr = (C * weight_decay / g_unit) ** 0.5 / 2, np.maximum(lr, 1e-100)
    k, small = lr * per_lr, constant * per_lr
    x = np.cbrt(lr) * np.cbrt(small)  # z^(1/4), the root while z is small; then what it lacks in the next order of z
    z = _fourth(x)
    x = x + x * z / (1 + z) * ((slope / constant - 0.5) / 3)
    for _ in range(40):
        z = _fourth(x)
        right, one_z = constant + slope * z, 1 + z
        excess = k * right / (x * x * x * one_z**0.5) - 1
        x = x + x * excess / (3 + z * (2 / one_z - 4 * slope / right))
        if np.abs(excess).max() < 1e-5:  # the last correction squared it
            break
    return _fourth(x)


def _fourth(x: Number) -> Number:
    squared = x * x
    return squared * squared


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
        z = decay_power(lr, wd, C, g_unit, 1.0, 1.0)
        x = g_unit * z**0.5 / wd
        rms = lr * (C * kappa / (1 + z)) ** 0.5
        decay = lr * wd * (C * x / (g_unit**2 * (1 + z))) ** 0.5
        return Equilibrium(over(rms, x**0.5), x**0.5, rms, forgetting_time(decay))

    def motion(self, norm2: Array) -> LinearMotion:
        """The heavy ball with the step size that v allows."""
        return coupled_adam_motion(HeavyBall.of(self.betas[0], nesterov=False), self.weight_decay, self.betas, norm2)


def never_settles(update_rms: Number) -> Equilibrium:
    """Without decay nothing balances the growth: an ever larger norm, ever slower rotation."""
    return Equilibrium(0.0 * update_rms, np.inf + update_rms, update_rms, np.inf + update_rms)


def coupled_adam_equilibrium(lr: Number, wd: Number, C: Number, g_unit: Number, beta1: float) -> Equilibrium:
    """The exact balance of Adam whose v is the mean of (g + λω)², per entry or per vector alike.

    With s = lr·sqrt(C/E‖g + λω‖²) the momentum is a heavy ball at step size s·(1-β1), and SMD's fixed point reads
    s·(g̃²/y + κλ²y) = 2λy, κ = (1-β1)/(1+β1).
    """
    kappa = (1 - beta1) / (1 + beta1)
    if wd == 0:
        return never_settles(lr * (C * kappa) ** 0.5)
    z = decay_power(lr, wd, C, g_unit, 1.0, kappa)
    y = g_unit * z**0.5 / wd
    decay = lr * wd * (C * y / (g_unit**2 * (1 + z))) ** 0.5
    return Equilibrium(turning_angle(kappa * decay), y**0.5, lr * (C * kappa / (1 + z)) ** 0.5, forgetting_time(decay))


def coupled_adam_motion(ball: HeavyBall, wd: float, betas: tuple[float, float], norm2: Array) -> LinearMotion:
    """The heavy ball's motion at the step size that v allows; the ball's momentum is 1/(1-β1) times Adam's."""

    def inputs(lr: Array, done: int, weights: Weights) -> Inputs:
        scale = (1 - betas[0]) * adam_scale(lr, betas, done)
        return Inputs(np.zeros_like(lr), scale, weights.unit_grad_norm**2, weights.fan_in)

    return LinearMotion(ball.rule(wd, Scale(betas[1], weight=wd * wd)), norm2, inputs)
