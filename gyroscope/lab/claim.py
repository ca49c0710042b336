"""A claim and its judgement: what is said, what was predicted, what was measured, and whether it holds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t that 95 % of the samples stay below in size, for 1, 2, … degrees of freedom."""


@dataclass(frozen=True)
class Estimate:
    """The mean over seeds and the interval that holds it with 95 % confidence (Student's t); n is the seeds."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if self.n == 1 or self.high == self.low:
            return f"{self.mean:.4g}"
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True)
class Claim:
    """A sentence, the value it predicts, the measured one, the tolerance between them, and whether it holds.

    It holds only where the whole confidence interval lies within the tolerance: noise never makes a claim true.
    """

    sentence: str
    predicted: float
    measured: Estimate
    tolerance: str
    holds: bool


def estimate(samples: Any) -> Estimate:
    """Mean and 95 % interval of one number per seed.

    >>> str(estimate([1.0, 1.1, 0.9]))
    '1 [0.7516, 1.248]'
    """
    values = [float(sample) for sample in _flat(samples)]
    if not values:
        raise ValueError("no samples: a claim needs at least one measured value")
    mean, n = fmean(values), len(values)
    variance = sum((value - mean) ** 2 for value in values) / max(n - 1, 1)
    half = _student(n - 1) * math.sqrt(variance / n) if n > 1 else 0.0
    return Estimate(mean, mean - half, mean + half, n)


def agrees(sentence: str, predicted: float, samples: Any, *, within: float) -> Claim:
    """The claim that a measured value is the predicted one, up to a relative error of `within`.

    >>> agrees("pi is 22/7", 22 / 7, [3.14159], within=0.001).holds
    True
    """
    measured = estimate(samples)
    room = abs(predicted) * within
    holds = bool(predicted - room <= measured.low and measured.high <= predicted + room)
    return Claim(sentence, float(predicted), measured, f"within {_percent(within)}", holds)


def at_most(sentence: str, bound: float, samples: Any) -> Claim:
    """The claim that a measured value does not exceed a bound.

    >>> at_most("errors are rounding", 1e-9, [2e-12, 3e-12]).holds
    True
    """
    measured = estimate(samples)
    return Claim(sentence, float(bound), measured, "at most", bool(measured.high <= bound))


def at_least(sentence: str, bound: float, samples: Any) -> Claim:
    """The claim that a measured value reaches a bound.

    >>> at_least("the boat floats", 1.0, [0.5, 0.6]).holds
    False
    """
    measured = estimate(samples)
    return Claim(sentence, float(bound), measured, "at least", bool(measured.low >= bound))


def _flat(samples: Any) -> Sequence[Any]:
    values = samples.ravel().tolist() if hasattr(samples, "ravel") else samples
    return values if isinstance(values, list | tuple) else [values]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _student(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t; beyond the table within 0.001."""
    return T95[freedom - 1] if freedom <= len(T95) else 1.96 + 2.4 / freedom
