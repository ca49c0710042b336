"""Whether a number is beyond what its own past allows: medians and extremes, which a few odd values do not move."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from math import isfinite, nan
from typing import final

import numpy as np

from gyroscope._types import Array, Mask
from gyroscope.advice import thresholds as limit

# Median absolute deviation to standard deviation, for normal numbers.
NORMAL = 1.4826


@final
class Window:
    """The last values of a series, and their median: kept sorted, since one is asked for after each value."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._values)

    def append(self, value: float) -> None:
        """Add a value, and forget the oldest of those that are too many."""
        if len(self._values) == self._size:
            oldest = self._values.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._values.append(value)
        insort(self._sorted, value)

    @property
    def median(self) -> float:
        """NaN of none."""
        count = len(self._sorted)
        return (self._sorted[(count - 1) // 2] + self._sorted[count // 2]) / 2 if count else nan


@final
class Baseline:
    """The past of one series of logarithms, by which the next value is judged.

    level   values over whose median the next one is measured
    memory  such deviations that are remembered: the threshold is above all of them
    floor   deviation that counts at least
    """

    def __init__(self, level: int, memory: int, floor: float) -> None:
        self._level = level
        self._floor = floor
        self._values = Window(level)
        self._deviations: deque[float] = deque(maxlen=memory)
        self._peak = 0.0
        self._usual_since = 0

    @property
    def is_judging(self) -> bool:
        """Whether the past is long enough."""
        return len(self._deviations) >= self._level

    @property
    def level(self) -> float:
        """The usual value."""
        return self._values.median

    def excess(self, value: float) -> float:
        """Return the deviation of a value beyond the threshold. Any other value gives 0, and a usual one is learned."""
        excess = self.judge(value)
        if excess == 0:
            self.learn(value)
        return excess if excess > 0 else 0.0

    def judge(self, value: float) -> float:
        """Return the deviation of a value beyond the threshold, 0 for a usual value, NaN for one that is neither.

        Lesser deviations that follow one beyond the threshold are neither: training recovers from it.
        """
        if not isfinite(value):
            return nan
        deviation = value - self.level
        if not self._is_beyond(deviation, allowed):
            self._usual_since += 1
            if self._usual_since >= self._level:
                self._peak = 0.0
            return 0.0
        self._usual_since = 0
        if deviation <= limit.MIN_LASTING_SHARE * self._peak:
            return nan
        self._peak = max(self._peak, deviation)
        return deviation

    def is_jump(self, value: float) -> bool:
        """Return whether a value that most of several in a row reach is beyond the threshold for a jump that lasts."""
        return self._is_beyond(value - self.level, lambda past: limit.JUMP_DEVIATIONS * upward_noise(past))

    def learn(self, value: float) -> None:
        """Make a value part of the past."""
        if len(self._values) == self._level:
            self._deviations.append(value - self.level)
        self._values.append(value)

    def _is_beyond(self, deviation: float, threshold: Callable[[Array], float]) -> bool:
        # The threshold takes longer to find than most values need.
        if not (self.is_judging and deviation > self._floor):
            return False
        return deviation > threshold(np.array(self._deviations))


def allowed(deviations: Array) -> float:
    """Return the largest deviation upwards that those of the past allow."""
    # About their own median: a loss that falls is below its past all the time.
    noise = NORMAL * float(np.median(np.abs(deviations - np.median(deviations))))
    return max(limit.INCIDENT_DEVIATIONS * noise, limit.INCIDENT_EXTREMES * float(deviations.max()))


def upward_noise(deviations: Array) -> float:
    """Return the standard deviation upwards, which single spikes do not move.

    Losses near zero are skewed: a third of them may be far above the others.
    """
    median, upper = np.quantile(deviations, (0.5, 0.75))
    return NORMAL * float(upper - median)


@final
class LayerBaselines:
    """The pasts of some series of logarithms in every layer: what a layer does that the others do not do with it.

    A layer's deviation is measured from its own median, and from that of the other layers' deviations: what a batch
    does to all of them is not told of one.
    """

    def __init__(self, floors: Sequence[float]) -> None:
        self._floors = np.array(floors)[:, None]
        self._count = 0
        self._values: Array = np.empty(0)
        self._deviations: Array = np.empty(0)
        self._levels: Array = np.empty(0)

    def excess(self, values: Array) -> Array:
        """Of (series, layers) the deviations where a layer alone is beyond its past, else 0."""
        if not self._count:
            self._values = np.full((limit.INCIDENT_LEVEL, *values.shape), nan)
            self._deviations = np.full((limit.INCIDENT_MEMORY, *values.shape), nan)
        if self._count % limit.LEVELS_EVERY == 0:
            # NaN are sorted to the end: a layer without a past has NaN for its level.
            half = limit.INCIDENT_LEVEL // 2
            self._levels = np.partition(self._values, half, axis=0)[half]
        deviations = values - self._levels
        unusual = deviations > self._floors
        # Most samples end here: what the other layers do, now and in the past, takes longer to find.
        for series in np.flatnonzero(unusual.any(1)).tolist():
            unusual[series] &= self._is_alone(series, deviations[series])
        # What lasts becomes the level after half its samples; the deviations that are remembered are of usual samples.
        self._values[self._count % limit.INCIDENT_LEVEL] = values
        self._deviations[self._count % limit.INCIDENT_MEMORY] = np.where(unusual, nan, deviations)
        self._count += 1
        return np.where(unusual, deviations, 0.0)

    def _is_alone(self, series: int, deviations: Array) -> Mask:
        """Layers that differ from the others by more than the floor, and than they did in the past."""
        alone = deviations - median_of_others(deviations)
        far: Mask = alone > self._floors[series]
        if not far.any():
            return far
        past = self._deviations[:, series] - [median_of_others(of_sample) for of_sample in self._deviations[:, series]]
        for layer in np.flatnonzero(far).tolist():
            known = past[~np.isnan(past[:, layer]), layer]
            far[layer] = len(known) >= limit.INCIDENT_LEVEL and alone[layer] > allowed(known)
        return far


def median_of_others(values: Array) -> Array:
    """For each value the median of all others; NaN are left out, and NaN where there is no other.

    >>> median_of_others(np.array([1.0, 2.0, 10.0, 4.0])).tolist()
    [4.0, 4.0, 2.0, 2.0]
    """
    in_order = np.sort(values)  # NaN at the end
    others = int(np.count_nonzero(~np.isnan(values))) - 1
    if others < 1:
        return np.full(len(values), nan)
    lower = (others - 1) // 2
    upper = others // 2
    # Where the value itself stands at or before a place, the next one is there without it.
    low = np.where(values <= in_order[lower], in_order[lower + 1], in_order[lower])
    high = np.where(values <= in_order[upper], in_order[upper + 1], in_order[upper])
    return np.asarray((low + high) / 2)
