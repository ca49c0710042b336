"""Helpers for code built on Gyroscope, such as the lab: array types, checks of input, files written whole, JSON."""

from gyroscope._checks import check_count, check_fraction, check_non_negative, check_positive
from gyroscope._files import write_text
from gyroscope._json import dumps
from gyroscope._types import Array, Int64, Integers

__all__ = [
    "Array",
    "Int64",
    "Integers",
    "check_count",
    "check_fraction",
    "check_non_negative",
    "check_positive",
    "dumps",
    "write_text",
]
