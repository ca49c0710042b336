"""Validation of a user's input. Each error quotes the input and gives the remedy.

`check_…` functions raise ValueError or return nothing. `…_array` functions return a float, or an array of floats.
"""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from gyroscope._types import Array, Integers

# A forecast takes about 10 µs per step, so the longest run takes about half a minute.
MAX_FORECAST_STEPS = 3_000_000


def check_non_negative(name: str, value: Any) -> None:
    """Raise unless `value` is a finite number, zero or above.

    >>> check_non_negative("lr", -1.0)
    Traceback (most recent call last):
    ValueError: lr=-1.0 must be a finite number, 0 or above
    """
    _require(_is_finite(value) and value >= 0, name, value, "must be a finite number, 0 or above")


def check_positive(name: str, value: Any) -> None:
    """Raise unless `value` is a finite number above zero."""
    _require(_is_finite(value) and value > 0, name, value, "must be a finite number above 0")


def check_fraction(name: str, value: Any) -> None:
    """Raise unless `value` is the decay factor of an average: at least 0 and below 1."""
    fits = _is_finite(value) and 0 <= value < 1
    _require(fits, name, value, "must be at least 0 and below 1, for example 0.9")


def check_multiplier(name: str, value: Any) -> None:
    """Raise unless `value` is a share of the peak learning rate, between 0 and 1."""
    fits = _is_finite(value) and 0 <= value <= 1
    _require(fits, name, value, "is a share of the peak learning rate: between 0 and 1")


def check_count(name: str, value: object, at_least: int, meaning: str = "") -> None:
    """Raise unless `value` is a whole number of at least `at_least`. `meaning` ends the sentence."""
    # A bool is an int in Python, but never a count.
    fits = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= at_least
    end = f": {meaning}" if meaning else ""
    _require(fits, name, value, f"must be a whole number, {at_least} or above{end}")


def check_run_length(steps: int) -> None:
    """Raise unless `steps` is a number of steps that can be computed one by one.

    >>> check_run_length(100_000_000)
    Traceback (most recent call last):
    ValueError: steps=100000000 is too long to compute step by step: choose at most 3,000,000. Equilibria do not \
depend on the length of the run
    """
    check_count("steps", steps, at_least=1)
    limit = f"choose at most {MAX_FORECAST_STEPS:,}. Equilibria do not depend on the length of the run"
    _require(steps <= MAX_FORECAST_STEPS, "steps", steps, f"is too long to compute step by step: {limit}")


def check_betas(betas: object) -> None:
    """Raise unless `betas` is a pair (beta1, beta2) of decay factors."""
    is_pair = isinstance(betas, Sequence) and not isinstance(betas, str) and len(betas) == 2
    _require(is_pair, "betas", betas, "must be a pair, for example (0.9, 0.999)")
    assert isinstance(betas, Sequence)
    check_fraction("beta1", betas[0])
    check_fraction("beta2", betas[1])


def check_decay(lr: Any, weight_decay: Any) -> None:
    """Raise unless lr and weight decay are valid, and a step does not remove the whole weight."""
    check_non_negative("lr", lr)
    check_non_negative("weight_decay", weight_decay)
    shrink = float(lr) * float(weight_decay)
    if shrink >= 1:
        raise ValueError(
            f"lr={lr!r} times weight_decay={weight_decay!r} is {shrink:.3g}: one step would remove the whole weight. "
            "Choose them so that the product is below 1"
        )


def positive_array(name: str, value: Any) -> Any:
    """Return `value` as a float, or an array of floats, all finite and above 0.

    >>> positive_array("norm", [1, 2])
    array([1., 2.])
    """
    array = _floats(name, value)
    _require(array.size > 0 and np.all(np.isfinite(array) & (array > 0)), name, value, "must be finite and above 0")
    return float(array) if array.ndim == 0 else array


def non_negative_array(name: str, value: Any) -> Any:
    """Return `value` as a float, or an array of floats, all finite and 0 or above."""
    array = _floats(name, value)
    _require(array.size > 0 and np.all(np.isfinite(array) & (array >= 0)), name, value, "must be finite, 0 or above")
    return float(array) if array.ndim == 0 else array


def fraction_array(name: str, value: object, *, zero: bool = True) -> Array:
    """Return `value` as an array of decay factors of averages, below 1 and at least 0, or above 0 without `zero`."""
    array = _floats(name, value)
    fits = (array < 1) & ((array >= 0) if zero else (array > 0))
    condition = "at least 0 and below 1, for example 0.9" if zero else "above 0 and below 1, for example 0.999"
    _require(array.size > 0 and np.all(fits), name, value, f"must be {condition}")
    return array


def step_array(name: str, value: object) -> Integers:
    """Return `value` as an array of step numbers, 0 for the first."""
    array = np.asarray(value)
    fits = np.issubdtype(array.dtype, np.integer) and np.all(array >= 0)
    _require(fits, name, value, "must be the number of a step: an integer, 0 for the first")
    return array


def _require(fits: Any, name: str, value: object, condition: str) -> None:
    if not fits:
        raise ValueError(f"{name}={value!r} {condition}")


def _is_finite(value: object) -> bool:
    # A bool is a number in Python, but never one of a user's settings.
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def _floats(name: str, value: object) -> Array:
    try:
        array = np.asarray(value)
        _require(array.dtype != bool, name, value, "must be a number or an array of numbers")
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} must be a number or an array of numbers") from None
