"""Decoupled weight decay: the decay acts on the weight itself and never enters the gradient."""

import numpy as np

from gyroscope._types import Array, Number
from gyroscope.theory.cautious import cautious_equilibrium
from gyroscope.theory.law import AnyCorrelation, Correlation, Equilibrium, Weights, balanced
from gyroscope.theory.recursion import Combination, LinearSteps, StationarySteps, StepNormaliser
from gyroscope.theory.rules.base import BetaRule, UpdateRule


def decay_at(rule: UpdateRule, lr: Number) -> Number:
    """Return the fraction of the weight that decays per step: lr·λ as in torch, or λ·lr²/peak if corrected (AdamC).

    >>> from gyroscope.theory import AdamW
    >>> decay_at(AdamW(1.0, 0.1, corrected_decay=True), 0.5)
    0.025
    """
    return rule.weight_decay * lr * lr / rule.lr if rule.corrected_decay else lr * rule.weight_decay


def decoupled_equilibrium(
    rule: UpdateRule, lr: Number, momentum: AnyCorrelation, update_rms: Number | None, leading: bool
) -> Equilibrium:
    """Return the one law for updates with a momentum's correlation and decoupled decay."""
    decay = decay_at(rule, lr)
    if rule.cautious_decay:
        return cautious_equilibrium(decay, update_rms, momentum.time, leading=leading)
    return balanced(decay, momentum.time, update_rms, leading=leading)


def decoupled_stationary_steps(
    rule: UpdateRule, lr: Array, momentum: AnyCorrelation, unit_rms: float, size: Number = 1.0
) -> StationarySteps:
    """Return steps of known size with the geometric correlation that has the same τ(a) and the momentum's ratio."""
    a = decay_at(rule, rule.lr)
    beta = rule.momentum_factor
    first = (momentum.time(a) - 1) * (1 - beta * (1 - a)) / (2 * (1 - a))
    return StationarySteps(decay_at(rule, lr), lr * unit_rms, Correlation(first, beta), size)


def decoupled_adam_steps(rule: BetaRule, lr: Array, done: int, weights: Weights, update: Combination) -> LinearSteps:
    """Return an Adam's steps with u = lr·update/√v, v the average of g², so that the gradient's scale cancels."""
    beta1, beta2 = rule.betas
    average = Combination(0.0, beta1, 1 - beta1)
    decay = decay_at(rule, lr)
    unadapted = rule.unadapted(len(lr), done)
    scale = rule.adam_scale(lr, done)
    unit_grad2: Number = 1.0
    if rule.rectified and weights.unit_grad_norm is not None and not rule.cautious_decay:
        unit_grad2 = weights.unit_grad_norm**2
    else:  # a step as long as its gradient, which is unknown
        scale = np.where(unadapted, 0.0, scale)
    # The unit is what v takes of a new gradient. A run whose β2 changes rescales its D by it.
    D = StepNormaliser(beta2, unit=1 - beta2)
    return LinearSteps(decay, scale, update, average, D, unadapted, unit_grad2=unit_grad2, size=weights.fan_in)
