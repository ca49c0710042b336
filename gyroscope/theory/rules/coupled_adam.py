"""What the Adams with L2 in the gradient have in common: v feels the decay, which v then scales.

Derived in docs/theory.md, "Adam with L2".
"""

from abc import abstractmethod
from dataclasses import astuple, dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from gyroscope._types import Array, Number
from gyroscope.theory.law import UNDETERMINED, Equilibrium, Weights, forgetting_time, never_settles, turning_angle
from gyroscope.theory.recursion import LinearSteps, StepNormaliser
from gyroscope.theory.rules.base import BetaRule
from gyroscope.theory.rules.sgdm import HeavyBall


@dataclass(frozen=True)
class CoupledAdam(BetaRule):
    """An Adam with L2 in the gradient: a heavy ball, plain or Nesterov's, at the step size that v allows."""

    needs: ClassVar[tuple[str, ...]] = ("fan_in", "unit_grad_norm")
    norm_power: ClassVar[float] = 1 / 3

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """The balance, where the inputs determine it and there is a decay to balance the growth."""
        C = weights.fan_in
        g_unit = weights.unit_grad_norm
        if C is None or g_unit is None:
            return UNDETERMINED
        wd = self.weight_decay
        if np.all(wd):
            return self.balanced(lr, C, g_unit, leading)
        never = never_settles(lr * (C * self.power) ** 0.5)
        if not np.any(wd):
            return never
        # A decay that changes during the run, and is 0 at some steps: there the root is 0/0.
        with np.errstate(divide="ignore", invalid="ignore"):
            settled = self.balanced(lr, C, g_unit, leading)
        return Equilibrium(*(np.where(wd == 0, *both) for both in zip(astuple(never), astuple(settled), strict=True)))

    @abstractmethod
    def balanced(self, lr: Number, C: Number, g_unit: Number, leading: bool) -> Equilibrium:
        """Where growth and decay balance, exactly or to leading order."""

    @property
    def power(self) -> Number:
        """E‖u‖²/(lr²·C) without decay: (1-β1)/(1+β1) of an average of entries of unit size."""
        return (1 - self.betas[0]) / (1 + self.betas[0])

    @property
    def ball(self) -> HeavyBall:
        """The ball, whose momentum is 1/(1-β1) times Adam's."""
        return HeavyBall.of(self.betas[0], nesterov=False)

    def ball_during(self, steps: int, done: int) -> HeavyBall:
        """The ball of each of the steps after `done`."""
        return self.ball

    def linear_steps(self, lr: Array, done: int, weights: Weights) -> LinearSteps:
        """The ball's steps at the size that v allows."""
        wd = self.weight_decay
        scale = (1 - self.betas[0]) * self.adam_scale(lr, done)
        # v averages (g + λw)², whose mixed term is 0 on average, for g is orthogonal to w. There is no other decay.
        return LinearSteps(
            np.zeros_like(lr),
            scale,
            *self.ball_during(len(lr), done).combinations(wd),
            StepNormaliser(self.betas[1], weight=wd * wd),
            self.unadapted(len(lr), done),
            unit_grad2=weights.unit_grad_norm**2,
            size=weights.fan_in,
        )


class Balance(NamedTuple):
    """Where growth and decay balance, E‖g + λω‖² = (1+z)·E‖g‖²."""

    norm: Number
    decay: Number
    """lr·λ·sqrt(C/E‖g + λω‖²)"""
    damping: Number
    """1/sqrt(1+z), by which the decay's share in v makes updates smaller"""


def balance(lr: Number, wd: float, C: Number, g_unit: Number, constant: float = 1.0, slope: float = 1.0) -> Balance:
    """The balance at which the relative norm x = ‖ω‖·sqrt(λ/g̃) is the root of x³·sqrt(1+x⁴) = k·(constant + slope·x⁴).

    k = lr·sqrt(C·λ/g̃)/2. constant = slope = 1 is the cubic 4λ²‖ω‖⁶ - C·lr²λ²‖ω‖⁴ - C·lr²g̃² = 0 of RE (84).

    >>> f"{balance(1e-3, 1e-2, 512, 0.05).norm:.4f}"
    '0.3839'
    """
    per_lr = strength(wd, C, g_unit)
    x = relative_norm(lr, per_lr, constant, slope)
    damping = 1 / (1 + fourth(x)) ** 0.5
    return Balance(x * (g_unit / wd) ** 0.5, lr * (2 * per_lr) * x * damping, damping)


def strength(wd: float, C: Number, g_unit: Number) -> Number:
    """k/lr = sqrt(C·λ/g̃)/2: how strongly decay shows in v."""
    return (C * wd / g_unit) ** 0.5 / 2


def relative_norm(lr: Number, per_lr: Number, constant: float, slope: float) -> Number:
    """Root x of x³·sqrt(1+x⁴) = k·(constant + slope·x⁴), k = lr·per_lr.

    The left over the right side grows with x whenever slope ≤ constant, so Newton's method in ln x finds the one root.
    It starts from x0 = cbrt(k·constant), the root of small k, and what that lacks in the next two orders.
    """
    lr = np.maximum(lr, 1e-100)  # at lr = 0 the root is 0, and its logarithm no start
    k = lr * per_lr
    x = np.cbrt(lr) * np.cbrt(constant * per_lr)
    first, second = _next_orders(slope / constant)
    t = fourth(x)
    t /= 1 + t
    x = x * (1 + t * (first + second * t))
    # Three or four rounds from this start; the limit is for what is not a number and never converges.
    for _ in range(40):
        z = fourth(x)
        right = constant + slope * z
        excess = k * right / (x * x * x * (1 + z) ** 0.5) - 1
        # The divisor is the slope of ln(left/right) in ln x.
        x = x + x * excess / (3 + z * (2 / (1 + z) - 4 * slope / right))
        # Newton's last correction squares the error: 1e-5 before it leaves 1e-10.
        if np.abs(excess).max() < 1e-5:
            break
    return x


def _next_orders(slope: float) -> tuple[float, float]:
    """The root's x/x0 = 1 + first·t + second·t² + O(t³), t = z0/(1+z0), z0 = x0⁴.

    From ln(z/z0) = 4/3·(ln(1 + slope·z) - ln(1+z)/2) = b·z + c·z² + O(z³).
    """
    b = 4 / 3 * (slope - 0.5)
    c = 4 / 3 * (0.25 - slope * slope / 2)
    return b / 4, b / 4 + (b * b + c) / 4 + b * b / 32


def fourth(x: Number) -> Number:
    """x⁴ by two products, where a power would take a logarithm."""
    squared = x * x
    return squared * squared


def heavy_ball_balance(rule: CoupledAdam, lr: Number, C: Number, g_unit: Number) -> Equilibrium:
    """The exact balance of an Adam whose v is the mean of (g + λω)², per entry or per vector alike.

    With s = lr·sqrt(C/E‖g + λω‖²) the momentum is a heavy ball at step size s·(1-β1), and SMD's fixed point reads
    s·(g̃²/y + κλ²y) = 2λy, κ = (1-β1)/(1+β1), y = ‖ω‖². Ours.
    """
    kappa = rule.power
    norm, decay, damping = balance(lr, rule.weight_decay, C, g_unit, slope=kappa)
    rms = lr * (C * kappa) ** 0.5 * damping
    return Equilibrium(turning_angle(kappa * decay), norm, rms, forgetting_time(decay))
