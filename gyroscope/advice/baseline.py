"""Whether a number is beyond what its own past allows: medians and extremes, which a few odd values do not move."""

from collections import deque
from math import inf, nan
from typing import final

import numpy as np

from gyroscope.advice import thresholds as limit

# Median absolute deviation to standard deviation, for normal numbers.
NORMAL = 1.4826


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
        self._values: deque[float] = deque(maxlen=level)
        self._deviations: deque[float] = deque(maxlen=memory)
        self._peak = 0.0
        self._usual_since = 0

    @property
    def is_judging(self) -> bool:
        """Whether the past is long enough."""
        return len(self._deviations) >= self._level

    @property
    def threshold(self) -> float:
        """The largest deviation upwards that the past allows; infinite while it is too short to judge by."""
        if not self.is_judging:
            return inf
        deviations = np.array(self._deviations)
        # About their own median: a loss that falls is below its past all the time.
        noise = NORMAL * float(np.median(np.abs(deviations - np.median(deviations))))
        return max(self._floor, limit.INCIDENT_DEVIATIONS * noise, limit.INCIDENT_EXTREMES * float(deviations.max()))

    def excess(self, value: float) -> float:
        """Deviation of the next value where it is beyond the threshold, 0 where it is not and becomes part of the past.

        0 also for the lesser deviations that follow one which was beyond: training recovers from it.
        """
        if not np.isfinite(value):
            return 0.0
        deviation = value - float(np.median(self._values)) if self._values else nan
        # The threshold takes longer to find than most values need.
        if not (deviation > self._floor and deviation > self.threshold):
            self._learn(value, deviation)
            return 0.0
        self._usual_since = 0
        if deviation <= limit.LASTING_SHARE * self._peak:
            return 0.0
        self._peak = max(self._peak, deviation)
        return deviation

    def _learn(self, value: float, deviation: float) -> None:
        if len(self._values) == self._level:
            self._deviations.append(deviation)
        self._values.append(value)
        self._usual_since += 1
        if self._usual_since >= self._level:
            self._peak = 0.0
