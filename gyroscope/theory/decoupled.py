"""Decoupled weight decay: the decay acts on the weight itself and never enters the gradient."""

from typing import Protocol

from gyroscope.theory.correlation import Correlation, OddCorrelation
from gyroscope.theory.mean_field import Number
from gyroscope.theory.rule import Equilibrium, law, leading_order


class Decoupled(Protocol):
    """What the rules with decoupled decay have in common; with `corrected_decay`, `lr` is the schedule's peak."""

    @property
    def lr(self) -> float: ...  # noqa: D102
    @property
    def weight_decay(self) -> float: ...  # noqa: D102
    @property
    def corrected_decay(self) -> bool: ...  # noqa: D102


def decay_at(rule: Decoupled, lr: Number) -> Number:
    """Fraction of the weight that decays per step: lr·λ as torch has it, or λ·lr²/peak with corrected decay (AdamC).

    >>> from gyroscope.theory import AdamW
    >>> decay_at(AdamW(1.0, 0.1, corrected_decay=True), 0.5)
    0.025
    """
    return rule.weight_decay * lr * lr / rule.lr if rule.corrected_decay else lr * rule.weight_decay


def decoupled_equilibrium(
    rule: Decoupled, lr: Number, momentum: Correlation | OddCorrelation, update_rms: Number | None, leading: bool
) -> Equilibrium:
    """The one law for updates with a momentum's correlation and decoupled decay."""
    decay = decay_at(rule, lr)
    if leading:
        return leading_order(decay, momentum.time(), update_rms)
    return law(decay, momentum.time(decay), update_rms)
