"""torch's learning rate schedulers as functions of the step, from what a file has of their state.

A scheduler is recognised by the names of its settings.
"""

from collections.abc import Callable, Mapping, Sequence
from math import cos, floor, isclose, pi
from typing import Any, NamedTuple

State = Mapping[str, Any]
# torch computes schedules step by step, and rounding makes them drift from their closed form.
AGREES = 1e-5
# Steps of a ChainedScheduler that are computed one by one: about two seconds.
MAX_CHAINED_STEPS = 1_000_000


class Setting(NamedTuple):
    """A learning rate, and the momentum or first beta if the schedule sets it."""

    lr: float
    momentum: float | None = None


class Decline(NamedTuple):
    """A rate of low + (base - low)·factor(t) after t steps."""

    factor: Callable[[int], float]
    low: float = 0.0


Schedule = Callable[[int], Setting]


def steps_done(state: State) -> int | None:
    """Return how often a scheduler was stepped. ChainedScheduler leaves the count to its parts."""
    if "last_epoch" not in state and state.get("_schedulers"):
        return steps_done(state["_schedulers"][0])
    epoch = state.get("last_epoch")
    return epoch if isinstance(epoch, int) else None


def confirmed_schedule(saved: float, number: int, state: State, group: State) -> Schedule | None:
    """Return what a scheduler sets after t steps. None if its form is unknown or disagrees with the saved rate.

    Args:
        saved: the rate in the file, which is that of the next step.
        number: of the group.
        state: of the scheduler.
        group: settings of the group, in which OneCycleLR keeps its rates.
    """
    epoch = steps_done(state)
    if epoch is None or epoch < 1:
        return None
    schedule = _schedule(number, state, group)
    agrees = schedule is not None and isclose(schedule(epoch).lr, saved, rel_tol=AGREES, abs_tol=1e-12)
    return schedule if agrees else None


def _schedule(number: int, state: State, group: State) -> Schedule | None:
    """Return what a scheduler sets after t steps. None if it is a function, or of an unknown form."""
    if "_milestones" in state:
        return lambda t: _sequential(t, number, state, group)
    if "_schedulers" in state:
        return _chained(number, steps_done(state) or 0, state["_schedulers"])
    if "_schedule_phases" in state:
        return lambda t: _one_cycle(t, state, group)
    base = float(state["base_lrs"][number])
    if "max_lrs" in state and "step_ratio" in state:
        return lambda t: _cyclic(t, number, base, state)
    if "T_0" in state and "T_mult" in state:
        return lambda t: Setting(_warm_restarts(t, base, state))
    decline = _decline(state)
    return None if decline is None else lambda t: Setting(decline.low + (base - decline.low) * decline.factor(t))


def _sequential(t: int, number: int, state: State, group: State) -> Setting:
    """Return what the part of a SequentialLR that is active after t steps sets."""
    starts = [0, *state["_milestones"]]
    active = sum(start <= t for start in starts) - 1
    part = state["_schedulers"][active]
    schedule = _schedule(number, part, group)
    if schedule is not None:
        return schedule(t - starts[active])
    # A part of an unknown form still has its last rate.
    if t + 1 != starts[active + 1]:
        raise LookupError("this part is of an unknown form")
    return Setting(float(part["_last_lr"][number]))


def _chained(number: int, epoch: int, parts: Sequence[State]) -> Schedule | None:
    """Return ChainedScheduler's rates: every part multiplies the distance of the rate from its own lowest.

    lr <- low + (lr - low)·f(t)/f(t-1)
    """
    declines = [decline for part in parts if (decline := _decline(part)) is not None]
    is_known = len(declines) == len(parts) and all(part["last_epoch"] == epoch for part in parts)
    if not is_known or epoch > MAX_CHAINED_STEPS:
        return None
    base = float(parts[0]["base_lrs"][number])
    rates = []
    lr = base
    for t in range(epoch + 1):
        for factor, low in declines:
            earlier = factor(t - 1) if t > 0 else 1.0
            # A cosine begins anew from its lowest. The others stay there.
            lr = low + (lr - low) * factor(t) / earlier if earlier else lr + (base - low) * factor(t)
        rates.append(lr)
    return lambda t: Setting(rates[t])


def _one_cycle(t: int, state: State, group: State) -> Setting:
    """Return OneCycleLR's setting: phases between two rates, named in the state, with values in the group."""
    start = 0.0
    phases = state["_schedule_phases"]
    phase = phases[-1]
    for each in phases[:-1]:
        if t <= each["end_step"]:
            phase = each
            break
        start = each["end_step"]
    share = (t - start) / (phase["end_step"] - start)
    if state.get("_anneal_func_type", "cos") == "cos":
        share = (1 - cos(pi * share)) / 2

    def between(first: str, last: str) -> float:
        return float(group[phase[first]] + (group[phase[last]] - group[phase[first]]) * share)

    momentum = between("start_momentum", "end_momentum") if state.get("cycle_momentum") else None
    return Setting(between("start_lr", "end_lr"), momentum)


def _cyclic(t: int, number: int, base: float, state: State) -> Setting:
    """Return CyclicLR's setting: up to the highest rate and down again, by less in every cycle or step."""
    cycle = floor(1 + t / state["total_size"])
    x = 1 + t / state["total_size"] - cycle
    ratio = state["step_ratio"]
    height = x / ratio if x <= ratio else (x - 1) / (ratio - 1)
    if state["mode"] == "triangular2":
        height /= 2.0 ** (cycle - 1)
    elif state["mode"] == "exp_range":
        height *= state["gamma"] ** t
    momentum = None
    if state.get("cycle_momentum"):
        highest = state["max_momentums"][number]
        momentum = highest - (highest - state["base_momentums"][number]) * height
    return Setting(base + (state["max_lrs"][number] - base) * height, momentum)


def _warm_restarts(t: int, base: float, state: State) -> float:
    """Return CosineAnnealingWarmRestarts' rate: half cosines, each T_mult times as long as the one before."""
    low = float(state["eta_min"])
    length = int(state["T_0"])
    if state["T_mult"] == 1:
        t %= length
    while t >= length > 0 and state["T_mult"] > 1:
        t -= length
        length *= int(state["T_mult"])
    return low + (base - low) * (1 + cos(pi * t / length)) / 2


def _decline(state: State) -> Decline | None:
    """Return the closed form of a scheduler that multiplies the rate, or None for others."""
    if "T_max" in state and "eta_min" in state:
        return Decline(lambda t: (1 + cos(pi * t / state["T_max"])) / 2, float(state["eta_min"]))
    if "start_factor" in state and "end_factor" in state:
        first = state["start_factor"]
        last = state["end_factor"]
        return Decline(lambda t: first + (last - first) * min(t, state["total_iters"]) / state["total_iters"])
    if "factor" in state and "total_iters" in state:
        return Decline(lambda t: state["factor"] if t < state["total_iters"] else 1.0)
    if "power" in state and "total_iters" in state:
        return Decline(lambda t: (1 - min(t, state["total_iters"]) / state["total_iters"]) ** state["power"])
    if "step_size" in state and "gamma" in state:
        return Decline(lambda t: state["gamma"] ** (t // state["step_size"]))
    if "milestones" in state and "gamma" in state:
        # MultiStepLR counts how often each milestone was given.
        milestones = state["milestones"].items()
        return Decline(lambda t: state["gamma"] ** sum(count for milestone, count in milestones if milestone <= t))
    return Decline(lambda t: state["gamma"] ** t) if "gamma" in state else None
