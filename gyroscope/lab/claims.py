"""Claims and how they are judged: what was predicted, what was measured, and whether the claim holds."""

import math
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom. A table, because scipy comes only with the
# extra `lab`, and `gyroscope lab run` works without it.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True)
class ConfidenceInterval:
    """The mean over n seeds, and the interval that holds it with 95 % confidence (Student's t)."""

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
    measured: ConfidenceInterval
    tolerance: str
    holds: bool


def confidence_interval(samples: "ArrayLike") -> ConfidenceInterval:
    """Mean and 95 % interval of one number per seed.

    >>> str(confidence_interval([1.0, 1.1, 0.9]))
    '1 [0.7516, 1.248]'
    """
    import numpy as np  # not at the top: `gyroscope lab list` reads claims, and answers without NumPy

    values = np.asarray(samples, dtype=np.float64).ravel().tolist()
    if not values:
        raise ValueError("no samples: a claim needs at least one measured value")
    n = len(values)
    mean = fmean(values)
    variance = sum((value - mean) ** 2 for value in values) / max(n - 1, 1)
    half = _student(n - 1) * math.sqrt(variance / n) if n > 1 else 0.0  # one seed has no interval
    return ConfidenceInterval(mean, mean - half, mean + half, n)


def agrees(sentence: str, predicted: float, samples: "ArrayLike", *, within: float) -> Claim:
    """The claim that a measured value is the predicted one, up to a relative error of `within`.

    >>> agrees("pi is 22/7", 22 / 7, [3.14159], within=0.001).holds
    True
    """
    measured = confidence_interval(samples)
    tolerance = abs(predicted) * within
    holds = bool(predicted - tolerance <= measured.low and measured.high <= predicted + tolerance)
    return Claim(sentence, float(predicted), measured, f"within {100 * within:.3g} %", holds)


def at_most(sentence: str, bound: float, samples: "ArrayLike") -> Claim:
    """The claim that a measured value does not exceed a bound.

    >>> at_most("errors are rounding", 1e-9, [2e-12, 3e-12]).holds
    True
    """
    measured = confidence_interval(samples)
    return Claim(sentence, float(bound), measured, "at most", bool(measured.high <= bound))


def at_least(sentence: str, bound: float, samples: "ArrayLike") -> Claim:
    """The claim that a measured value reaches a bound.

    >>> at_least("the ratio reaches 1", 1.0, [0.5, 0.6]).holds
    False
    """
    measured = confidence_interval(samples)
    return Claim(sentence, float(bound), measured, "at least", bool(measured.low >= bound))


def _student(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t."""
    return T95[freedom - 1] if freedom <= len(T95) else 1.96 + 2.4 / freedom  # within 0.001
