"""Decoupled weight decay: the decay acts on the weight itself and never enters the gradient."""

from abc import abstractmethod
from typing import ClassVar

from gyroscope._types import Array, Number
from gyroscope.theory.cautious import cautious_equilibrium
from gyroscope.theory.law import AnyCorrelation, Correlation, Equilibrium, Weights, balanced
from gyroscope.theory.linear_motion import Combination, LinearSteps, StepNormaliser
from gyroscope.theory.recursion import StationarySteps
from gyroscope.theory.rules.base import BetaRule, UpdateRule


def decay_at(rule: UpdateRule, lr: Number) -> Number:
    """Return the fraction of the weight that decays per step: lr·λ as in torch, or λ·lr²/peak if corrected (AdamC).

    >>> from gyroscope.theory import AdamW
    >>> decay_at(AdamW(1.0, 0.1, corrected_decay=True), 0.5)
    0.025
    """
    return rule.weight_decay * lr * lr / rule.lr if rule.corrected_decay else lr * rule.weight_decay


class DecoupledRule(UpdateRule):
    """The base of rules that follow the one law: the size of their updates does not depend on the gradient's scale."""

    is_decoupled: ClassVar[bool] = True

    @abstractmethod
    def unit_update(self, weights: Weights) -> tuple[Number, AnyCorrelation]:
        """Return the RMS size of an update at lr = 1, None if it is unknown, and the updates' correlation."""

    def correlation(self, weights: Weights) -> AnyCorrelation:
        """Return the correlation of updates."""
        return self.unit_update(weights)[1]

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Return the one law, with cautious decay if the rule has it."""
        size, correlation = self.unit_update(weights)
        rms = None if size is None else lr * size
        if self.cautious_decay:
            return cautious_equilibrium(decay_at(self, lr), rms, correlation.time, leading=leading)
        return balanced(decay_at(self, lr), correlation.time, rms, leading=leading)

    def stationary_steps(self, lr: Array, weights: Weights) -> StationarySteps:
        """Return steps of known size, which are rough while averages fill.

        Their correlation is the geometric one that has the same τ(a) and falls by the momentum's factor.
        """
        size, correlation = self.unit_update(weights)
        a = decay_at(self, self.lr)
        beta = self.momentum_factor
        first = (correlation.time(a) - 1) * (1 - beta * (1 - a)) / (2 * (1 - a))
        return StationarySteps(decay_at(self, lr), lr, Correlation(first, beta), size=size**2)


def decoupled_adam_steps(rule: BetaRule, lr: Array, done: int, weights: Weights, update: Combination) -> LinearSteps:
    """Return an Adam's steps with u = lr·update/√v, v the average of g², so that the gradient's scale cancels."""
    beta1, beta2 = rule.betas
    average = Combination(0.0, beta1, 1 - beta1)
    # The unit is what v takes of a new gradient. A run whose β2 changes rescales its D by it.
    D = StepNormaliser(beta2, unit=1 - beta2)
    return LinearSteps(decay_at(rule, lr), rule.adam_scale(lr, done), update, average, D, size=weights.fan_in)
