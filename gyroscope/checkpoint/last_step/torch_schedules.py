"""torch's learning rate schedulers as functions of the step, from their saved state.

A scheduler is recognised by the names of its settings.
"""

from collections.abc import Callable, Mapping, Sequence
from math import cos, floor, pi
from typing import Any, NamedTuple

State = Mapping[str, Any]
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


def steps_done(state: State) -> int:
    """Return how often a scheduler was stepped. ChainedScheduler leaves the count to its parts."""
    if "last_epoch" not in state and state.get("_schedulers"):
        return steps_done(state["_schedulers"][0])
    epoch = state.get("last_epoch")
    return epoch if isinstance(epoch, int) else 0


def torch_schedule(number: int, state: State, group: State) -> Schedule:
    """Return the settings of a scheduler after t steps. Raise LookupError for a function or an unknown form.

    `number` is that of the group. OneCycleLR keeps its rates in the group's settings.
    """
    if "_milestones" in state:
        return lambda t: _sequential(t, number, state, group)
    if "_schedulers" in state:
        return _chained(number, steps_done(state), state["_schedulers"])
    if "_schedule_phases" in state:
        return lambda t: _one_cycle(t, state, group)
    base = float(state["base_lrs"][number])
    if "max_lrs" in state and "step_ratio" in state:
        return lambda t: _cyclic(t, number, base, state)
    if "T_0" in state and "T_mult" in state:
        return lambda t: Setting(_warm_restarts(t, base, state))
    factor, low = _decline(state)
    return lambda t: Setting(low + (base - low) * factor(t))


def _sequential(t: int, number: int, state: State, group: State) -> Setting:
    """Return the settings of the part of a SequentialLR that is active after t steps."""
    starts = [0, *state["_milestones"]]
    active = sum(start <= t for start in starts) - 1
    part = state["_schedulers"][active]
    try:
        return torch_schedule(number, part, group)(t - starts[active])
    except LookupError:
        # For a part of an unknown form, the last rate is known.
        if t + 1 != starts[active + 1]:
            raise
    return Setting(float(part["_last_lr"][number]))


def _chained(number: int, epoch: int, parts: Sequence[State]) -> Schedule:
    """Return ChainedScheduler's rates. Every part multiplies the distance of the rate from its own lowest rate.

    lr <- low + (lr - low)·f(t)/f(t-1)
    """
    declines = list(map(_decline, parts))
    if epoch > MAX_CHAINED_STEPS or any(part["last_epoch"] != epoch for part in parts):
        raise LookupError("these parts were stepped too often, or not together")
    base = float(parts[0]["base_lrs"][number])
    rates = []
    lr = base
    for t in range(epoch + 1):
        for factor, low in declines:
            earlier = factor(t - 1) if t > 0 else 1.0
            # A cosine restarts from its lowest rate. The others stay there.
            lr = low + (lr - low) * factor(t) / earlier if earlier else lr + (base - low) * factor(t)
        rates.append(lr)
    return lambda t: Setting(rates[t])


def _one_cycle(t: int, state: State, group: State) -> Setting:
    """Return OneCycleLR's setting: phases between two rates, named in the state, with values in the group."""
    phases = state["_schedule_phases"]
    ends = [phase["end_step"] for phase in phases[:-1]]
    active = sum(end < t for end in ends)
    phase = phases[active]
    start = [0.0, *ends][active]
    share = (t - start) / (phase["end_step"] - start)
    if state.get("_anneal_func_type", "cos") == "cos":
        share = (1 - cos(pi * share)) / 2

    def between(name: str) -> float:
        first = group[phase[f"start_{name}"]]
        return float(first + (group[phase[f"end_{name}"]] - first) * share)

    return Setting(between("lr"), between("momentum") if state.get("cycle_momentum") else None)


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
    lr = base + (state["max_lrs"][number] - base) * height
    if not state.get("cycle_momentum"):
        return Setting(lr)
    highest = state["max_momentums"][number]
    return Setting(lr, highest - (highest - state["base_momentums"][number]) * height)


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


def _decline(state: State) -> Decline:
    """Return the closed form of a scheduler that multiplies the rate. Raise LookupError for others."""
    match state:
        case {"T_max": length, "eta_min": low}:
            return Decline(lambda t: (1 + cos(pi * t / length)) / 2, float(low))
        case {"start_factor": first, "end_factor": last, "total_iters": end}:
            return Decline(lambda t: first + (last - first) * min(t, end) / end)
        case {"factor": factor, "total_iters": end}:
            return Decline(lambda t: factor if t < end else 1.0)
        case {"power": power, "total_iters": end}:
            return Decline(lambda t: (1 - min(t, end) / end) ** power)
        case {"step_size": size, "gamma": gamma}:
            return Decline(lambda t: gamma ** (t // size))
        case {"milestones": milestones, "gamma": gamma}:
            # MultiStepLR counts how often each milestone was given.
            return Decline(lambda t: gamma ** sum(count for start, count in milestones.items() if start <= t))
        case {"gamma": gamma}:
            return Decline(lambda t: gamma**t)
    raise LookupError("this scheduler has an unknown form")
