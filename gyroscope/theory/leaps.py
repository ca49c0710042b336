"""Leaps over steps of a long forecast in which settings and moments change slowly.

After three blocks of single steps the moments continue along a parabola for up to `MAX_BLOCKS` blocks. The next block
is taken step by step and lets the momentum recover from the leap. Everything between is interpolated. Errors of norms
and angles stay below 1e-3, which tests compare with single steps.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import final

import numpy as np

from gyroscope._types import Array
from gyroscope.theory.recursion import BLOCK, Motion

# Shorter forecasts take half a second step by step.
LONG_RUN = 100_000
# A longer leap would excite the average of squared gradients, whose memory is 1,000 steps for Adam's β2 = 0.999.
MAX_BLOCKS = 16
# Fewer blocks would not repay the steps after a leap.
MIN_BLOCKS = 4
# The parabola's quadratic term relative to each moment. The error is of third order and far smaller.
CURVATURE = 1e-3
# The same for its linear term and for the change of each setting, which limits the error of interpolation.
SLOPE = 0.3
# How far settings may be from a straight line during a leap and the blocks around it.
BEND = 1e-3
NO_SETTINGS: Mapping[str, Array] = MappingProxyType({})


@final
class Leaps:
    """Decides after each block whether a motion leaps, and fills in the steps that were left out.

    `steps` is the length of the run, of which lr and the other settings may be a part.
    """

    def __init__(self, motion: Motion, steps: int, lr: Array, settings: Mapping[str, Array] = NO_SETTINGS) -> None:
        self.motion = motion
        self._settings = [lr, *(values for name, values in settings.items() if name != "betas")]
        # A change of β2 rescales Adam's average of squares at each step, and a base has moments of its own.
        self._may_leap = steps > LONG_RUN and "betas" not in settings and not motion.rule.follows_base
        self._ends: list[dict[str, Array]] = []
        self._gap_after: int | None = None

    def leap(self) -> None:
        """Let the motion leap if the last three blocks allow it."""
        if not self._may_leap:
            return
        self._ends = [*self._ends[-2:], self.motion.moments()]
        blocks = MAX_BLOCKS
        while len(self._ends) == 3 and blocks >= MIN_BLOCKS:
            if self._is_straight(blocks) and self._is_smooth(blocks):
                self._gap_after = self.motion.done - 1
                for name in self._ends[-1]:
                    now, slope, curve = self._parabola(name, blocks)
                    setattr(self.motion, name, now + slope + curve)
                self.motion.done += blocks * BLOCK
                self._ends = []
                return
            blocks //= 2

    def fill_gap(self, *series: Array) -> int:
        """Interpolate series, in place, from the last step before a leap to the end of the block after it.

        By the cubic with their values and slopes at both ends. Return the first step that is now known.
        """
        if self._gap_after is None:
            return self.motion.done
        first = self._gap_after
        last = self.motion.done - 1
        x = np.linspace(0, 1, last - first + 1)[:, None]
        for values in series:
            change = values[last] - values[first]
            start_slope = (last - first) * (values[first] - values[first - 1]) - change
            end_slope = (last - first) * (values[last] - values[last - 1]) - change
            bend = x * (1 - x) * ((1 - x) * start_slope - x * end_slope)
            values[first : last + 1] = values[first] + x * change + bend
        self._gap_after = None
        return first

    def _parabola(self, name: str, blocks: int) -> tuple[Array, Array, Array]:
        """Return a moment now, and the linear and the quadratic term of its change over `blocks`."""
        before, last, now = (end[name] for end in self._ends)
        return now, blocks * (now - last), blocks * (blocks + 1) / 2 * (now - 2 * last + before)

    def _is_smooth(self, blocks: int) -> bool:
        """Return whether every moment changes slowly enough."""
        for name in self._ends[-1]:
            now, slope, curve = self._parabola(name, blocks)
            size = np.abs(now)
            if not (np.all(np.abs(curve) <= CURVATURE * size) and np.all(np.abs(slope) <= SLOPE * size)):
                return False
        return True

    def _is_straight(self, blocks: int) -> bool:
        """Return whether every setting is close to a straight line around the leap, and the run is long enough."""
        start = self.motion.done - 3 * BLOCK
        end = self.motion.done + (blocks + 1) * BLOCK
        for values in self._settings:
            part = values[start:end]
            if end > len(values):
                return False
            chord = np.linspace(part[0], part[-1], len(part))
            size = np.abs(part)
            if np.ptp(part) > SLOPE * size.min() or not np.all(np.abs(part - chord) <= BEND * size):
                return False
        return True
