"""Claims and how they are judged: what was predicted, what was measured, and whether the claim holds."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

CONFIDENCE = 0.95


class ClaimOutcome(StrEnum):
    """The outcome of a claim, from best to worst."""

    HOLDS = "holds"
    UNDECIDED = "undecided"
    DOES_NOT_HOLD = "does not hold"


@final
@dataclass(frozen=True)
class ConfidenceInterval:
    """The mean over n seeds with its 95 % confidence interval (Student's t)."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if self.n == 1 or self.high == self.low:
            return f"{self.mean:.4g}"
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"


@final
@dataclass(frozen=True)
class Claim:
    """A sentence, the value it predicts, the measured one, the tolerance between them, and the outcome.

    A claim holds if the whole confidence interval lies within the tolerance, and does not hold if the whole interval
    lies outside. If the interval straddles the edge, the claim is undecided and needs more seeds.
    """

    sentence: str
    predicted: float
    measured: ConfidenceInterval
    tolerance: str
    outcome: ClaimOutcome

    @property
    def holds(self) -> bool:
        """Whether the measurement confirms the claim."""
        return self.outcome == ClaimOutcome.HOLDS

    @property
    def is_ours(self) -> bool:
        """Whether the sentence says in parentheses that the claim is not the paper's: (ours), (exact, ours)."""
        return re.search(r"\((?:[^()]*, )?ours\)", self.sentence) is not None


def count_outcomes(claims: Sequence[Claim]) -> str:
    """Return in words how many claims have each outcome.

    >>> count_outcomes([at_most("", 1.0, [0.5]), at_most("", 1.0, [0.5, 1.5]), at_most("", 1.0, [0.1])])
    '2 of 3 hold, 1 undecided'
    """
    counts = Counter(claim.outcome for claim in claims)
    text = f"{counts[ClaimOutcome.HOLDS]} of {len(claims)} hold"
    if counts[ClaimOutcome.DOES_NOT_HOLD]:
        text += f", {counts[ClaimOutcome.DOES_NOT_HOLD]} not"
    if counts[ClaimOutcome.UNDECIDED]:
        text += f", {counts[ClaimOutcome.UNDECIDED]} undecided"
    return text


def confidence_interval(samples: "ArrayLike") -> ConfidenceInterval:
    """Return mean and 95 % interval of one number per seed.

    >>> str(confidence_interval([1.0, 1.1, 0.9]))
    '1 [0.7516, 1.248]'
    """
    import numpy as np  # not at the top, because `gyroscope lab list` reads claims without NumPy

    values = np.asarray(samples, dtype=np.float64).ravel().tolist()
    if not values:
        raise ValueError("no samples: a claim needs at least one measured value")
    n = len(values)
    mean = fmean(values)
    variance = sum((value - mean) ** 2 for value in values) / max(n - 1, 1)
    half = student_quantile(n - 1) * math.sqrt(variance / n) if n > 1 else 0.0  # one seed has no interval
    return ConfidenceInterval(mean, mean - half, mean + half, n)


def agrees(sentence: str, predicted: float, samples: "ArrayLike", *, within: float) -> Claim:
    """Return the claim that a measured value is the predicted one, up to a relative error of `within`.

    >>> agrees("pi is 22/7", 22 / 7, [3.14159], within=0.001).holds
    True
    """
    tolerance = abs(predicted) * within
    bounds = (predicted - tolerance, predicted + tolerance)
    return _judged(sentence, predicted, samples, f"within {100 * within:.3g} %", bounds)


def near(sentence: str, predicted: float, samples: "ArrayLike", *, margin: float) -> Claim:
    """Return the claim that a measured value is the predicted one, up to an absolute `margin`.

    >>> near("two accuracies are equal", 0.0, [0.004, 0.006], margin=0.02).holds
    True
    """
    return _judged(sentence, predicted, samples, f"within ±{margin:g}", (predicted - margin, predicted + margin))


def at_most(sentence: str, bound: float, samples: "ArrayLike") -> Claim:
    """Return the claim that a measured value does not exceed a bound.

    >>> at_most("errors are rounding", 1e-9, [2e-12, 3e-12]).holds
    True
    """
    return _judged(sentence, bound, samples, "at most", (-math.inf, bound))


def at_least(sentence: str, bound: float, samples: "ArrayLike") -> Claim:
    """Return the claim that a measured value reaches a bound.

    >>> at_least("the ratio reaches 1", 1.0, [0.5, 0.6]).outcome.value
    'undecided'
    """
    return _judged(sentence, bound, samples, "at least", (bound, math.inf))


def _judged(
    sentence: str, predicted: float, samples: "ArrayLike", tolerance: str, bounds: tuple[float, float]
) -> Claim:
    measured = confidence_interval(samples)
    low, high = bounds
    # NaN fails every comparison, and so confirms nothing.
    outcome = ClaimOutcome.DOES_NOT_HOLD
    if low <= measured.low and measured.high <= high:
        outcome = ClaimOutcome.HOLDS
    elif low <= measured.high and measured.low <= high:
        outcome = ClaimOutcome.UNDECIDED
    return Claim(sentence, float(predicted), measured, tolerance, outcome)


def student_quantile(freedom: float) -> float:
    """Return the two-sided 95 % quantile of Student's t.

    >>> round(student_quantile(2), 4)
    4.3027
    """
    from scipy.special import stdtrit  # scipy.stats has the same number and takes a second to import

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
