"""torch's learning rate schedulers as functions of the step, from their saved state.

A scheduler is recognised by the names of its settings.
"""

from collections.abc import Callable, Mapping
from math import cos, pi
from typing import Any, NamedTuple

State = Mapping[str, Any]


class Setting(NamedTuple):
    """A learning rate, and the momentum or first beta if the schedule sets it."""

    lr: float
    momentum: float | None = None


class Decline(NamedTuple):
    """A rate of low + (base - low)·factor(t) after t steps."""

    factor: Callable[[int], float]
    low: float = 0.0


Schedule = Callable[[int], Setting]


def torch_schedule(number: int, state: State, group: State) -> Schedule:
    """Return the settings of a scheduler after t steps. Raise LookupError for a function or an unknown form.

    `number` is that of the group. OneCycleLR keeps its rates in the group's settings.
    """
    if "_milestones" in state:
        return lambda t: _sequential(t, number, state, group)
    if "_schedule_phases" in state:
        return lambda t: _one_cycle(t, state, group)
    base = float(state["base_lrs"][number])
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
        case {"gamma": gamma} if "max_lrs" not in state:  # CyclicLR has a gamma too
            return Decline(lambda t: gamma**t)
    raise LookupError("this scheduler has an unknown form")
