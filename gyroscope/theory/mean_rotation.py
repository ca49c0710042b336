"""The mean rotation over a run, and the learning rate that gives it.

Rules of transfer are products of powers, so they describe runs in equilibrium. Real runs also have a transient from the
initial norms, which is longer at small learning rates. The forecast has both. Ours: docs/theory.md, "Transfer".
"""

from math import exp, log
from typing import NamedTuple

import numpy.typing as npt

from gyroscope.theory.forecast import forecast
from gyroscope.theory.rules.base import UpdateRule
from gyroscope.theory.schedules import Schedule

# The search for a learning rate ends at this relative error of the rotation, far below that of the forecast.
TOLERANCE = 1e-6
# Steps of the secant method, of which six are usual, and the largest factor of one step.
MAX_TRIES = 40
MAX_FACTOR = 8.0


class RunCourse(NamedTuple):
    """The course of a run: its schedule, and initial norm and fan-in, each a number or an array with one per layer."""

    schedule: Schedule
    norm: npt.ArrayLike
    fan_in: npt.ArrayLike


def mean_rotation(rule: UpdateRule, course: RunCourse) -> float:
    """Return the mean angle over all steps and layers of a run, in radians per step.

    >>> from gyroscope.theory import AdamW, constant
    >>> rule = AdamW(1e-3, 0.1)
    >>> f"{mean_rotation(rule, RunCourse(constant(1000), norm=1.0, fan_in=256)):.5f} rad per step"
    '0.00366 rad per step'
    """
    run = forecast(rule, course.schedule, norm=course.norm, fan_in=course.fan_in)
    return float(run.angular_update.mean())


def keep_mean_rotation(tuned: UpdateRule, moved: UpdateRule, base: RunCourse, to: RunCourse) -> UpdateRule:
    """Return the moved rule at another learning rate, so that what it promises in equilibrium holds over the run.

    The mean rotation over the new run, relative to that over the tuned one, becomes the ratio of both rotations in
    equilibrium. Settings that are copied therefore keep the mean rotation. Weight decay stays as it was moved.

    tuned, moved  the rule with tuned settings, and with those of a transfer rule
    base, to      the tuned run and the new one

    >>> from gyroscope.theory import AdamW, constant
    >>> tuned = AdamW(1e-3, 0.1)
    >>> base, to = (RunCourse(constant(1000), norm=0.58, fan_in=width) for width in (64, 256))
    >>> kept = keep_mean_rotation(tuned, tuned, base, to)
    >>> f"lr × {kept.lr / tuned.lr:.2f}, rotation × {mean_rotation(kept, to) / mean_rotation(tuned, base):.2f}"
    'lr × 0.52, rotation × 1.00'
    """
    promised = _settled(moved) / _settled(tuned)
    return _with_mean_rotation(moved, promised * mean_rotation(tuned, base), to)


def _settled(rule: UpdateRule) -> float:
    angle = rule.equilibrium().angular_update
    if angle is None:
        raise ValueError(
            f"the rotation of {rule.name} in equilibrium depends on the gradient. Use a rule such as AdamW"
        )
    return float(angle)


def _with_mean_rotation(rule: UpdateRule, rotation: float, course: RunCourse) -> UpdateRule:
    """Return the rule at the learning rate with this mean rotation, by the secant method in logarithms."""

    def gap(log_lr: float) -> float:
        return log(mean_rotation(rule.replace(lr=exp(log_lr)), course) / rotation)

    before = log(rule.lr)
    error_before = gap(before)
    # In the first steps rotation follows lr, and in equilibrium its root.
    now = before - error_before
    for _ in range(MAX_TRIES):
        error = error_before if now == before else gap(now)
        if abs(error) < TOLERANCE:
            return rule.replace(lr=exp(now))
        slope = (error - error_before) / (now - before)
        step = max(-log(MAX_FACTOR), min(log(MAX_FACTOR), error / slope))
        before, error_before, now = now, error, now - step
    raise ValueError(
        f"no learning rate of {rule.name} gives a mean rotation of {rotation:.3g} rad per step in this run"
    )
