"""Learning-rate schedules: functions from step t = 0 … steps-1 to a multiplier of the peak learning rate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

from gyroscope._checks import check_count, check_multiplier, check_run_length
from gyroscope._types import Array, Number

# Any function of the step. A named schedule is such a function with a length.
Multiplier: TypeAlias = Callable[[Any], Any]

# RAdam divides by √v once v has averaged more gradients than this. The variance of 1/√v exists from 4 on, and torch
# waits for 5.
ADAPTS_ABOVE = 5.0


@final
@dataclass(frozen=True)
class Schedule:
    """A learning rate over `steps` steps: a linear ramp (t+1)/warmup times `body`, any function of t.

    >>> Schedule("exponential", steps=4, warmup=2, body=lambda t: 0.9**t)(0)
    np.float64(0.5)
    """

    name: str
    steps: int
    warmup: int
    body: Multiplier

    def __post_init__(self) -> None:
        check_run_length(self.steps)
        check_count("warmup", self.warmup, at_least=0)
        if self.warmup > self.steps:
            raise ValueError(
                f"warmup={self.warmup} is longer than the run of steps={self.steps}. The warmup is part of the run"
            )

    def __call__(self, t: Number) -> Number:
        """Return the multiplier at step t, a number or an array of steps."""
        # t + 1, so that the first step already moves. At t = warmup - 1 the ramp reaches 1.
        return np.minimum(1.0, (t + 1) / max(self.warmup, 1)) * self.body(t)


def constant(steps: int, warmup: int = 0) -> Schedule:
    """Return a schedule that stays at 1 after the warmup.

    >>> constant(4, warmup=2)(np.arange(4)).tolist()
    [0.5, 1.0, 1.0, 1.0]
    """
    return Schedule("constant", steps, warmup, lambda t: 1.0 + 0.0 * t)  # of t's shape


def linear(steps: int, warmup: int = 0, final: float = 0.0) -> Schedule:
    """Return a straight line from 1 down to `final`, reached at t = steps.

    >>> linear(4)(np.arange(4)).tolist()
    [1.0, 0.75, 0.5, 0.25]
    """
    check_multiplier("final", final)
    return Schedule("linear", steps, warmup, lambda t: 1 - (1 - final) * _progress(t, steps, warmup))


def cosine(steps: int, warmup: int = 0, final: float = 0.0) -> Schedule:
    """Return half a cosine from 1 down to `final`, reached at t = steps.

    >>> f"{cosine(4)(2):.2f}"
    '0.50'
    """
    check_multiplier("final", final)

    def body(t: Number) -> Number:
        return final + (1 - final) * (1 + np.cos(np.pi * _progress(t, steps, warmup))) / 2

    return Schedule("cosine", steps, warmup, body)


def wsd(steps: int, warmup: int = 0, decay: float = 0.2, final: float = 0.0) -> Schedule:
    """Return warmup-stable-decay: 1 until the last `decay` share of the steps, then a straight line down to `final`.

    `final` is reached at t = steps. If the warmup reaches into the decay, the decay starts after it.

    >>> wsd(10, warmup=2, decay=0.4)(np.arange(10)).tolist()
    [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    check_multiplier("final", final)
    if not 0 <= decay <= 1:
        raise ValueError(f"decay={decay!r} is a share of the steps: between 0 and 1, for example 0.2")
    start = max(steps - decay * steps, warmup)
    return Schedule("wsd", steps, warmup, lambda t: 1 - (1 - final) * _progress(t, steps, start))


def step(steps: int, milestones: Sequence[int], factor: float = 0.1, warmup: int = 0) -> Schedule:
    """Return a schedule that is multiplied by `factor` at each milestone, like torch's MultiStepLR.

    >>> step(6, milestones=[2, 4], factor=0.5)(np.arange(6)).tolist()
    [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """
    check_multiplier("factor", factor)
    for milestone in milestones:
        check_count("milestones", milestone, at_least=0)
    stages = np.sort(np.asarray(milestones, dtype=np.int64))
    return Schedule(
        "step", steps, warmup, lambda t: float(factor) ** np.searchsorted(stages, t, side="right").astype(np.float64)
    )


def inverse_sqrt(steps: int, warmup: int = 0) -> Schedule:
    """Return 1/sqrt(t+1), scaled to start from 1 at the end of the warmup.

    >>> [f"{m:.2f}" for m in inverse_sqrt(5, warmup=2)(np.arange(5))]
    ['0.50', '1.00', '0.82', '0.71', '0.63']
    """
    start = max(warmup, 1)
    return Schedule("inverse_sqrt", steps, warmup, lambda t: (start / np.maximum(t + 1, start)) ** 0.5)


def averaged_gradients(t: Number, beta2: float) -> Number:
    """Return rho_t = rho - 2t·β2^t/(1-β2^t), the number of gradients that v has averaged after t = 1, 2, … steps.

    >>> f"{averaged_gradients(5, 0.999):.3f} {averaged_gradients(6, 0.999):.3f}"
    '4.996 5.994'
    """
    power = beta2**t
    return 2 / (1 - beta2) - 1 - 2 * t * power / (1 - power)


def rectified(count: Number, beta2: float) -> Number:
    """Return r_t at rho_t = `count`, which has to be above 4. Numbers, arrays and tensors are accepted.

    >>> f"{rectified(1999.0, 0.999):.3f}"
    '1.000'
    """
    limit = 2 / (1 - beta2) - 1
    return ((count - 4) * (count - 2) * limit / ((limit - 4) * (limit - 2) * count)) ** 0.5


def multipliers(schedule: Multiplier | Sequence[float] | None, steps: int | None) -> Array:
    """Return every multiplier of a run, from a named schedule, any function of the step, a sequence or None (constant).

    >>> multipliers(lambda t: 1 / (t + 1), steps=3).round(2).tolist()
    [1.0, 0.5, 0.33]
    """
    if steps is not None:
        check_run_length(steps)
    if isinstance(schedule, Schedule):
        if steps is not None and steps > schedule.steps:
            raise ValueError(f"steps={steps} goes beyond the schedule, which was made for {schedule.steps} steps")
        values = schedule(np.arange(schedule.steps if steps is None else steps))
    elif schedule is not None and not callable(schedule):
        values = np.asarray(schedule, dtype=np.float64)[:steps]
        if values.ndim != 1 or (steps is not None and len(values) < steps) or len(values) == 0:
            raise ValueError(f"schedule={schedule!r} must have one multiplier for each step")
    elif steps is None:
        raise ValueError("steps is missing: pass steps=…, the length of the run, or a schedule that has one")
    else:
        # One call for each step, because a user's function need not take arrays.
        values = np.ones(steps) if schedule is None else np.array([float(schedule(t)) for t in range(steps)])
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if bad.size:
        raise ValueError(
            f"the schedule gives {values[bad[0]]} at step {bad[0]}. A multiplier must be finite and 0 or above"
        )
    return np.asarray(values, dtype=np.float64)


def _progress(t: Number, steps: int, start: float) -> Number:
    # Clipped below, because the body stays at its start during the warmup. Clipped above, because t may exceed the run.
    return np.clip((t - start) / max(steps - start, 1), 0.0, 1.0)
