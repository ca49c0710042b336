"""The learning rates of a checkpoint's run: that of its last step, the peak and the mean.

A scheduler has usually set the rate of the next step before a checkpoint is saved. If the file contains the schedule,
and the schedule agrees with the saved rate, it is followed one step back. Otherwise the saved rate is used, and a note
says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import cos, isclose, isfinite, pi
from typing import Any, final

import numpy as np

from gyroscope.checkpoint.last_step.torch_schedules import AGREES, State, confirmed_schedule, steps_done

# What a scheduler of another library, which uses torch's names for something else, makes these functions raise.
NOT_TORCHS = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
# Steps of a schedule whose mean is that of all steps within 0.1 %.
SCHEDULE_SAMPLES = 2000


@final
@dataclass(frozen=True)
class Rate:
    """The learning rate of the last step, the least and the most that it can have been, and its source.

    `momentum` is that of the last step, or Adam's first beta, if the schedule sets it.
    """

    value: float
    low: float
    high: float
    source: str
    certain: bool = True
    momentum: float | None = None

    @classmethod
    def known(cls, value: float, source: str, momentum: float | None = None) -> "Rate":
        """Return a rate without doubt."""
        return cls(value, value, value, source, momentum=momentum)

    def settings(self, group: State) -> dict[str, Any]:
        """Return the settings of a group in its last step."""
        settings = {**group, "lr": self.value}
        if self.momentum is not None and group.get("betas"):
            settings["betas"] = (self.momentum, *group["betas"][1:])
        elif self.momentum is not None:
            settings["momentum"] = self.momentum
        return settings


@final
@dataclass(frozen=True)
class RunRates:
    """The peak and the mean of the learning rate over the run, and whether the mean is known or assumed."""

    peak: float
    mean: float
    certain: bool = True


@final
@dataclass(frozen=True)
class SavedRate:
    """What a file says of the learning rate of one group.

    saved       the group's `lr` in the file
    number      index of the group
    step        optimizer steps done, if the file says
    schedulers  states of torch's schedulers in the file
    extras      nanoGPT's `config` and `iter_num`, the Trainer's `log_history`, our own `last_step_lr`
    group       its other settings. torch's schedulers leave an `initial_lr`, and some of them more
    """

    saved: float
    number: int
    step: int | None
    schedulers: Sequence[State]
    extras: State
    group: State

    def last(self) -> Rate:
        """Return the rate of the last step."""
        used = self.extras.get("last_step_lr")
        if isinstance(used, list) and self.number < len(used) and isinstance(used[self.number], float):
            return Rate.known(used[self.number], "written beside the step")
        for scheduler in self.schedulers:
            rate = self._from_scheduler(scheduler)
            if rate is not None:
                return rate
        rate = self._from_nanogpt() or self._from_log()
        if rate is not None:
            return rate
        source = "the saved rate; the file holds no schedule"
        if self.schedulers or "initial_lr" in self.group:
            source = "the saved rate, which a schedule has set for the next step"
        return Rate(self.saved, self.saved, self.saved, source, certain=False)

    def over_run(self, last: float) -> RunRates:
        """Return peak and mean over the run, given the rate of the last step.

        `initial_lr` is the peak of most schedules. OneCycleLR and CyclicLR begin lower. If the form of the schedule is
        unknown, the mean is that of a line or of a cosine.
        """
        start = self.group.get("initial_lr")
        start = float(start) if isinstance(start, int | float) and isfinite(start) and start > 0 else None
        rates = self._sampled_rates()
        if rates is not None:
            return RunRates(max(*rates, start or 0.0), float(np.mean(rates)))
        if start is None:
            return RunRates(last, last)
        peak = max(start, last)
        return RunRates(peak, (peak + last) / 2, certain=False)

    def _sampled_rates(self) -> list[float] | None:
        """Return the rates of steps that are evenly spread over the run, or None if they are unknown."""
        for scheduler in self.schedulers:
            try:
                schedule = self._schedule(scheduler)
                if schedule is not None:
                    return [schedule(t).lr for t in _spread(steps_done(scheduler) or 0)]
            except NOT_TORCHS:
                continue
        nanogpt = self._nanogpt()
        if nanogpt is not None:
            return [nanogpt(t) for t in _spread(self.extras["iter_num"])]
        logged = self._logged()
        if len(logged) < 2:
            return None
        steps = _spread(self.extras["global_step"])
        return [float(rate) for rate in np.interp(steps, list(logged), list(logged.values()))]

    def _schedule(self, state: State) -> Callable[[int], Any] | None:
        return confirmed_schedule(self.saved, self.number, state, self.group)

    def _from_scheduler(self, state: State) -> Rate | None:
        try:
            schedule = self._schedule(state)
            epoch = steps_done(state)
            if schedule is None or epoch is None:
                return None
            lr, momentum = schedule(epoch - 1)
        except NOT_TORCHS:
            return None
        if isclose(lr, self.saved, rel_tol=AGREES) or self.step == epoch:
            return Rate.known(lr, "the scheduler, one step back", momentum)
        # A scheduler that is not stepped with the optimizer may have been stepped before the checkpoint, or not.
        source = "the scheduler, between this step and one back"
        return Rate(lr, min(lr, self.saved), max(lr, self.saved), source, certain=False, momentum=momentum)

    def _from_nanogpt(self) -> Rate | None:
        """Return nanoGPT's rate. It sets that of iteration n before it saves, so the last step had that of n - 1."""
        schedule = self._nanogpt()
        if schedule is None:
            return None
        return Rate.known(schedule(self.extras["iter_num"] - 1), "nanoGPT's schedule, one step back")

    def _nanogpt(self) -> Callable[[int], float] | None:
        """Return nanoGPT's schedule, or None if the file is not nanoGPT's."""
        config = self.extras.get("config")
        n = self.extras.get("iter_num")
        needed = ("learning_rate", "decay_lr", "warmup_iters", "lr_decay_iters", "min_lr")
        if not isinstance(config, Mapping) or not isinstance(n, int) or n < 1 or not set(needed) <= set(config):
            return None
        if not config["decay_lr"]:
            return lambda t: self.saved
        # Its warmup was t/W at first and is (t+1)/(W+1) now. The saved rate decides which.
        schedules = [partial(_nanogpt_rate, config, shift) for shift in (1, 0)]
        return next((each for each in schedules if isclose(each(n), self.saved, rel_tol=AGREES)), None)

    def _logged(self) -> dict[int, float]:
        """Return the rates that the Trainer logged, by step."""
        history = self.extras.get("log_history")
        if not isinstance(history, Sequence) or not isinstance(self.extras.get("global_step"), int):
            return {}
        rows = [row for row in history if isinstance(row, Mapping) and "learning_rate" in row and "step" in row]
        return dict(sorted((int(row["step"]), float(row["learning_rate"])) for row in rows))

    def _from_log(self) -> Rate | None:
        """Return the Trainer's rate, whose schedule is a function and not saved, from the rates that it logged."""
        logged = self._logged()
        now = self.extras.get("global_step", 0)
        # Some versions log the rate of the step that was taken, others that of the next.
        if now in logged and not isclose(logged[now], self.saved, rel_tol=AGREES):
            return Rate.known(logged[now], "the Trainer's log of this step")
        if now in logged and now - 1 in logged:
            return Rate.known(logged[now - 1], "the Trainer's log of the step before, which has the rate of the next")
        if len(logged) < 2:
            return None
        (first, earlier), (second, later) = list(logged.items())[-2:]
        before = self.saved - (later - earlier) / (second - first)
        if before <= 0:
            return None
        low, high = sorted((before, self.saved))
        return Rate(before, low, high, "the slope of the rates that the Trainer logged")


def _spread(steps: int) -> list[int]:
    """Return at most SCHEDULE_SAMPLES steps that are evenly spread over so many."""
    count = max(1, min(steps, SCHEDULE_SAMPLES))
    return [steps * i // count for i in range(count)]


def _nanogpt_rate(config: State, shift: int, t: int) -> float:
    peak = float(config["learning_rate"])
    warmup = float(config["warmup_iters"])
    end = float(config["lr_decay_iters"])
    least = float(config["min_lr"])
    if t < warmup:
        return peak * (t + shift) / (warmup + shift)
    if t > end:
        return least
    return least + (peak - least) * (1 + cos(pi * (t - warmup) / max(end - warmup, 1))) / 2
