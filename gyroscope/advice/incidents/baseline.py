"""Whether a number is unusual for its own past, by medians and extremes that a few odd values do not move.

A past has two stages. The short stage judges after about twenty samples or fifty losses, with wider thresholds because
few values are known. The long stage takes over when it is full.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from math import inf, isfinite, isnan, log, nan
from typing import NamedTuple, final

import numpy as np

from gyroscope._types import Array, Mask
from gyroscope.advice import thresholds as limit

# Median absolute deviation to standard deviation, for normal numbers.
NORMAL = 1.4826


class StageSize(NamedTuple):
    """How much of the past a stage needs.

    level       number of values whose median is the usual value
    deviations  number of deviations that must be known before anything is judged
    memory      number of deviations that are remembered. The threshold is above all of them
    caution     factor by which the thresholds are wider
    """

    level: int
    deviations: int
    memory: int
    caution: float = 1.0


BLOCK = limit.LOSSES_PER_BLOCK
LOSS_STAGES = (
    StageSize(limit.EARLY_LOSS_LEVEL, limit.EARLY_LOSSES, BLOCK * limit.INCIDENT_MEMORY, limit.EARLY_LOSS_CAUTION),
    StageSize(BLOCK * limit.INCIDENT_LEVEL, BLOCK * limit.INCIDENT_LEVEL, BLOCK * limit.INCIDENT_MEMORY),
)
SAMPLE_STAGES = (
    StageSize(limit.EARLY_LEVEL, limit.EARLY_SAMPLES, limit.INCIDENT_MEMORY, limit.EARLY_CAUTION),
    StageSize(limit.INCIDENT_LEVEL, limit.INCIDENT_LEVEL, limit.INCIDENT_MEMORY),
)


@final
class Window:
    """The last values of a series and their median. Values are kept sorted, because each new one needs a new median."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._values)

    def append(self, value: float) -> None:
        """Add a value, and forget the oldest if there are too many."""
        if len(self._values) == self._size:
            oldest = self._values.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._values.append(value)
        insort(self._sorted, value)

    @property
    def median(self) -> float:
        """The median, NaN without values."""
        count = len(self._sorted)
        return (self._sorted[(count - 1) // 2] + self._sorted[count // 2]) / 2 if count else nan


@final
class Stage:
    """One stage of a past: recent values, and how far earlier ones were from the median of those before them."""

    def __init__(self, size: StageSize) -> None:
        self.size = size
        self.values = Window(size.level)
        self.deviations: deque[float] = deque(maxlen=size.memory)

    @property
    def is_judging(self) -> bool:
        """Whether the past is long enough."""
        return len(self.deviations) >= self.size.deviations

    def learn(self, value: float) -> None:
        """Make a value part of the past."""
        if len(self.values) == self.size.level:
            self.deviations.append(value - self.values.median)
        self.values.append(value)


@final
class Baseline:
    """The past of one series of logarithms in two stages. The next value is judged by it.

    floor   smallest deviation that counts
    fall    fall since the start after which a new highest value is beyond the threshold at any noise
    """

    def __init__(self, stages: tuple[StageSize, StageSize], floor: float, fall: float = inf) -> None:
        self._early, self._late = (Stage(size) for size in stages)
        self._floor = floor
        self._fall = fall
        self._start = nan
        self._highest = -inf
        self._peak = 0.0
        self._usual_since = 0

    @property
    def _stage(self) -> Stage:
        return self._late if self._late.is_judging else self._early

    @property
    def is_judging(self) -> bool:
        """Whether the past is long enough."""
        return self._early.is_judging

    @property
    def level(self) -> float:
        """The usual value."""
        return self._stage.values.median

    def excess(self, value: float) -> float:
        """Return the deviation of a value beyond the threshold, 0 for any other value. A usual value is learned."""
        excess = self.judge(value)
        if excess == 0:
            self.learn(value)
        return excess if excess > 0 else 0.0

    def judge(self, value: float) -> float:
        """Return the deviation of a value beyond the threshold, 0 for a usual value, NaN for one that is neither.

        Smaller deviations right after one beyond the threshold are neither, because training recovers from it.
        """
        if not isfinite(value):
            return nan
        deviation = value - self.level
        if not (self._is_far(deviation) and self._is_beyond(value)):
            self._usual_since += 1
            if self._usual_since >= self._stage.size.level:
                self._peak = 0.0
            return 0.0
        self._usual_since = 0
        if deviation <= limit.MIN_LASTING_SHARE * self._peak:
            return nan
        self._peak = max(self._peak, deviation)
        return deviation

    def is_jump(self, value: float) -> bool:
        """Return whether a value that most of several losses in a row reach is beyond the threshold for a jump."""
        deviation = value - self.level
        if not self._is_far(deviation):
            return False
        return deviation > self._caution * limit.JUMP_DEVIATIONS * upward_noise(self._deviations)

    def learn(self, value: float) -> None:
        """Make a value part of the past."""
        self._highest = max(self._highest, value)
        if isnan(self._start) and len(self._early.values) == self._early.size.level:
            self._start = self._early.values.median
        self._late.learn(value)
        if not self._late.is_judging:
            self._early.learn(value)

    def begin_early(self) -> None:
        """Forget the early stage, because the next values have other deviations."""
        self._early = Stage(self._early.size)

    def _is_far(self, deviation: float) -> bool:
        """Return whether a deviation is above the floor. This check is cheaper than finding the threshold."""
        return self.is_judging and deviation > self._floor

    def _is_beyond(self, value: float) -> bool:
        deviation = value - self.level
        deviations = self._deviations
        if deviation > self._caution * allowed(deviations):
            return True
        is_record = value > self._highest + log(limit.LOSS_RECORD) and self._start - self.level > self._fall
        return is_record and deviation > limit.RECORD_EXTREMES * float(deviations.max())

    @property
    def _deviations(self) -> Array:
        return np.array(self._stage.deviations)

    @property
    def _caution(self) -> float:
        return self._stage.size.caution


def allowed(deviations: Array) -> float:
    """Return the largest upward deviation that is usual, given those of the past."""
    # Relative to their own median, because a falling loss is always below its past.
    noise = NORMAL * float(np.median(np.abs(deviations - np.median(deviations))))
    return max(limit.INCIDENT_DEVIATIONS * noise, limit.INCIDENT_EXTREMES * float(deviations.max()))


def upward_noise(deviations: Array) -> float:
    """Return the upward standard deviation, which single spikes do not move.

    Losses near zero are skewed: a third of them may be far above the others.
    """
    median, upper = np.quantile(deviations, (0.5, 0.75))
    return NORMAL * float(upper - median)


@final
class LayerBaselines:
    """The pasts of some series of logarithms in every layer. They show changes that only one layer has.

    A layer's deviation is measured from its own median, and from the median deviation of the other layers. So an effect
    of a batch on all layers is not attributed to one layer. An effect on some layers is not either, because the
    gradients of all queries and keys grow together when attention begins to learn.

    parameters  the parameter of each layer: q, k and v of a fused weight belong to one
    floors      smallest deviation of each series that counts, and by how much it must exceed that of other layers
    needed      number of deviations of each series that must be known before a layer is judged by it
    """

    def __init__(self, parameters: Sequence[str], floors: Sequence[tuple[float, float]], needed: Sequence[int]) -> None:
        self._parameters = np.array(parameters)
        self._floors, self._floors_alone = np.array(floors).T[:, :, None]
        self._needed = needed
        self._count = 0
        self._values: Array = np.empty(0)
        self._deviations: Array = np.empty(0)
        self._levels: Array = np.empty(0)

    def excess(self, values: Array) -> Array:
        """Return the deviations (series, layers) of layers that alone are beyond their past. All others are 0."""
        if not self._count:
            self._values = np.full((limit.INCIDENT_LEVEL, *values.shape), nan)
            self._deviations = np.full((limit.INCIDENT_MEMORY, *values.shape), nan)
        if self._count % limit.LEVELS_EVERY == 0:
            # NaN are sorted to the end, so a layer without a past has the level NaN.
            half = max(limit.EARLY_LEVEL, min(self._count, limit.INCIDENT_LEVEL)) // 2
            self._levels = np.partition(self._values, half, axis=0)[half]
        deviations = values - self._levels
        unusual = deviations > self._floors
        # Most samples end here, because a comparison with the other layers takes longer.
        for series in np.flatnonzero(unusual.any(1)).tolist():
            unusual[series] &= self._is_alone(series, deviations[series])
        # A lasting change becomes the level after half its samples. Only deviations of usual samples are remembered.
        self._values[self._count % limit.INCIDENT_LEVEL] = values
        self._deviations[self._count % limit.INCIDENT_MEMORY] = np.where(unusual, nan, deviations)
        self._count += 1
        return np.where(unusual, deviations, 0.0)

    def forget(self, series: list[bool]) -> None:
        """Forget the deviations of some series, because the next values have others."""
        if self._count:
            self._deviations[:, series] = nan

    def _is_alone(self, series: int, deviations: Array) -> Mask:
        """Return the layers that differ from the others by more than the floor and by more than in the past."""
        alone = deviations - median_of_others(deviations)
        far: Mask = alone > self._floors_alone[series]
        if not far.any():
            return far
        past = self._deviations[:, series] - [median_of_others(of_sample) for of_sample in self._deviations[:, series]]
        for layer in np.flatnonzero(far).tolist():
            known = past[~np.isnan(past[:, layer]), layer]
            caution = limit.EARLY_CAUTION if len(known) < limit.INCIDENT_LEVEL else 1.0
            others = alone[self._parameters != self._parameters[layer]]
            far[layer] = (
                len(known) >= self._needed[series]
                and alone[layer] > caution * allowed(known)
                and alone[layer] > limit.MIN_ALONE * np.fmax.reduce(others, initial=0.0)
            )
        return far


def median_of_others(values: Array) -> Array:
    """Return for each value the median of all others. NaN are left out. The median of none is NaN.

    >>> median_of_others(np.array([1.0, 2.0, 10.0, 4.0])).tolist()
    [4.0, 4.0, 2.0, 2.0]
    """
    in_order = np.sort(values)  # NaN at the end
    others = int(np.count_nonzero(~np.isnan(values))) - 1
    if others < 1:
        return np.full(len(values), nan)
    lower = (others - 1) // 2
    upper = others // 2
    # If the value itself is at or before a position, the next value moves up to that position without it.
    low = np.where(values <= in_order[lower], in_order[lower + 1], in_order[lower])
    high = np.where(values <= in_order[upper], in_order[upper + 1], in_order[upper])
    return np.asarray((low + high) / 2)
