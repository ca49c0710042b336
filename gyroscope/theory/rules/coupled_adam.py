"""Adams with L2 in the gradient: v contains the decay, which v then scales.

Adam-S has one second moment per vector, and Adam-SRT also transports its momentum (SP). Derived in docs/theory.md,
"Adam with L2" and "Adam-S, Adam-SRT and SGD-MRT".
"""

from abc import abstractmethod
from dataclasses import astuple, dataclass
from typing import Any, ClassVar, final

import numpy as np

from gyroscope._types import Array, Number
from gyroscope.theory.law import (
    Correlation,
    Equilibrium,
    Weights,
    forgetting_time,
    leading_order,
    never_settles,
    rotation_angle,
    safe_divide,
)
from gyroscope.theory.linear_motion import LinearSteps, StepNormaliser
from gyroscope.theory.recursion import Guess, Improve, Moments, Motion, Step, filtered
from gyroscope.theory.rules.base import BetaRule
from gyroscope.theory.rules.sgdm import HeavyBall, transported_power


@dataclass(frozen=True)
class CoupledAdam(BetaRule):
    """An Adam with L2 in the gradient: a heavy ball, plain or Nesterov's, with a step size set by v."""

    needs: ClassVar[tuple[str, ...]] = ("fan_in", "unit_grad_norm")
    norm_power: ClassVar[float] = 1 / 3

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Return the balance if the inputs determine it, and the limit without decay if there is none."""
        C = weights.fan_in
        g_unit = weights.unit_grad_norm
        if C is None or g_unit is None:
            return Equilibrium(None, None, None, None)
        wd = self.weight_decay
        if np.all(wd):
            return self.balanced(lr, C, g_unit, leading)
        never = never_settles(lr * (C * self.power) ** 0.5)
        if not np.any(wd):
            return never
        # If the decay changes during the run and is 0 at some steps, the root is 0/0 there.
        with np.errstate(divide="ignore", invalid="ignore"):
            settled = self.balanced(lr, C, g_unit, leading)
        return Equilibrium(*(np.where(wd == 0, *both) for both in zip(astuple(never), astuple(settled), strict=True)))

    @abstractmethod
    def balanced(self, lr: Number, C: Number, g_unit: Number, leading: bool) -> Equilibrium:
        """Return where growth and decay balance, exactly or to leading order."""

    @property
    def power(self) -> Number:
        """E‖u‖²/(lr²·C) without decay: (1-β1)/(1+β1) of an average of entries of unit size."""
        return (1 - self.betas[0]) / (1 + self.betas[0])

    def ball_during(self, steps: int, done: int) -> HeavyBall:
        """Return the ball of each of the steps after `done`. Its momentum is 1/(1-β1) times Adam's."""
        return HeavyBall.of(self.betas[0], nesterov=False)

    def linear_steps(self, lr: Array, done: int, weights: Weights) -> LinearSteps:
        """Return the ball's steps at the size that v sets."""
        wd = self.weight_decay
        scale = (1 - self.betas[0]) * self.adam_scale(lr, done)
        # v averages (g + λw)². Its mixed term is 0 on average, because g is orthogonal to w.
        return LinearSteps(
            np.zeros_like(lr),  # there is no decay beside the update
            scale,
            *self.ball_during(len(lr), done).combinations(wd),
            StepNormaliser(self.betas[1], weight=wd * wd),
            unit_grad2=weights.unit_grad_norm**2,
            size=weights.fan_in,
        )


def balance(
    lr: Number, wd: float, C: Number, g_unit: Number, constant: float = 1.0, slope: float = 1.0
) -> tuple[Number, Number, Number]:
    """Return norm, decay and damping at which growth and decay balance.

    The relative norm x = ‖ω‖·sqrt(λ/g̃) is the root of x³·sqrt(1+x⁴) = k·(constant + slope·x⁴), k = lr·sqrt(C·λ/g̃)/2.
    constant = slope = 1 is the cubic 4λ²‖ω‖⁶ - C·lr²λ²‖ω‖⁴ - C·lr²g̃² = 0 of RE (84). With E‖g + λω‖² = (1+z)·E‖g‖² the
    decay is lr·λ·sqrt(C/E‖g + λω‖²), and updates are smaller by the damping 1/sqrt(1+z).

    >>> f"{balance(1e-3, 1e-2, 512, 0.05)[0]:.4f}"
    '0.3839'
    """
    per_lr = strength(wd, C, g_unit)
    x = relative_norm(lr, per_lr, constant, slope)
    damping = 1 / (1 + fourth(x)) ** 0.5
    return x * (g_unit / wd) ** 0.5, lr * (2 * per_lr) * x * damping, damping


def strength(wd: float, C: Number, g_unit: Number) -> Number:
    """Return k/lr = sqrt(C·λ/g̃)/2, the strength of the decay in v."""
    return (C * wd / g_unit) ** 0.5 / 2


def relative_norm(lr: Number, per_lr: Number, constant: float, slope: float) -> Number:
    """Return the root x of x³·sqrt(1+x⁴) = k·(constant + slope·x⁴), k = lr·per_lr.

    The left over the right side grows with x if slope ≤ constant, so Newton's method in ln x finds the one root. It
    starts from x0 = cbrt(k·constant), the root of small k, and its next two orders in t = z0/(1+z0), z0 = x0⁴. They
    follow from ln(z/z0) = 4/3·(ln(1 + s·z) - ln(1+z)/2) = b·z + c·z² + O(z³), s = slope/constant.
    """
    lr = np.maximum(lr, 1e-100)  # at lr = 0 the root is 0 and has no logarithm
    k = lr * per_lr
    x = np.cbrt(lr) * np.cbrt(constant * per_lr)
    s = slope / constant
    b = 4 / 3 * (s - 0.5)
    c = 4 / 3 * (0.25 - s * s / 2)
    t = fourth(x)
    t /= 1 + t
    x = x * (1 + t * (b / 4 + (b / 4 + (b * b + c) / 4 + b * b / 32) * t))
    # Three or four rounds are enough from this start. The limit is for NaN, which never converges.
    for _ in range(40):
        z = fourth(x)
        right = constant + slope * z
        excess = k * right / (x * x * x * (1 + z) ** 0.5) - 1
        # The divisor is the slope of ln(left/right) in ln x.
        x = x + x * excess / (3 + z * (2 / (1 + z) - 4 * slope / right))
        # Newton's last correction squares the error, so 1e-5 becomes 1e-10.
        if np.abs(excess).max() < 1e-5:
            break
    return x


def fourth(x: Number) -> Number:
    """Return x⁴ by two products, which is faster than a power."""
    squared = x * x
    return squared * squared


def heavy_ball_balance(rule: CoupledAdam, lr: Number, C: Number, g_unit: Number) -> Equilibrium:
    """Return the exact balance of an Adam whose v is the mean of (g + λω)², per entry or per vector alike.

    With s = lr·sqrt(C/E‖g + λω‖²) the momentum is a heavy ball at step size s·(1-β1), and SMD's fixed point is
    s·(g̃²/y + κλ²y) = 2λy, κ = (1-β1)/(1+β1), y = ‖ω‖². Ours.
    """
    kappa = rule.power
    norm, decay, damping = balance(lr, rule.weight_decay, C, g_unit, slope=kappa)
    rms = lr * (C * kappa) ** 0.5 * damping
    return Equilibrium(rotation_angle(kappa * decay), norm, rms, forgetting_time(decay))


@final
@dataclass(frozen=True)
class AdamL2(CoupledAdam):
    """Adam with L2 (RE Appendix I): torch's Adam with weight_decay. Everything depends on the gradient.

        a = lr·λ·sqrt(C/E‖g + λω‖²)     (RE 76, 78)
        leading order:  4λ²x³ - C·lr²λ²x² - C·lr²g̃² = 0 for x = ‖ω‖²     (RE 84)
                        η_r² = lr²·C·(1-β1)/(1+β1)/(x·(1 + λ²x²/g̃²))     (RE 87)
        exact:          the heavy ball's fixed point at step size lr·(1-β1)/√v,   cos η_r = 1 - a·(1-β1)/(1+β1)   (ours)

    Derived in docs/theory.md, "Adam with L2". The cubic is exact at β1 = 0.

    >>> eq = AdamL2(1e-3, 1e-2).equilibrium(fan_in=512, unit_grad_norm=0.05)
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm:.3f}"
    '0.01352 rad/step at norm 0.384'
    """

    second_moment_per_entry: ClassVar[bool] = True

    def correlation(self, weights: Weights) -> Correlation:
        """Return the correlation of an average."""
        return Correlation.of_average(self.betas[0])

    def balanced(self, lr: Number, C: Number, g_unit: Number, leading: bool) -> Equilibrium:
        """Return the exact balance, or the paper's cubic."""
        if not leading:
            return heavy_ball_balance(self, lr, C, g_unit)
        norm, decay, damping = balance(lr, self.weight_decay, C, g_unit)
        rms = lr * (C * self.power) ** 0.5 * damping
        return Equilibrium(safe_divide(rms, norm), norm, rms, forgetting_time(decay))


@final
@dataclass(frozen=True)
class AdamS(CoupledAdam):
    """Adam-S with L2: a = lr·λ/√v, √v = g̃/(‖ω‖√C), momentum as AdamW's.

        leading order:  ‖ω‖³ = lr·√C·g̃/(2λ),   η_r = sqrt(2a·(1-β1)/(1+β1))     (ours)

    SP gives the rule. Its equilibrium is in docs/theory.md, "Adam-S, Adam-SRT and SGD-MRT". The exact form is Adam
    with L2's, because the norm does not depend on whether v is kept per entry or per vector.

    >>> f"{AdamS(1e-3, 1e-2).equilibrium(fan_in=512, unit_grad_norm=0.05).norm:.3f}"
    '0.384'
    """

    def balanced(self, lr: Number, C: Number, g_unit: Number, leading: bool) -> Equilibrium:
        """Return Adam with L2's balance, or the leading order without the decay's own share in v."""
        if not leading:
            return heavy_ball_balance(self, lr, C, g_unit)
        norm = np.cbrt(lr * C**0.5 * g_unit / (2 * self.weight_decay))
        decay = lr * self.weight_decay * norm * C**0.5 / g_unit
        return leading_order(decay, 1 / self.power, lr * (C * self.power) ** 0.5)


@final
class TransportedAdamMotion(Motion):
    """Motion under Adam-SRT: after each step m² and v shrink by ‖w‖²/‖w'‖², as gradients do.

    V = v·‖w‖²/(1-β2) <- β2·V + g̃² + λ²y²,   a = scale·(1-β1)·λ·sqrt(C·y/V),   y' = (1-a)² y + scale²·E‖m‖²·C·y/V
    """

    def __init__(self, rule: Any, norm2: Array) -> None:
        super().__init__(rule, norm2, v=np.zeros_like(norm2))

    def _improve(self, lr: Array, weights: Weights) -> Improve:
        beta1, beta2 = self.rule.betas
        wd = np.broadcast_to(self.rule.weight_decay, len(lr))[:, None]
        keep = np.broadcast_to(beta2, len(lr))[:, None]
        scale = self.rule.adam_scale(lr, self.done)[:, None]
        filled = (1 - beta1) ** 2 * transported_power(beta1, self.done, len(lr))[:, None]  # E‖m‖²·‖w‖²/g̃²
        g2_unit = weights.unit_grad_norm**2
        # a and E‖u‖² are these times sqrt(y/V) and 1/V.
        per_decay = scale * (1 - beta1) * wd * np.sqrt(weights.fan_in)
        per_square = scale * scale * filled * (weights.fan_in * g2_unit)

        def improve(part: slice, guess: Guess) -> tuple[Step, Moments]:
            y = guess["norm2"]
            V = filtered(self.moments["v"], keep[part], (wd[part] * y) ** 2 + g2_unit)
            decay = np.sqrt(y / V.after) * per_decay[part]
            square = per_square[part] / V.after
            norm2 = filtered(self.norm2, (1 - decay) ** 2, square)
            return Step(decay, np.zeros_like(decay), square, norm2.after, decay), {"norm2": norm2, "v": V}

        return improve


@final
@dataclass(frozen=True)
class AdamSRT(CoupledAdam):
    """Adam-SRT with L2: transported momentum does not accumulate the decay, a = (1-β1)·lr·λ/√v, and stays tangent.

        leading order:  ‖ω‖³ = lr·√C·g̃/(2λ(1+β1)),   η_r = sqrt(2a)     (ours)
        exact:          a(2-a)‖ω‖² = E‖u‖²,             cos η_r = 1 - a     (ours)

    SP Algorithm 1 is the rule. Its equilibrium is in docs/theory.md, "Adam-S, Adam-SRT and SGD-MRT".

    >>> eq = AdamSRT(1e-3, 1e-2).equilibrium(fan_in=512, unit_grad_norm=0.05)
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm:.3f}"
    '0.01675 rad/step at norm 0.310'
    """

    transports_momentum: ClassVar[bool] = True
    motion_class: ClassVar[type[Motion]] = TransportedAdamMotion

    def balanced(self, lr: Number, C: Number, g_unit: Number, leading: bool) -> Equilibrium:
        """Return the balance of tangent updates and the decay that one step's momentum carries."""
        wd = self.weight_decay
        beta1 = self.betas[0]
        rms = lr * (C * self.power) ** 0.5
        if leading:
            norm = np.cbrt(lr * C**0.5 * g_unit / (2 * wd * (1 + beta1)))
            return leading_order((1 - beta1) * lr * wd * norm * C**0.5 / g_unit, 1.0, rms)
        norm, decay, damping = balance(lr, wd, C, g_unit, constant=1 / (1 + beta1), slope=1 - beta1)
        decay = (1 - beta1) * decay
        return Equilibrium(rotation_angle(decay), norm, rms * damping, forgetting_time(decay))
