"""The learning rates of a checkpoint's run: that of its last step, the peak and the mean.

Before a checkpoint is saved, a scheduler has usually set the rate of the next step. If the file contains the schedule
and it agrees with the saved rate, the rate one step earlier is used. Otherwise the saved rate is used, with a note.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import cos, isclose, isfinite, pi
from typing import Any, NamedTuple, final

import numpy as np

from gyroscope.checkpoint.last_step.torch_schedules import Schedule, Setting, State, torch_schedule

# torch computes schedules step by step, and rounding makes them drift from their closed form.
AGREES = 1e-5
# Errors that these functions raise for a scheduler of another library that uses torch's names differently.
NOT_TORCHS = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
# Number of sampled steps of a schedule. Their mean is within 0.1 % of that of all steps.
SCHEDULE_SAMPLES = 2000
NANOGPT_SETTINGS = {"learning_rate", "decay_lr", "warmup_iters", "lr_decay_iters", "min_lr"}


class ConfirmedSchedule(NamedTuple):
    """A schedule in the file that agrees with the saved rate, and the steps done."""

    schedule: Schedule
    steps: int
    is_torchs: bool = True


class Last(NamedTuple):
    """The rate and the momentum of the last step, as `Rates` has them."""

    value: float
    momentum: float | None = None
    doubt: str = ""
    others: tuple[float, ...] = ()


@final
@dataclass(frozen=True)
class Rates:
    """The learning rates of a group: that of the last step, and over the run."""

    last: float  # of the last step
    peak: float
    mean: float
    mean_known: bool = True  # or assumed
    momentum: float | None = None  # of the last step, or Adam's first beta, if the schedule sets it
    doubt: str = ""  # what was assumed of the last rate, empty if it is certain
    others: tuple[float, ...] = ()  # rates that the last step may have had instead

    def settings(self, group: State) -> dict[str, Any]:
        """Return the settings of a group in its last step."""
        settings = {**group, "lr": self.last}
        if self.momentum is not None and group.get("betas"):
            settings["betas"] = (self.momentum, *group["betas"][1:])
        elif self.momentum is not None:
            settings["momentum"] = self.momentum
        return settings


@final
@dataclass(frozen=True)
class SavedRate:
    """The learning rate of one group in a file."""

    saved: float  # the group's `lr` in the file
    number: int  # index of the group
    step: int | None  # optimizer steps done, if the file contains them
    schedulers: Sequence[State]  # states of torch's schedulers in the file
    extras: State  # nanoGPT's `config` and `iter_num`, the Trainer's `log_history`, our own `last_step_lr`
    group: State  # its other settings. torch's schedulers leave an `initial_lr`, and some of them more

    def rates(self, given: float | None = None) -> Rates:
        """Return the rates, with that of the last step if it is given.

        `initial_lr` is the peak of most schedules. OneCycleLR begins lower. If the form of the schedule is
        unknown, the mean is that of a linear or cosine schedule.
        """
        last = self._last() if given is None else Last(given)
        start = self.group.get("initial_lr")
        start = float(start) if isinstance(start, int | float) and isfinite(start) and start > 0 else 0.0
        sampled = self._sampled_rates()
        peak = max(*sampled, start) if sampled else max(start, last.value)
        mean = float(np.mean(sampled)) if sampled else (peak + last.value) / 2
        return Rates(last.value, peak, mean, bool(sampled) or not start, *last[1:])

    def _last(self) -> Last:
        used = self.extras.get("last_step_lr")
        if isinstance(used, list) and self.number < len(used) and isinstance(used[self.number], float):
            return Last(used[self.number])
        if self._course is not None:
            return self._one_step_back(self._course)
        doubt = "the saved rate, because the file has no schedule"
        if self.schedulers or "initial_lr" in self.group:
            doubt = "the saved rate, which a schedule set for the next step"
        return self._from_log() or Last(self.saved, doubt=doubt)

    def _sampled_rates(self) -> list[float]:
        """Return the rates of steps evenly spaced over the run, or none if they are unknown."""
        if self._course is not None:
            # A part of a SequentialLR may have an unknown form.
            with suppress(*NOT_TORCHS):
                return [self._course.schedule(t).lr for t in _spread(self._course.steps)]
        logged = self._logged()
        steps = _spread(self.extras["global_step"]) if len(logged) > 1 else []
        return list(map(float, np.interp(steps, list(logged), list(logged.values())))) if steps else []

    @cached_property
    def _course(self) -> ConfirmedSchedule | None:
        """The first schedule of the file that agrees with the saved rate."""
        for state in self.schedulers:
            with suppress(*NOT_TORCHS):
                course = ConfirmedSchedule(torch_schedule(self.number, state, self.group), state["last_epoch"])
                if self._agrees(course):
                    return course
        config = self.extras.get("config")
        steps = self.extras.get("iter_num")
        if not isinstance(config, Mapping) or not isinstance(steps, int) or not set(config) >= NANOGPT_SETTINGS:
            return None
        course = ConfirmedSchedule(self._nanogpt(config), steps, is_torchs=False)
        return course if self._agrees(course) else None

    def _agrees(self, course: ConfirmedSchedule) -> bool:
        """Return whether the schedule sets the saved rate for the next step, and has one for the last."""
        if course.steps < 1 or not isfinite(course.schedule(course.steps - 1).lr):
            return False
        return isclose(course.schedule(course.steps).lr, self.saved, rel_tol=AGREES, abs_tol=1e-12)

    def _nanogpt(self, config: State) -> Schedule:
        """Return nanoGPT's schedule. It sets the rate of iteration n before it saves, so the last step was n - 1."""
        peak, warmup, end, least = (
            float(config[name]) for name in ("learning_rate", "warmup_iters", "lr_decay_iters", "min_lr")
        )

        def schedule(t: int) -> Setting:
            if not config["decay_lr"]:
                return Setting(self.saved)
            if t < warmup:
                return Setting(peak * (t + 1) / (warmup + 1))
            share = min((t - warmup) / max(end - warmup, 1), 1.0)
            return Setting(least + (peak - least) * (1 + cos(pi * share)) / 2)

        return schedule

    def _one_step_back(self, course: ConfirmedSchedule) -> Last:
        lr, momentum = course.schedule(course.steps - 1)
        if not course.is_torchs or isclose(lr, self.saved, rel_tol=AGREES) or self.step == course.steps:
            return Last(lr, momentum)
        # A scheduler that is not stepped with the optimizer may or may not have been stepped before the checkpoint.
        return Last(lr, momentum, "the scheduler, at this step or one before", (self.saved,))

    def _logged(self) -> dict[int, float]:
        """Return the rates that the Trainer logged, by step."""
        history = self.extras.get("log_history")
        if not isinstance(history, Sequence) or not isinstance(self.extras.get("global_step"), int):
            return {}
        rows = [row for row in history if isinstance(row, Mapping) and "learning_rate" in row and "step" in row]
        return dict(sorted((int(row["step"]), float(row["learning_rate"])) for row in rows))

    def _from_log(self) -> Last | None:
        """Return the Trainer's rate, whose schedule is a function and not saved, from the log or by its slope."""
        logged = self._logged()
        now = self.extras.get("global_step", 0)
        # Some versions log the rate of the step that was taken, others that of the next.
        if now in logged and not isclose(logged[now], self.saved, rel_tol=AGREES):
            return Last(logged[now])
        if now in logged and now - 1 in logged:
            return Last(logged[now - 1])
        if len(logged) < 2:
            return None
        (first, earlier), (second, later) = list(logged.items())[-2:]
        before = self.saved - (later - earlier) / (second - first)
        return Last(before) if before > 0 else None


def _spread(steps: int) -> list[int]:
    """Return at most SCHEDULE_SAMPLES evenly spaced steps of a run."""
    count = max(1, min(steps, SCHEDULE_SAMPLES))
    return [steps * i // count for i in range(count)]
