"""SGD with momentum and L2 in the gradient, as in torch, or with transported momentum (SGD-MRT, SP E.2)."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import numpy as np

from gyroscope._types import Array, Number
from gyroscope.theory.law import (
    Correlation,
    Equilibrium,
    Weights,
    equilibrium_angle,
    forgetting_time,
    rotation_angle,
    safe_divide,
)
from gyroscope.theory.linear_motion import Combination, LinearSteps
from gyroscope.theory.rules.base import MomentumRule, MomentumStep


def angular_update(lr: Number, weight_decay: Number, momentum: Number, nesterov: bool = False) -> Number:
    """Return the angle per step of a weight vector in SGDM's equilibrium, in radians.

        η_r = sqrt(2·lr·weight_decay/(1+α))     (RE Table 1, SMD Theorem 3)
        Nesterov: sqrt(2a/τ), τ = (1-α)⁻²/Σc²   (ours: docs/theory.md, "Nesterov's momentum and NAdam")

    As in torch, weight decay is added to the gradient, so a = lr·weight_decay/(1-α).

    >>> f"{angular_update(0.1, 5e-4, 0.9):.5f}", f"{angular_update(0.1, 5e-4, 0.9, nesterov=True):.5f}"
    ('0.00725', '0.00840')
    """
    correlation_time = 1 / ((1 - momentum) ** 2 * update_power(momentum, nesterov))
    return equilibrium_angle(lr * weight_decay / (1 - momentum), correlation_time)


def correlation(momentum: Number, nesterov: bool) -> Correlation:
    """Return the correlation of the filter c_i = α^i, for Nesterov c0 = 1+α, c_i = α^(i+1).

    >>> f"{correlation(0.9, nesterov=True).time():.3f}"
    '14.158'
    """
    ball = HeavyBall.of(momentum, nesterov)
    return Correlation.of_filter(ball.new, ball.old, momentum)


def update_power(momentum: Number, nesterov: bool) -> Number:
    """Return Σc², an update's mean square over the gradient's: c_i = α^i, for Nesterov c0 = 1+α, c_i = α^(i+1).

    >>> f"{update_power(0.9, nesterov=False):.4f}", f"{update_power(0.9, nesterov=True):.4f}"
    ('5.2632', '7.0632')
    """
    series = 1 / (1 - momentum**2)
    return (1 + momentum) ** 2 + momentum**4 * series if nesterov else series


def gradient_scaled_equilibrium(
    angle: Number, norm2: Number | None, scale: Number, g_unit: Number | None, decay: Number
) -> Equilibrium:
    """Return the equilibrium at a squared norm, None if the gradient is unknown, for updates of size scale·E‖g‖."""
    if norm2 is None:
        return Equilibrium(angle, None, None, forgetting_time(decay))
    norm = norm2**0.5
    return Equilibrium(angle, norm, safe_divide(scale * g_unit, norm), forgetting_time(decay))


@dataclass(frozen=True)
class HeavyBall:
    """Second moments of  G = g + λw,  m' = α·m + G,  w' = w - lr·(old·m + new·G).

    `old` = α, `new` = 1 is the heavy ball. `old` = α², `new` = 1+α is Nesterov's form.
    """

    alpha: Number
    old: Number
    new: Number

    @classmethod
    def of(cls, momentum: float, nesterov: bool) -> "HeavyBall":
        """Return the ball with torch's momentum, in Nesterov's form or the plain one."""
        return cls(momentum, momentum**2, 1 + momentum) if nesterov else cls(momentum, momentum, 1.0)

    def combinations(self, wd: Number) -> tuple[Combination, Combination]:
        """Return update and momentum with L2, which is part of both."""
        return Combination(self.new * wd, self.old, self.new), Combination(wd, self.alpha, 1.0)

    @cached_property
    def _balance(self) -> tuple[Number, Number, Number, Number, Number]:
        """h0, h1, d0, d1 and r0 of the fixed point h = (h0 + h1·e)/(d0 + d1·e), r = r0/(d0 + d1·e).

        h = lr·E‖G‖²/(λ·y), r = p/(λ·y), e = lr·λ.
        """
        alpha = self.alpha
        old = self.old
        new = self.new
        k = 1 / (1 - alpha * alpha)
        # 2·cross = lr·square and p = p', with q = k·(G2 + 2·α·λ·p) substituted.
        square_h = new * new + old * old * k
        square_r = 2 * old * new + 2 * old * old * alpha * k
        m_update_h = new + old * alpha * k
        m_update_r = new * alpha + old + 2 * old * alpha * alpha * k
        # square_h·h + (e·square_r - 2·old)·r = 2·new  and  m_update_h·h + (1 - α + e·m_update_r)·r = 1, by Cramer.
        return (
            2 * new * (1 - alpha) + 2 * old,
            2 * new * m_update_r - square_r,
            square_h * (1 - alpha) + 2 * old * m_update_h,
            square_h * m_update_r - square_r * m_update_h,
            square_h - 2 * new * m_update_h,
        )

    def gradient_share(self, e: Number) -> Number:
        """Return lr·E‖g‖²/(λ·E‖w‖²) at rest, e = lr·λ. For the heavy ball it is SMD Theorem 2: (1-α)(2 - e/(1+α))."""
        h0, h1, d0, d1, _ = self._balance
        return (h0 + h1 * e) / (d0 + d1 * e) - e

    def shrink(self, e: Number) -> Number:
        """Return 1 - cos η_r at rest, e = lr·λ. For the heavy ball it is SMD Theorem 2: e/(1+α)."""
        _, _, d0, d1, r0 = self._balance
        return e * (self.new + self.old * r0 / (d0 + d1 * e))

    @property
    def bend(self) -> Number:
        """f in e = z·share·(1 - f·z) + O(z³), z = λ²·E‖w‖²/E‖g‖². For the heavy ball e = z·share/(1 + f·z) is exact."""
        h0, h1, d0, d1, _ = self._balance
        return 1 - (h1 - d1 * h0 / d0) / d0


@final
@dataclass(frozen=True)
class SGDM(MomentumRule):
    """SGD with momentum α and L2 in the gradient (RE Appendix G, SMD): a = lr·λ/(1-α).

        exact:          ‖ω‖⁴ = lr·g̃²/(λ(1-α)(2 - lr·λ/(1+α))),   cos η_r = 1 - lr·λ/(1+α)     (SMD Theorem 2, its map)
        leading order:  ‖ω‖⁴ = lr·g̃²/(2λ(1-α)),                   η_r = sqrt(2·lr·λ/(1+α))      (RE Table 1)

    `unit_grad_norm` g̃ is the RMS norm of the gradient times the weight norm. RE (47), the printed finite-rate form, has
    2λ(1-α) - lr·λ² instead of the map's 2λ(1-α) - lr·λ²(1-α)/(1+α). Nesterov's fixed point is ours: docs/theory.md,
    "Nesterov's momentum and NAdam".

    >>> eq = SGDM(lr=0.1, weight_decay=5e-4, momentum=0.9).equilibrium(unit_grad_norm=0.5)
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm:.3f}, forgets in {eq.timescale:.0f} steps"
    '0.00725 rad/step at norm 3.976, forgets in 2000 steps'
    """

    nesterov: bool = False

    needs: ClassVar[tuple[str, ...]] = ("unit_grad_norm",)
    norm_power: ClassVar[float] = 0.25
    gradient_scales_update: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov=True needs a momentum above 0, for example momentum=0.9")

    @property
    def momentum_step(self) -> MomentumStep | None:
        """m <- α·m + g. torch's dampening is not part of the rule."""
        return MomentumStep(self.momentum, 1.0) if self.momentum else None

    @property
    def heavy_ball(self) -> float | None:  # type: ignore[override]
        """α, unless the form is Nesterov's."""
        return None if self.nesterov else self.momentum

    @property
    def alignment_power(self) -> float | None:  # type: ignore[override]
        """1/4, because ‖ω‖⁴ ∝ E h (SMD Theorem 2). None for Nesterov's form."""
        return None if self.nesterov else 0.25

    def correlation(self, weights: Weights) -> Correlation:
        """Return the correlation of the momentum."""
        return correlation(self.momentum, self.nesterov)

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Return the fixed point of the three second moments, or its leading order in lr·λ."""
        alpha = self.momentum
        wd = self.weight_decay
        g_unit = weights.unit_grad_norm
        if leading:
            gradient_share = 2 * wd * (1 - alpha)
            angular = angular_update(lr, wd, alpha, self.nesterov)
        else:
            gradient_share = wd * self._ball.gradient_share(lr * wd)
            angular = rotation_angle(self._ball.shrink(lr * wd))
        norm2 = None if g_unit is None else g_unit * safe_divide(lr, gradient_share) ** 0.5
        power = update_power(alpha, self.nesterov)
        return gradient_scaled_equilibrium(angular, norm2, lr * power**0.5, g_unit, lr * wd / (1 - alpha))

    def linear_steps(self, lr: Array, done: int, weights: Weights) -> LinearSteps:
        """Return the heavy ball's steps of size lr. L2 is part of the update, so there is no separate decay."""
        update, momentum = self._ball.combinations(self.weight_decay)
        return LinearSteps(np.zeros_like(lr), lr, update, momentum, unit_grad2=weights.unit_grad_norm**2)

    @property
    def _ball(self) -> HeavyBall:
        return HeavyBall.of(self.momentum, self.nesterov)


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
        # Transport rescales the momentum like gradients, so in their unit it is as long as the heavy ball's.
        power = update_power(self.momentum, nesterov=False)
        # Share of the squared norm that decays, over lr.
        decay2 = wd * (2.0 if leading else 2 - lr * wd)
        norm2 = None if g_unit is None else g_unit * safe_divide(lr * power, decay2) ** 0.5
        angle = equilibrium_angle(lr * wd, 1.0) if leading else rotation_angle(lr * wd)
        return gradient_scaled_equilibrium(angle, norm2, lr * power**0.5, g_unit, lr * wd)

    def linear_steps(self, lr: Array, done: int, weights: Weights) -> LinearSteps:
        """Return steps along new noise with the length of the momentum, which transport keeps tangent to the weight."""
        scale = lr * transported_power(self.momentum, done, len(lr)) ** 0.5
        noise = Combination(0.0, 0.0, 1.0)
        return LinearSteps(
            lr * self.weight_decay, scale, noise, Combination(0.0, 0.0, 0.0), unit_grad2=weights.unit_grad_norm**2
        )
