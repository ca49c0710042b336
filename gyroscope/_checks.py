"""Validation of what a user enters. Each error quotes the input and says what would work.

`check_…` functions raise ValueError or return nothing. `…_array` functions return a float, or an array of floats.
"""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from gyroscope._types import Array, Integers, Mask

# A forecast takes about 10 µs per step, so the longest run takes about half a minute.
MAX_FORECAST_STEPS = 3_000_000


def check_non_negative(name: str, value: Any) -> None:
    """Raise unless `value` is a finite number, zero or above.

    >>> check_non_negative("lr", -1.0)
    Traceback (most recent call last):
    ValueError: lr=-1.0 must be a finite number, 0 or above
    """
    if not (_is_finite(value) and value >= 0):
        raise ValueError(f"{name}={value!r} must be a finite number, 0 or above")


def check_positive(name: str, value: Any) -> None:
    """Raise unless `value` is a finite number above zero."""
    if not (_is_finite(value) and value > 0):
        raise ValueError(f"{name}={value!r} must be a finite number above 0")


def check_fraction(name: str, value: Any) -> None:
    """Raise unless `value` is a decay factor of an average: at least 0 and below 1."""
    if not (_is_finite(value) and 0 <= value < 1):
        raise ValueError(f"{name}={value!r} must be at least 0 and below 1, for example 0.9")


def check_multiplier(name: str, value: Any) -> None:
    """Raise unless `value` is a share of the peak learning rate, between 0 and 1."""
    if not (_is_finite(value) and 0 <= value <= 1):
        raise ValueError(f"{name}={value!r} is a share of the peak learning rate: between 0 and 1")


def check_count(name: str, value: object, at_least: int, meaning: str = "") -> None:
    """Raise unless `value` is a whole number of at least `at_least`. `meaning` ends the sentence."""
    # A bool is an int in Python, but never a count.
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < at_least:
        end = f": {meaning}" if meaning else ""
        raise ValueError(f"{name}={value!r} must be a whole number, {at_least} or above{end}")


def check_run_length(steps: int) -> None:
    """Raise unless `steps` is a number of steps that can be computed one by one.

    >>> check_run_length(100_000_000)
    Traceback (most recent call last):
    ValueError: steps=100000000 is too long to follow step by step: choose at most 3,000,000. Equilibria do not depend \
on the length of the run
    """
    check_count("steps", steps, at_least=1)
    if steps > MAX_FORECAST_STEPS:
        raise ValueError(
            f"steps={steps} is too long to follow step by step: choose at most {MAX_FORECAST_STEPS:,}. "
            "Equilibria do not depend on the length of the run"
        )


def check_betas(betas: object) -> None:
    """Raise unless `betas` is a pair (beta1, beta2) of decay factors."""
    if not isinstance(betas, Sequence) or isinstance(betas, str) or len(betas) != 2:
        raise ValueError(f"betas={betas!r} must be a pair, for example (0.9, 0.999)")
    check_fraction("beta1", betas[0])
    check_fraction("beta2", betas[1])


def check_decay(lr: Any, weight_decay: Any) -> None:
    """Raise unless lr and weight decay are sane, and a step keeps some of the weight."""
    check_non_negative("lr", lr)
    check_non_negative("weight_decay", weight_decay)
    shrink = float(lr) * float(weight_decay)
    if shrink >= 1:
        raise ValueError(
            f"lr={lr!r} times weight_decay={weight_decay!r} is {shrink:.3g}: one step would remove the whole weight; "
            "choose them so that the product is below 1"
        )


def positive_array(name: str, value: Any) -> Any:
    """Return `value` as a float, or an array of floats, all finite and above 0.

    >>> positive_array("norm", [1, 2])
    array([1., 2.])
    """
    array = _floats(name, value)
    return _checked(name, value, array, np.isfinite(array) & (array > 0), "must be finite and above 0")


def non_negative_array(name: str, value: Any) -> Any:
    """Return `value` as a float, or an array of floats, all finite and 0 or above."""
    array = _floats(name, value)
    return _checked(name, value, array, np.isfinite(array) & (array >= 0), "must be finite, 0 or above")


def fraction_array(name: str, value: object, *, zero: bool = True) -> Array:
    """Return `value` as an array of decay factors of averages, below 1 and at least 0, or above 0 without `zero`."""
    array = _floats(name, value)
    fits = (array < 1) & ((array >= 0) if zero else (array > 0))
    condition = "at least 0 and below 1, for example 0.9" if zero else "above 0 and below 1, for example 0.999"
    _checked(name, value, array, fits, f"must be {condition}")
    return array


def step_array(name: str, value: object) -> Integers:
    """Return `value` as an array of step numbers, 0 for the first."""
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.integer) or np.any(array < 0):
        raise ValueError(f"{name}={value!r} must be the number of a step: an integer, 0 for the first")
    return array


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _floats(name: str, value: object) -> Array:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} must be a number or an array of numbers") from None


def _checked(name: str, value: object, array: Array, fits: Mask, condition: str) -> Any:
    if array.size == 0 or not fits.all():
        raise ValueError(f"{name}={value!r} {condition}")
    return float(array) if array.ndim == 0 else array
