"""Lion: the sign of an interpolation between momentum and gradient."""

from dataclasses import dataclass, field
from functools import cache
from math import log, pi
from typing import ClassVar, final

import numpy as np

from gyroscope._types import Array, Number
from gyroscope.theory.cautious import cautious_equilibrium
from gyroscope.theory.law import Correlation, Equilibrium, OddCorrelation, Weights, balanced, equilibrium_angle
from gyroscope.theory.linear_motion import Combination, LinearSteps, StepNormaliser
from gyroscope.theory.rules.base import BetaRule, MomentumStep
from gyroscope.theory.rules.decoupled import decay_at

# The first terms of the arcsine's series are kept separately. At usual betas there are no others: (0.99, 0.999) has
# 122.
EXACT_TERMS = 1000
# The others are gathered in groups, each 0.5 % wide, so that τ is exact to 1e-8 and 200,000 terms do not take minutes.
BINS = 1000
# E‖sign c‖² = C over its part along the Gaussian c, which is 2C/π. The rest is the sign's own noise.
SIGN_EXCESS = pi / 2


@cache
def correlation(beta1: float, beta2: float) -> OddCorrelation:
    """Return the correlation of Lion's signs, (2/π)·arcsin rho(k), rho of the filter c0 = 1-β1, c_k = β1(1-β2)β2^(k-1).

    Ours: docs/theory.md, "Lion and the arcsine law". The arcsine is its series Σ_n c_n x^(2n+1), whose terms fall like
    rho(1)^(2n), and at worst like n^(-5/2). Every power of a geometric correlation is geometric, so τ(a) is a sum.

    >>> f"{correlation(0.9, 0.99).time():.2f}"
    '45.93'
    """
    linear = Correlation.of_filter(1 - beta1, beta1 * (1 - beta2), beta2)
    n = np.arange(_terms(linear.first))
    series = np.cumprod(np.concatenate([[1.0], (2 * n[1:] - 1) / (2 * n[1:])])) / (2 * n + 1)
    return OddCorrelation(linear, *_merged((2 * n + 1).astype(np.float64), (2 / pi) * series))


def _merged(powers: Array, weights: Array) -> tuple[Array, Array]:
    """Return the terms of a long series, with later ones, which hardly differ, gathered at their mean power."""
    if len(powers) <= EXACT_TERMS + BINS:
        return powers, weights
    edges = np.unique(np.geomspace(EXACT_TERMS, len(powers), BINS).astype(np.int64))
    starts = np.concatenate([np.arange(EXACT_TERMS), edges[:-1]])
    total = np.add.reduceat(weights, starts)
    return np.add.reduceat(weights * powers, starts) / total, total


def _terms(first: float) -> int:
    """Return the number of terms for nine digits: e^-20 of a geometric series, 200,000 of n^(-5/2)."""
    if first == 0:
        return 1
    return 200_000 if first >= 1 else int(min(2 - 20 / log(first), 200_000))


def angular_update(lr: Number, weight_decay: Number, beta1: float, beta2: float) -> Number:
    """Return the angle per step of a weight vector in Lion's equilibrium, in radians: sqrt(2·lr·weight_decay/τ).

    τ follows the arcsine law, ours: docs/theory.md, "Lion and the arcsine law".

    >>> f"{angular_update(1e-4, 1.0, 0.9, 0.99):.5f}"
    '0.00209'
    """
    return equilibrium_angle(lr * weight_decay, correlation(beta1, beta2).time())


@final
@dataclass(frozen=True)
class Lion(BetaRule):
    """Lion: w <- (1 - lr·λ)·w - lr·sign(β1·m + (1-β1)·g), m <- β2·m + (1-β2)·g.

    The correlation of signs follows the arcsine law (ours: docs/theory.md, "Lion and the arcsine law"). The form of the
    paper treats the sign as linear and neglects its white part. Its exact norm has τ(a) instead of τ(0) in RE (70):

        η_r = sqrt(π·lr·λ·[(1-β1)² + β1²(1-β2)/(1+β2)]),  ‖ω‖ = sqrt(lr·C/(π·λ·[…]))     (RE 70-72)

    lr, weight_decay  as in Lion. One step decays the share lr·λ of the weight
    betas             β1 of the update and β2 of the momentum
    linearised        use the paper's form (RE Appendix H) instead of the arcsine law
    corrected_decay, cautious_decay  as AdamW's

    >>> arcsine, paper = Lion(1e-4, 1.0), Lion(1e-4, 1.0, linearised=True)
    >>> [f"{rule.equilibrium(fan_in=512).norm:.4f}" for rule in (arcsine, paper)]
    ['1.0791', '1.0710']
    """

    betas: tuple[float, float] = (0.9, 0.99)
    linearised: bool = False
    corrected_decay: bool = False
    cautious_decay: bool = field(default=False, repr=False)

    needs: ClassVar[tuple[str, ...]] = ("fan_in",)
    is_decoupled: ClassVar[bool] = True

    @property
    def sign_beta(self) -> float:  # type: ignore[override]
        """β1."""
        return self.betas[0]

    @property
    def momentum_step(self) -> MomentumStep | None:
        """m <- β2·m + (1-β2)·g."""
        beta2 = self.betas[1]
        return MomentumStep(beta2, 1 - beta2) if beta2 else None

    def correlation(self, weights: Weights) -> OddCorrelation:
        """Return the correlation of the signs."""
        return correlation(*self.betas)

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Return the one law with E‖u‖² = lr²·C."""
        decay = decay_at(self, lr)
        rms = None if weights.fan_in is None else lr * weights.fan_in**0.5
        signs = correlation(*self.betas)

        def time(a: Number) -> Number:
            return (2 / pi) * signs.linear.time(a) if self.linearised else signs.time(a)

        if self.cautious_decay:
            return cautious_equilibrium(
                decay, rms, time, linear_time=signs.linear.time, excess=SIGN_EXCESS, leading=leading
            )
        return balanced(decay, time, rms, leading=leading)

    def linear_steps(self, lr: Array, done: int, weights: Weights) -> LinearSteps:
        """Return steps along c, because the sign acts through its part along its Gaussian argument.

        E⟨w, sign c⟩ = sqrt(2C/(π·E‖c‖²))·E⟨w, c⟩. The rest is noise, correlated over steps by the arcsine law. So w
        contains more of the signs than of their linear parts, by the factor (τ-1)/((2/π)(τ_linear-1)).
        """
        beta1, beta2 = self.betas
        argument = Combination(0.0, beta1, 1 - beta1)
        average = Combination(0.0, beta2, 1 - beta2)
        length2 = StepNormaliser(momentum=(beta1 / (1 - beta1)) ** 2)  # E‖c‖² is (1-β1)² times this D
        size = 2 * weights.fan_in / (pi * (1 - beta1) ** 2)
        decay = decay_at(self, lr)
        signs = correlation(*self.betas)
        coupling: Number = 1.0
        if signs.linear.first != 0:  # without momentum, signs of different steps are independent
            coupling = np.asarray((signs.time(decay) - 1) / ((2 / pi) * (signs.linear.time(decay) - 1)))
        return LinearSteps(decay, lr, argument, average, length2, excess=SIGN_EXCESS, coupling=coupling, size=size)
