"""The checks that stand where a user enters: each error quotes what was given and says what would work."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def check_non_negative(name: str, value: object) -> None:
    """Raise unless `value` is a finite number, zero or above."""
    if not (_is_finite(value) and value >= 0):  # type: ignore[operator]  # _is_finite has seen a real number
        raise ValueError(f"{name}={value!r} must be a finite number, 0 or above")


def check_fraction(name: str, value: object) -> None:
    """Raise unless `value` is a decay factor of an average: at least 0 and below 1."""
    if not (_is_finite(value) and 0 <= value < 1):  # type: ignore[operator]
        raise ValueError(f"{name}={value!r} must be at least 0 and below 1, for example 0.9")


def check_betas(betas: object) -> None:
    """Raise unless `betas` is a pair (beta1, beta2) of decay factors."""
    if not isinstance(betas, Sequence) or isinstance(betas, str) or len(betas) != 2:
        raise ValueError(f"betas={betas!r} must be a pair, for example (0.9, 0.999)")
    check_fraction("beta1", betas[0])
    check_fraction("beta2", betas[1])


def check_decay(lr: object, weight_decay: object) -> None:
    """Raise unless lr and weight decay are sane, and a step keeps some of the weight."""
    check_non_negative("lr", lr)
    check_non_negative("weight_decay", weight_decay)
    shrink = float(lr) * float(weight_decay)  # type: ignore[arg-type]
    if shrink >= 1:
        raise ValueError(
            f"lr={lr!r} times weight_decay={weight_decay!r} is {shrink:.3g}: one step would remove the whole weight; "
            "choose them so that the product is below 1"
        )


def positive_array(name: str, value: Any) -> Any:
    """`value` as a float, or an array of floats, all of them finite and above 0."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} must be a number or an array of numbers") from None
    if array.size == 0 or not np.all(np.isfinite(array) & (array > 0)):
        raise ValueError(f"{name}={value!r} must be finite and above 0")
    return float(array) if array.ndim == 0 else array
