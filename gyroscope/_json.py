"""Dataclasses with arrays to JSON, fast: a page holds a million numbers, and five digits of each are enough."""

import json
import math
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

DIGITS = 5
"""Of numbers in arrays, which are looked at."""
EXACT = 9
"""Of single numbers: all that a float32 has."""


def dumps(value: Any) -> str:
    """Compact JSON; floats in arrays have five digits, others nine, and become null where they are not finite.

    >>> dumps({"a": np.array([1 / 3, np.nan]), "b": (1, None, "x"), "c": 2.0})
    '{"a":[0.33333,null],"b":[1,null,"x"],"c":2}'
    """
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, bool | int | str | None):
        return json.dumps(value)
    if isinstance(value, float | np.generic):
        return _number(float(value))
    if is_dataclass(value):
        return "{" + ",".join(f'"{one.name}":{dumps(getattr(value, one.name))}' for one in fields(value)) + "}"
    if isinstance(value, dict) or hasattr(value, "items"):
        return "{" + ",".join(f"{json.dumps(str(key))}:{dumps(one)}" for key, one in value.items()) + "}"
    return "[" + ",".join(map(dumps, value)) + "]"


def _number(value: float) -> str:
    return f"{value:.{EXACT}g}" if math.isfinite(value) else "null"


def _array(array: npt.NDArray[Any]) -> str:
    if array.ndim > 1:
        return "[" + ",".join(map(_array, array)) + "]"
    if array.dtype.kind in "iub":
        return json.dumps(array.tolist(), separators=(",", ":"))
    text = ",".join([f"%.{DIGITS}g"] * len(array)) % tuple(array.tolist())
    if not np.isfinite(array).all():
        text = text.replace("-inf", "null").replace("inf", "null").replace("nan", "null")
    return f"[{text}]"
