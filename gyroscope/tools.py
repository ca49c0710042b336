"""Helpers for code built on Gyroscope, such as the lab: array types, checks of input, files written whole, JSON."""

from gyroscope._checks import (
    check_betas,
    check_count,
    check_decay,
    check_fraction,
    check_non_negative,
    check_positive,
    non_negative_array,
    positive_array,
    step_array,
)
from gyroscope._files import read_toml, write_text
from gyroscope._json import dumps
from gyroscope._types import Array, Int64, Integers, Number, Values

__all__ = [
    "Array",
    "Int64",
    "Integers",
    "Number",
    "Values",
    "check_betas",
    "check_count",
    "check_decay",
    "check_fraction",
    "check_non_negative",
    "check_positive",
    "dumps",
    "non_negative_array",
    "positive_array",
    "read_toml",
    "step_array",
    "write_text",
]
