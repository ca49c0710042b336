"""The learning rate of a checkpoint's last step: a scheduler has usually moved on to that of the next.

Where the file holds the schedule, it is followed one step back, if it agrees with the rate that was saved. Otherwise
the rate that was saved is used, and said to be so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import cos, isclose, pi
from typing import Any, final

State = Mapping[str, Any]

# A schedule that was computed step by step, as torch does it, drifts from its closed form by rounding.
AGREES = 1e-5


@final
@dataclass(frozen=True)
class Rate:
    """The learning rate of the last step, the least and the most that it can have been, and how it is known."""

    value: float
    low: float
    high: float
    source: str
    certain: bool = True

    @classmethod
    def known(cls, value: float, source: str) -> "Rate":
        """A rate about which there is no doubt."""
        return cls(value, value, value, source)


def last_rate(
    saved: float, number: int, step: int | None, schedulers: Sequence[State], extras: State, scheduled: bool
) -> Rate:
    """The rate of the last step of a group.

    Args:
        saved: the group's `lr` in the file.
        number: which of the groups it is.
        step: optimizer steps done, where the file says.
        schedulers: states of torch's schedulers in the file.
        extras: what else the file holds: nanoGPT's `config` and `iter_num`, the Trainer's `log_history`, our own
            `last_step_lr`.
        scheduled: whether the group has an `initial_lr`, as torch's schedulers leave it.
    """
    used = extras.get("last_step_lr")
    if isinstance(used, list) and number < len(used) and isinstance(used[number], float):
        return Rate.known(used[number], "written beside the step")
    for scheduler in schedulers:
        rate = _from_scheduler(saved, number, step, scheduler)
        if rate is not None:
            return rate
    rate = _from_nanogpt(saved, extras) or _from_log(saved, extras)
    if rate is not None:
        return rate
    if schedulers or scheduled:
        return Rate(saved, saved, saved, "the saved rate, which a schedule has set for the next step", certain=False)
    return Rate(saved, saved, saved, "the saved rate; the file holds no schedule", certain=False)


def _from_scheduler(saved: float, number: int, step: int | None, state: State) -> Rate | None:
    try:
        before = _one_back(saved, number, state)
    except (ArithmeticError, KeyError, TypeError, ValueError):  # of another library, which means others by these names
        return None
    if before is None:
        return None
    epoch = int(state["last_epoch"])
    if isclose(before, saved, rel_tol=AGREES) or step == epoch:
        return Rate.known(before, "the scheduler, one step back")
    # A scheduler that is not stepped with the optimizer may have been stepped before the checkpoint, or not.
    return Rate(before, min(before, saved), max(before, saved), "the scheduler, between this step and one back", False)


def _one_back(saved: float, number: int, state: State) -> float | None:
    """The rate that the scheduler had before its last step; None where its form is unknown or disagrees."""
    epoch = state.get("last_epoch")
    if not isinstance(epoch, int) or epoch < 1:
        return None
    if "_schedulers" in state and "_milestones" in state:
        return _sequential(saved, number, epoch, state)
    bases = state.get("base_lrs")
    if not isinstance(bases, Sequence) or number >= len(bases):
        return None
    form = _closed_form(state)
    if form is None or not isclose(form(float(bases[number]), epoch), saved, rel_tol=AGREES, abs_tol=1e-12):
        return None
    return form(float(bases[number]), epoch - 1)


def _sequential(saved: float, number: int, epoch: int, state: State) -> float | None:
    """SequentialLR: the part that is active, or the end of the one before it."""
    active = sum(milestone <= epoch for milestone in state["_milestones"])
    part = state["_schedulers"][active]
    if part.get("last_epoch", 0) < 1 and active > 0:
        last = state["_schedulers"][active - 1].get("_last_lr")
        return float(last[number]) if isinstance(last, Sequence) and number < len(last) else None
    return _one_back(saved, number, part)


def _closed_form(state: State) -> Callable[[float, int], float] | None:
    """Rate after so many steps of torch's schedulers, known by the names of their settings; None for others."""
    if "T_max" in state and "eta_min" in state:
        low = float(state["eta_min"])
        return lambda base, t: low + (base - low) * (1 + cos(pi * t / state["T_max"])) / 2
    if "start_factor" in state and "end_factor" in state:
        first = state["start_factor"]
        last = state["end_factor"]
        return lambda base, t: base * (first + (last - first) * min(t, state["total_iters"]) / state["total_iters"])
    if "factor" in state and "total_iters" in state:
        return lambda base, t: base * (state["factor"] if t < state["total_iters"] else 1.0)
    if "power" in state and "total_iters" in state:
        return lambda base, t: base * (1 - min(t, state["total_iters"]) / state["total_iters"]) ** state["power"]
    if "step_size" in state and "gamma" in state:
        return lambda base, t: base * state["gamma"] ** (t // state["step_size"])
    if "milestones" in state and "gamma" in state:
        times = Counts(state["milestones"])
        return lambda base, t: base * state["gamma"] ** times.passed(t)
    if "gamma" in state:
        return lambda base, t: base * state["gamma"] ** t
    return None


@final
@dataclass(frozen=True)
class Counts:
    """Milestones as MultiStepLR keeps them: how often each counts."""

    milestones: Mapping[int, int]

    def passed(self, t: int) -> int:
        """How many milestones lie at or before t."""
        return sum(count for milestone, count in self.milestones.items() if milestone <= t)


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
    steps = sorted(logged)[-2:]
    if len(steps) < 2:
        return None
    slope = (logged[steps[1]] - logged[steps[0]]) / (steps[1] - steps[0])
    before = saved - slope
    if before <= 0:
        return None
    return Rate(before, min(before, saved), max(before, saved), "the slope of the rates that the Trainer logged")
