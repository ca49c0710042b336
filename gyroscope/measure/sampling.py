"""When to measure: every so many steps, as a schedule says, or by itself within a budget of time."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import isfinite
from time import perf_counter
from typing import Literal, final

Every = int | Callable[[int], bool] | Literal["auto"]

FREE = 10
"""Samples at the start that no budget forbids: what happens in the first steps decides much, and never returns."""
DENSE = 20
"""At step t there is a sample every t/DENSE steps: each of the first DENSE steps, then ever fewer."""
PER_TIMESCALE = 100
"""Samples over the time in which a direction is forgotten: the finest change there is to see."""
LONGEST = 1000
"""Steps between samples at most, so that a live page stays alive."""


class Sampling(ABC):
    """Decides for each step whether it is measured, and learns what measuring costs."""

    timescale = float("nan")
    """Steps after which a direction is forgotten, as predicted at the latest sample; NaN: unknown."""

    @abstractmethod
    def due(self, step: int) -> bool:
        """Whether to measure this step; asked once for each, in order."""

    def spent(self, seconds: float) -> None:  # noqa: B027 - most need not know
        """Told after each sample how long it held training up."""


@final
class EveryNth(Sampling):
    """Steps 0, n, 2n, …"""

    def __init__(self, n: int) -> None:
        self.n = n

    def due(self, step: int) -> bool:
        """A multiple of n."""
        return step % self.n == 0


@final
class Scheduled(Sampling):
    """Whenever the user's own function of the step says so."""

    def __init__(self, schedule: Callable[[int], bool]) -> None:
        self.schedule = schedule

    def due(self, step: int) -> bool:
        """What the function says."""
        return bool(self.schedule(step))


@final
class Auto(Sampling):
    """Dense at the start, then spaced by the predicted timescale, as long as the time spent is within the budget.

    Without a clock – where processes must agree on what to measure – by the step and the timescale alone.
    """

    def __init__(self, budget: float = 0.01, clock: Callable[[], float] | None = perf_counter) -> None:
        self.budget, self.clock = budget, clock
        self._samples, self._seconds, self._last = 0, 0.0, -LONGEST
        self._start = clock() if clock is not None else 0.0

    def due(self, step: int) -> bool:
        """Far enough from the last sample, and affordable."""
        longest = self.timescale / PER_TIMESCALE if isfinite(self.timescale) else LONGEST
        gap = max(1.0, min(step / DENSE, longest, LONGEST))
        if step - self._last < gap or not self._affordable():
            return False
        self._samples, self._last = self._samples + 1, step
        return True

    def _affordable(self) -> bool:
        if self.clock is None or self._samples < FREE:
            return True
        return self._seconds <= self.budget * (self.clock() - self._start)

    def spent(self, seconds: float) -> None:
        """Add to the account."""
        self._seconds += seconds


def sampling(every: Every, budget: float, *, alone: bool = True) -> Sampling:
    """What `every` asks for; `alone` says that no other process has to take the same decisions."""
    if not 0 < budget < 1:
        raise ValueError(f"budget={budget!r} must lie between 0 and 1: the share of time to spend, for example 0.01")
    if every == "auto":
        return Auto(budget, perf_counter if alone else None)
    if callable(every):
        return Scheduled(every)
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        return EveryNth(every)
    raise ValueError(f"every={every!r} must be a whole number above 0, a function of the step, or 'auto'")
