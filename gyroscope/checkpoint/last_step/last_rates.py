"""The learning rate of a checkpoint's last step: a scheduler has usually moved on to that of the next.

Where the file holds the schedule, it is followed one step back, if it agrees with the rate that was saved. Otherwise
the rate that was saved is used, and said to be so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import cos, isclose, pi
from typing import Any, final

from gyroscope.checkpoint.last_step.torch_schedules import AGREES, State, setting_before, steps_done


@final
@dataclass(frozen=True)
class Rate:
    """The learning rate of the last step, the least and the most that it can have been, and how it is known.

    `momentum` is that of the last step too, or Adam's first beta, if the schedule sets it.
    """

    value: float
    low: float
    high: float
    source: str
    certain: bool = True
    momentum: float | None = None

    @classmethod
    def known(cls, value: float, source: str, momentum: float | None = None) -> "Rate":
        """Return a rate about which there is no doubt."""
        return cls(value, value, value, source, momentum=momentum)

    def settings(self, group: State) -> dict[str, Any]:
        """Return the settings of a group in its last step."""
        settings = {**group, "lr": self.value}
        if self.momentum is not None and group.get("betas"):
            settings["betas"] = (self.momentum, *group["betas"][1:])
        elif self.momentum is not None:
            settings["momentum"] = self.momentum
        return settings


def last_rate(
    saved: float, number: int, step: int | None, schedulers: Sequence[State], extras: State, group: State
) -> Rate:
    """The rate of the last step of a group.

    Args:
        saved: the group's `lr` in the file.
        number: which of the groups it is.
        step: optimizer steps done, where the file says.
        schedulers: states of torch's schedulers in the file.
        extras: what else the file holds: nanoGPT's `config` and `iter_num`, the Trainer's `log_history`, our own
            `last_step_lr`.
        group: its other settings. torch's schedulers leave an `initial_lr`, and some of them more.
    """
    used = extras.get("last_step_lr")
    if isinstance(used, list) and number < len(used) and isinstance(used[number], float):
        return Rate.known(used[number], "written beside the step")
    for scheduler in schedulers:
        rate = _from_scheduler(saved, number, step, scheduler, group)
        if rate is not None:
            return rate
    rate = _from_nanogpt(saved, extras) or _from_log(saved, extras)
    if rate is not None:
        return rate
    if schedulers or "initial_lr" in group:
        return Rate(saved, saved, saved, "the saved rate, which a schedule has set for the next step", certain=False)
    return Rate(saved, saved, saved, "the saved rate; the file holds no schedule", certain=False)


def _from_scheduler(saved: float, number: int, step: int | None, state: State, group: State) -> Rate | None:
    try:
        before = setting_before(saved, number, state, group)
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
        return None  # a scheduler of another library, which uses torch's names for something else
    if before is None:
        return None
    lr, momentum = before
    if isclose(lr, saved, rel_tol=AGREES) or step == steps_done(state):
        return Rate.known(lr, "the scheduler, one step back", momentum)
    # A scheduler that is not stepped with the optimizer may have been stepped before the checkpoint, or not.
    source = "the scheduler, between this step and one back"
    return Rate(lr, min(lr, saved), max(lr, saved), source, certain=False, momentum=momentum)


def _from_nanogpt(saved: float, extras: State) -> Rate | None:
    """nanoGPT sets the rate of iteration n before it saves the checkpoint of n: the last step had that of n - 1."""
    config = extras.get("config")
    n = extras.get("iter_num")
    needed = ("learning_rate", "decay_lr", "warmup_iters", "lr_decay_iters", "min_lr")
    if not isinstance(config, Mapping) or not isinstance(n, int) or n < 1 or any(name not in config for name in needed):
        return None
    if not config["decay_lr"]:
        return Rate.known(saved, "nanoGPT's settings: constant")
    # Its warmup was t/W at first and is (t+1)/(W+1) now; the saved rate says which.
    for shift in (1, 0):
        if isclose(_nanogpt_rate(config, n, shift), saved, rel_tol=AGREES):
            return Rate.known(_nanogpt_rate(config, n - 1, shift), "nanoGPT's schedule, one step back")
    return None


def _nanogpt_rate(config: State, t: int, shift: int) -> float:
    peak = float(config["learning_rate"])
    warmup = float(config["warmup_iters"])
    end = float(config["lr_decay_iters"])
    least = float(config["min_lr"])
    if t < warmup:
        return peak * (t + shift) / (warmup + shift)
    if t > end:
        return least
    return least + (peak - least) * (1 + cos(pi * (t - warmup) / max(end - warmup, 1))) / 2


def _from_log(saved: float, extras: State) -> Rate | None:
    """Of the Trainer, whose schedule is a function and not saved: from the slope of the rates that it logged."""
    history = extras.get("log_history")
    now = extras.get("global_step")
    if not isinstance(history, Sequence) or not isinstance(now, int):
        return None
    rows = [row for row in history if isinstance(row, Mapping) and "learning_rate" in row and "step" in row]
    logged = {int(row["step"]): float(row["learning_rate"]) for row in rows}
    # Some versions log the rate of the step that was taken, others that of the next.
    if now in logged and not isclose(logged[now], saved, rel_tol=AGREES):
        return Rate.known(logged[now], "the Trainer's log of this step")
    if now in logged and now - 1 in logged:
        return Rate.known(logged[now - 1], "the Trainer's log of the step before, which has the rate of the next")
    steps = sorted(logged)[-2:]
    if len(steps) < 2:
        return None
    slope = (logged[steps[1]] - logged[steps[0]]) / (steps[1] - steps[0])
    before = saved - slope
    if before <= 0:
        return None
    return Rate(before, min(before, saved), max(before, saved), "the slope of the rates that the Trainer logged")
