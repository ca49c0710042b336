"""AdamW: weight decay outside the adaptive step (torch multiplies it by lr)."""

from dataclasses import dataclass, field
from typing import ClassVar, final

from gyroscope._types import Array, Number
from gyroscope.theory.law import Correlation, Weights, equilibrium_angle
from gyroscope.theory.linear_motion import Combination, LinearSteps
from gyroscope.theory.rules.base import BetaRule
from gyroscope.theory.rules.decoupled import DecoupledRule, decoupled_adam_steps


def angular_update(lr: Number, weight_decay: Number, beta1: Number) -> Number:
    """Return the angle per step of a weight vector in AdamW's equilibrium, in radians.

        η_r = sqrt(2·lr·weight_decay·(1-β1)/(1+β1))     (RE Table 1)

    Holds for scale-invariant vectors while lr·weight_decay ≪ 1.

    >>> f"{angular_update(1e-3, 0.1, 0.9):.5f}"
    '0.00324'
    """
    return equilibrium_angle(lr * weight_decay, (1 + beta1) / (1 - beta1))


@final
@dataclass(frozen=True)
class AdamW(DecoupledRule, BetaRule):
    """AdamW (RE Appendix F): the update averages entries of unit size with β1, for any scale of the gradient.

        leading order:  ‖ω‖ = sqrt(lr·C/(2λ)),   η_r = sqrt(2·lr·λ·(1-β1)/(1+β1))     (RE Table 1)
        exact:          the one law with τ(a) = (1+β1(1-a))/(1-β1(1-a))               (ours)

    Derived in docs/theory.md, "The one law".

    lr               peak of the learning rate
    weight_decay     λ, as in torch. One step decays the share a = lr·λ of the weight
    betas            β1 and β2
    corrected_decay  AdamC: a_t = λ·lr_t²/lr, so norms stay and rotation follows lr_t
    cautious_decay   only entries that the update shrinks decay, about half of them

    >>> eq = AdamW(lr=1e-3, weight_decay=0.1).equilibrium(fan_in=512)
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm:.3f}, forgets in {eq.timescale:.0f} steps"
    '0.00324 rad/step at norm 1.599, forgets in 10000 steps'
    """

    corrected_decay: bool = False
    cautious_decay: bool = field(default=False, repr=False)

    needs: ClassVar[tuple[str, ...]] = ("fan_in",)
    second_moment_per_entry: ClassVar[bool] = True
    alignment_power = 0.5  # ‖ω‖² ∝ E‖u‖²

    def unit_update(self, weights: Weights) -> tuple[Number, Correlation]:
        """Return E‖u‖² = C·(1-β1)/(1+β1) (RE 40) and the correlation of an average."""
        beta1 = self.betas[0]
        C = weights.fan_in
        return None if C is None else (C * (1 - beta1) / (1 + beta1)) ** 0.5, Correlation.of_average(beta1)

    def linear_steps(self, lr: Array, done: int, weights: Weights) -> LinearSteps:
        """Return steps with m' = β1·m + (1-β1)·g and u = lr·m'/√v."""
        beta1 = self.betas[0]
        return decoupled_adam_steps(self, lr, done, weights, update=Combination(0.0, beta1, 1 - beta1))
