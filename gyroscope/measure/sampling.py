"""The steps that are measured: at an interval, which by default keeps a budget of time, or by a schedule."""

from collections.abc import Callable
from math import ceil, log2
from time import perf_counter
from typing import final

Every = int | Callable[[int], bool]
Clock = Callable[[], float]

# The first steps, all measured unless `every` is given, because a short run has few others.
DENSE = 20
# Seconds of measuring before the budget of the default interval counts. Nobody notices them, and a slow first sample
# does not make all later ones rarer.
FREE_SECONDS = 0.1
# Samples over which the default interval compares its cost with the budget.
WINDOW = 10
# Samples in a row without overload after which twice as many are tried again.
RECOVERY = 100


@final
class DefaultInterval(int):
    """The number of steps between samples by default. Unlike a given number, it grows to keep the budget."""


class Sampling:
    """Decides for each step whether it is measured, by `schedule`, a function of the step.

    While samples come faster than they can be processed, every second one is taken, then every fourth and so on, so
    that the samples stay evenly spaced. After some time without overload, twice as many are taken again.
    """

    alone = True
    """Whether this process decides alone."""
    chooses_steps = False
    """Whether the steps are the tracker's own choice, and not the user's."""

    def __init__(self, schedule: Callable[[int], bool]) -> None:
        self.schedule = schedule
        self.stride = 1
        self.left_out = (0, 0, 0)
        """Number of samples that were left out, the first of them and the last."""
        self._wanted = 0
        self._taken = 0

    def due(self, step: int) -> bool:
        """Return whether to measure this step. It is called once for each step, in order."""
        if not self.schedule(step):
            return False
        self._wanted += 1
        if self.stride > 1 and (self._wanted - 1) % self.stride:
            self._leave_out(step)
            return False
        return True

    def record_cost(self, step: int, seconds: float, *, refused: bool = False) -> str | None:
        """Record the training time that a sample took, and whether it was refused because too many others were waiting.

        Return a sentence for the run if samples become rarer because of their cost.
        """
        self._taken += 1
        if refused:
            self._leave_out(step)
            self._taken = 0
            if self.alone:  # other processes would not notice it
                self.stride *= 2
                self._wanted = 1  # this one counts as the first of the wider spacing
        elif self.stride > 1 and self._taken >= RECOVERY:
            self.stride //= 2
            self._taken = 0
        return self.adapt_interval(step, seconds)

    def adapt_interval(self, step: int, seconds: float) -> str | None:
        """Count the time that a sample took, and return a sentence if this makes samples rarer."""
        return None

    def summary(self) -> str | None:
        """Return how many samples were left out, and when, or None if none was."""
        count, first, last = self.left_out
        if not count:
            return None
        return (
            f"{'1 sample was' if count == 1 else f'{count} samples were'} left out between step {first} and step "
            f"{last} because they came faster than they could be processed. Measure fewer steps (every=…) or vectors "
            "(rows=…)."
        )

    def _leave_out(self, step: int) -> None:
        count, first, _ = self.left_out
        self.left_out = (count + 1, first if count else step, step)


@final
class EveryNth(Sampling):
    """Each of the first `dense` steps, then steps that are multiples of n.

    With a clock, n is multiplied by the power of two that keeps measuring within `budget`, a share of the time.
    The dense start is not counted, because it is over before its cost can be noticed.
    """

    def __init__(self, n: int, budget: float = 1.0, clock: Clock | None = None, dense: int = 0) -> None:
        super().__init__(lambda step: step < self.dense or step % self.n == 0)
        self.n = n
        self.budget = budget
        self.clock = clock
        self.dense = dense
        self.chooses_steps = dense > 0
        self._allowed = FREE_SECONDS
        self._open_account(0.0 if clock is None else clock())

    def _open_account(self, now: float) -> None:
        self._start = now
        self._seconds = 0.0
        self._samples = 0

    def adapt_interval(self, step: int, seconds: float) -> str | None:
        """Sample more rarely if measuring takes more than its budget."""
        if self.clock is None:
            return None
        now = self.clock()
        if step < self.dense:
            self._start = now
            return None
        self._seconds += seconds
        self._samples += 1
        share = self._seconds / max(now - self._start, 1e-9)
        if self._samples < WINDOW or self._seconds <= self._allowed or share <= self.budget:
            return None
        before = self.n
        # In one move, because each smaller one would cost another window of too many samples.
        self.n *= 2 ** max(1, ceil(log2(share / self.budget)))
        # The account starts again without an allowance. From here on only the cost of the wider spacing counts.
        self._allowed = 0.0
        self._open_account(now)
        return (
            f"Measuring every {before} steps took {100 * share:.2g} % of the time, more than budget={self.budget:g}: "
            f"from step {step} on it is every {self.n} steps. Pass every={before} to keep it."
        )


def sampling(every: Every, budget: float, *, alone: bool = True) -> Sampling:
    """Return the sampling for `every`. Unless `alone`, it ignores time, because processes would disagree about it."""
    if not 0 < budget < 1:
        raise ValueError(f"budget={budget!r} must lie between 0 and 1: the share of time to spend, for example 0.01")
    clock = perf_counter if alone else None
    chosen: Sampling
    if callable(every):
        chosen = Sampling(every)
    elif isinstance(every, DefaultInterval):
        chosen = EveryNth(int(every), budget, clock, dense=DENSE)
    elif isinstance(every, int) and not isinstance(every, bool) and every > 0:
        chosen = EveryNth(every)
    else:
        raise ValueError(f"every={every!r} must be a whole number above 0 or a function of the step")
    chosen.alone = alone
    return chosen
