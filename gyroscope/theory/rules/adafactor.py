"""Adafactor: steps relative to the size of the weights, so that the angle does not depend on the norm."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np

from gyroscope._checks import check_count, check_decay, check_non_negative
from gyroscope._types import Array, Number
from gyroscope.theory.law import Equilibrium, Weights, forgetting_time, safe_divide
from gyroscope.theory.recursion import Guess, Improve, Moments, Motion, Step, filtered
from gyroscope.theory.rules.base import UpdateRule
from gyroscope.theory.rules.decoupled import decay_at


@final
class AdafactorMotion(Motion):
    """Tangent steps of RMS rate·u times the weights' RMS. u² = E‖g‖²/v lags behind if the norm changes.

    v <- v + t^beta2_decay·(E‖g‖² - v),   y' = (1-a)² y + rate²·min(u², d²)·max(y, eps2²·C)
    """

    def __init__(self, rule: Any, norm2: Array) -> None:
        super().__init__(rule, norm2, v=np.zeros_like(norm2))
        self._before = rule.steps_done

    def _improve(self, lr: Array, weights: Weights) -> Improve:
        t = self._before + self.done + np.arange(1, len(lr) + 1)
        rates = self.rule.rate(lr, t)[:, None]
        decay = np.broadcast_to(decay_at(self.rule, lr), len(lr))[:, None]
        shares = (t**self.rule.beta2_decay)[:, None]
        if not self.done:
            shares[0] = 1.0  # the first step fills v, also if a forecast starts in the middle of a run

        def improve(part: slice, guess: Guess) -> tuple[Step, Moments]:
            y = guess["norm2"]
            g2 = 1 / y  # gradients shrink as the norm grows, and their own scale cancels
            v = filtered(self.moments["v"], 1 - shares[part], shares[part] * g2)
            square = rates[part] ** 2 * np.minimum(g2 / v.after, self.rule.d**2) * self.rule.scale2(y, weights.fan_in)
            norm2 = filtered(self.norm2, (1 - decay[part]) ** 2, square)
            step = Step(decay[part], np.zeros_like(square), square, norm2.after, decay[part])
            return step, {"norm2": norm2, "v": v}

        return improve


@final
@dataclass(frozen=True)
class Adafactor(UpdateRule):
    """Adafactor without momentum, as in torch: the step's RMS is `rate` times that of the weights.

        rate = min(lr, 1/sqrt(t)),   a = lr·λ,   ‖ω'‖² = ((1-a)² + rate²)·‖ω‖²
        rate² ≥ a(2-a):   tan η_r = rate/(1-a) at any norm, which grows without end     (ours)
        else:             cos η_r = 1-a,   ‖ω‖ = eps2·√C·rate/sqrt(a(2-a)), an RMS below eps2     (ours)

    Derived in docs/theory.md, "Adafactor". The RMS is that of the whole tensor, so a norm is the RMS over its vectors.
    A vector twice as long rotates half as fast, until all are alike after some 1/rate² steps. Holds if the scale of
    gradients factors into rows and columns, and their mean square is above torch's eps[0], 1e-7 in float32.

    lr, weight_decay, beta2_decay, d  as in torch. 1 - t^beta2_decay is β2 of step t
    eps2             smallest RMS of a tensor that a step is relative to, the second of torch's eps
    scale_parameter  False for steps of RMS `rate`, AdamW without momentum, as in the Trainer of transformers
    capped           whether 1/sqrt(t) limits the rate: True in torch, False in transformers with relative_step=False
    corrected_decay  as AdamW's
    steps_done       steps that the optimizer has taken, for t

    >>> eq = Adafactor(lr=1e-2).equilibrium(fan_in=512)
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm}, forgets in {eq.timescale:.0f} steps"
    '0.01000 rad/step at norm inf, forgets in 20001 steps'
    """

    lr: float
    weight_decay: float = 0.0
    beta2_decay: float = -0.8
    d: float = 1.0
    eps2: float = 1e-3
    scale_parameter: bool = True
    capped: bool = True
    corrected_decay: bool = False
    steps_done: int = field(default=0, repr=False)

    needs: ClassVar[tuple[str, ...]] = ("fan_in",)
    is_decoupled: ClassVar[bool] = True
    counts_steps = True  # the cap on the rate and β2 follow the number of steps
    angle_formula: ClassVar[str] = (
        "tan η_r = rate/(1-a) while norms grow, rate² ≥ a(2-a), else cos η_r = 1-a, rate: min(lr, 1/sqrt(t)), "
        "a: decay per step"
    )
    motion_class: ClassVar[type[Motion]] = AdafactorMotion

    def __post_init__(self) -> None:
        check_decay(self.lr, self.weight_decay)
        check_non_negative("eps2", self.eps2)
        check_count("steps_done", self.steps_done, at_least=0)
        if not self.beta2_decay <= 0:
            raise ValueError(f"beta2_decay={self.beta2_decay!r} must be 0 or below, as torch's -0.8")
        if not self.d >= 1:
            raise ValueError(f"d={self.d!r} must be 1 or more: the RMS to which updates are clipped")

    def rate(self, lr: Number, t: Number) -> Number:
        """Return the RMS of step t = 1, 2, … over that of the weights."""
        return np.minimum(lr, t**-0.5) if self.capped else lr

    def scale2(self, norm2: Number, fan_in: Number) -> Number:
        """Return the mean square of a vector's update at rate 1: the squared norm that steps are relative to."""
        return np.maximum(norm2, self.eps2**2 * fan_in) if self.scale_parameter else fan_in

    @property
    def norm_exponent(self) -> float:
        """x in: equilibrium norm ∝ lr^x, or 0 if there is no equilibrium norm."""
        decay2 = self.lr * self.weight_decay * (2 - self.lr * self.weight_decay)
        drifts = self.scale_parameter and self.rate(self.lr, self.steps_done + 1.0) ** 2 >= decay2
        return 0.0 if drifts or self.corrected_decay else self.norm_power

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Return the balance of decay and growth. Both are relative to the norm, unless its RMS is below eps2."""
        rate = self.rate(lr, self.steps_done + 1.0)
        a = decay_at(self, lr)
        # Share of the squared norm that decays.
        decay2 = 2 * a if leading else a * (2 - a)
        grows = self.scale_parameter & (rate * rate >= decay2)
        tangent = np.where(grows, rate * rate, decay2) ** 0.5
        angle = tangent if leading else np.arctan(tangent / (1 - a))
        rms = norm = None
        if weights.fan_in is not None:
            smallest = rate * self.scale2(0.0, weights.fan_in) ** 0.5
            rms = np.where(grows, np.inf, smallest)
            norm = np.where(grows, np.inf, safe_divide(smallest, decay2**0.5))
        # 1 - cos without loss of digits.
        return Equilibrium(angle, norm, rms, forgetting_time(2 * np.sin(angle / 2) ** 2))
