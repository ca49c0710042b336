"""NAdam: Adam with Nesterov's momentum, which looks one gradient ahead, with decoupled weight decay or L2.

torch's momentum μ climbs from β1/2 to β1 over some ten thousand steps. `momentum_decay` is the rate of this ramp.
"""

from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np

from gyroscope._checks import check_count, check_non_negative
from gyroscope._types import Array, Number
from gyroscope.theory.law import Correlation, Equilibrium, Weights, equilibrium_angle, forgetting_time, rotation_angle
from gyroscope.theory.linear_motion import Combination, LinearSteps
from gyroscope.theory.rules.base import BetaRule
from gyroscope.theory.rules.coupled_adam import CoupledAdam, fourth, relative_norm, strength
from gyroscope.theory.rules.decoupled import DecoupledRule, decoupled_adam_steps
from gyroscope.theory.rules.sgdm import HeavyBall

# Steps after which the product of torch's momenta is 0 for any settings.
PRODUCT_LENGTH = 20_000


def nadam_momentum(beta1: Number, t: Number, momentum_decay: float) -> Number:
    """Return torch's momentum μ at step t = 1, 2, …, which climbs from β1/2 to β1. Tensors are accepted.

    >>> f"{nadam_momentum(0.9, 1, 4e-3):.3f} {nadam_momentum(0.9, 100_000, 4e-3):.3f}"
    '0.450 0.900'
    """
    return beta1 * (1 - 0.5 * 0.96 ** (t * momentum_decay))


def nesterov_filter(beta: Number, momentum: Number) -> tuple[Number, Number]:
    """Return c0 and c1 of μ·m' + (1-μ)·g, m' the average of g with β. From c1 on they fall by β each step.

    >>> nesterov_filter(0.5, 0.5)
    (0.75, 0.125)
    """
    return 1 - beta * momentum, (1 - beta) * beta * momentum


def nesterov_power(beta: Number, momentum: Number) -> Number:
    """Return Σc² of that filter, which is 1/τ, because its coefficients add up to 1.

    >>> f"{nesterov_power(0.9, 0.9):.4f}"
    '0.0706'
    """
    c0, c1 = nesterov_filter(beta, momentum)
    return c0 * c0 + c1 * c1 / (1 - beta * beta)


@dataclass(frozen=True)
class RampedMomentum(BetaRule):
    """The base of both NAdams: the momentum μ with which a step looks ahead.

    momentum_decay  torch's, the rate of the ramp, or None for μ = β1
    steps_done      steps that the optimizer has taken, for μ, or None for the equilibrium after the ramp
    """

    momentum_decay: float | None = field(default=None, repr=False, kw_only=True)
    steps_done: int | None = field(default=None, repr=False, kw_only=True)

    second_moment_per_entry: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum_decay is not None:
            check_non_negative("momentum_decay", self.momentum_decay)
        if self.steps_done is not None:
            check_count("steps_done", self.steps_done, at_least=0)

    @property
    def counts_steps(self) -> bool:  # type: ignore[override]
        """Whether there is a ramp."""
        return self.momentum_decay is not None

    @property
    def look_ahead_momentum(self) -> Number:
        """μ after `steps_done`, or after the ramp if the number of steps is unknown."""
        beta1 = self.betas[0]
        if self.momentum_decay is None or (self.steps_done is None and self.momentum_decay > 0):
            return beta1
        steps_done = 0 if self.steps_done is None else self.steps_done
        return nadam_momentum(beta1, steps_done + 1, self.momentum_decay)

    @property
    def filter_correlation(self) -> Correlation:
        """The correlation of the filter at this μ."""
        beta1 = self.betas[0]
        return Correlation.of_filter(*nesterov_filter(beta1, self.look_ahead_momentum), beta1)

    def look_ahead(self, steps: int, done: int) -> tuple[Number, Number]:
        """Return the coefficients of m' and g in the steps after `done`, times `adam_scale`'s divisor 1-β1^t."""
        beta1 = self.betas[0]
        if self.momentum_decay is None:
            return beta1, 1 - beta1
        # torch corrects the bias of m by the product of all μ so far, which is soon 0.
        first = float(np.ravel(beta1)[0])
        before = np.arange(1, min(done, PRODUCT_LENGTH) + 1)
        t = np.arange(done + 1, done + steps + 2)
        # A forecast may start in the middle of a run, so `steps_done` counts the last of these steps.
        late = 0 if self.steps_done is None else max(int(np.max(self.steps_done)) - (done + steps - 1), 0)
        momentum = nadam_momentum(
            np.append(np.broadcast_to(beta1, steps), np.ravel(beta1)[-1]), t + late, self.momentum_decay
        )
        product = np.prod(nadam_momentum(first, before, self.momentum_decay)) * np.cumprod(momentum)[:-1]
        lack = 1 - beta1 ** t[:-1]
        return lack * momentum[1:] / (1 - product * momentum[1:]), lack * (1 - momentum[:-1]) / (1 - product)


@final
@dataclass(frozen=True)
class NAdam(DecoupledRule, RampedMomentum):
    """NAdam, decoupled: u ∝ μ·m' + (1-μ)·g, a filter with c0 = 1-μβ, c_i = (1-β)μβ^i, μ = β1 after the ramp.

        ‖ω‖ and η_r by the one law with τ = 1/Σc²     (ours)

    Derived in docs/theory.md, "Nesterov's momentum and NAdam".

    lr, weight_decay, betas, corrected_decay, cautious_decay  as AdamW's
    momentum_decay  rate of torch's ramp of μ, or None for μ = β1
    steps_done      steps that the optimizer has taken, for μ, or None for the equilibrium after the ramp

    >>> f"{NAdam(lr=1e-3, weight_decay=0.1).equilibrium(fan_in=512).angular_update:.5f}"
    '0.00376'
    """

    corrected_decay: bool = False
    cautious_decay: bool = field(default=False, repr=False)

    needs: ClassVar[tuple[str, ...]] = ("fan_in",)

    def unit_update(self, weights: Weights) -> tuple[Number, Correlation]:
        """Return E‖u‖² = C·Σc² and the filter's correlation."""
        beta1 = self.betas[0]
        momentum = self.look_ahead_momentum
        C = weights.fan_in
        size = None if C is None else (C * nesterov_power(beta1, momentum)) ** 0.5
        return size, self.filter_correlation

    def linear_steps(self, lr: Array, done: int, weights: Weights) -> LinearSteps:
        """Return AdamW's steps with u ∝ μ·m' + (1-μ)·g, m' = β1·m + (1-β1)·g."""
        beta1 = self.betas[0]
        momentum, gradient = self.look_ahead(len(lr), done)
        update = Combination(0.0, momentum * beta1, momentum * (1 - beta1) + gradient)
        return decoupled_adam_steps(self, lr, done, weights, update)


@final
@dataclass(frozen=True)
class NAdamL2(RampedMomentum, CoupledAdam):
    """NAdam with L2, torch's default: Nesterov's heavy ball at step size s = lr·(1-β1)/√v, v the mean of (g + λω)².

    The norm is Adam with L2's to leading order, the rotation larger by the square root of the ratio of τ. Ours:
    docs/theory.md, "Nesterov's momentum and NAdam".

    >>> eq = NAdamL2(1e-3, 1e-2).equilibrium(fan_in=512, unit_grad_norm=0.05)
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm:.3f}"
    '0.01566 rad/step at norm 0.384'
    """

    def correlation(self, weights: Weights) -> Correlation:
        """Return the correlation of the filter."""
        return self.filter_correlation

    @property
    def power(self) -> Number:
        """Σc² of the filter, 1/τ."""
        return nesterov_power(self.betas[0], self.look_ahead_momentum)

    def ball_during(self, steps: int, done: int) -> HeavyBall:
        """Return Nesterov's ball of each of the steps after `done`."""
        return self._ball(*self.look_ahead(steps, done))

    def _ball(self, momentum: Number, gradient: Number) -> HeavyBall:
        beta1 = self.betas[0]
        # The ball's momentum is m'/(1-β1) = β1·m/(1-β1) + G.
        return HeavyBall(beta1, momentum * beta1, gradient / (1 - beta1) + momentum)

    def balanced(self, lr: Number, C: Number, g_unit: Number, leading: bool) -> Equilibrium:
        """Return the ball's fixed point at the step size that v sets at that norm."""
        wd = self.weight_decay
        momentum = self.look_ahead_momentum
        ball = self._ball(momentum, 1 - momentum)
        x, e = self._balance(ball, lr, strength(wd, C, g_unit), leading)
        decay = e / (1 - self.betas[0])
        norm = x * (g_unit / wd) ** 0.5
        angle = equilibrium_angle(decay, 1 / self.power) if leading else rotation_angle(ball.shrink(e))
        return Equilibrium(angle, norm, decay * (g_unit / wd * self.power**0.5) / norm, forgetting_time(decay))

    def _balance(self, ball: HeavyBall, lr: Number, per_lr: Number, leading: bool) -> tuple[Number, Number]:
        """Return the relative norm x = ‖ω‖·sqrt(λ/g̃) at rest, and the ball's e = lr·λ there."""
        beta1 = self.betas[0]
        x = relative_norm(lr, per_lr, 1.0, 0.0)  # the leading order is near the exact root
        x = x / (1 + np.maximum(-ball.bend, 0.0) / 3 * fourth(x))  # the next order, if it lowers the norm
        # 1e-100 takes the place of lr = 0, where the root would be 0/0.
        twice_k = np.maximum(lr, 1e-100) * (2 * (1 - beta1) * per_lr)
        for _ in range(40):
            z = fourth(x)
            e = twice_k * x / (1 + z) ** 0.5
            share = 2 * (1 - beta1) if leading else ball.gradient_share(e)
            lack = e / (share * z) - 1  # of z to the z of the ball's fixed point
            # 5 - 2/(1+z) is minus the slope of ln(e/z) in ln x, because the share hardly varies.
            x = x * (1 + lack / (5 - 2 / (1 + z)))
            if np.abs(lack).max() < 1e-10:
                break
        return x, e
