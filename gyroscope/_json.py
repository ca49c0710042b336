"""JSON of runs, plans, pages and results. Any value becomes one that Python's encoder takes, and nothing raises.

- A number that is not finite becomes null, or with `keep_non_finite` NaN, Infinity or -Infinity.
- NumPy's arrays and numbers, dataclasses, mappings, sequences and paths become what JSON has for them.
- An integer of more than 1,024 bits becomes a description, because most programs cannot read it.
- A lone surrogate, which Python allows in file names and UTF-8 does not, becomes its escape.
- A control character stays, but is written as an escape that no terminal obeys.
- Everything else, and whatever is nested too deep, becomes its repr, cut to 2,000 characters.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from gyroscope._text import CONTROL

LONGEST_REPR = 2000
# Levels of nesting. A report has nine above a user's configuration. A mapping may contain itself.
DEEPEST = 20
# Most readers of JSON use float64, which overflows here.
LARGEST_INT_BITS = 1024


def dumps(value: Any, *, array_digits: int | None = None, keep_non_finite: bool = False, compact: bool = False) -> str:
    """Return any value as JSON.

    `array_digits` limits the significant digits of floats in arrays. `keep_non_finite` writes NaN and infinities as
    Python's json and JSON5 do, instead of null. `compact` leaves out spaces after commas and colons.

    >>> dumps({"a": np.array([1 / 3, np.nan]), "b": (1, None, "x"), "c": 2.0}, array_digits=5, compact=True)
    '{"a":[0.33333,null],"b":[1,null,"x"],"c":2.0}'
    >>> dumps({"lr": np.float32(0.5), "decay": float("inf"), "type": int}, keep_non_finite=True)
    '{"lr": 0.5, "decay": Infinity, "type": "<class \\'int\\'>"}'
    """
    separators = (",", ":") if compact else None
    text = json.dumps(plain(value, array_digits, keep_non_finite), ensure_ascii=False, separators=separators)
    # Only strings contain control characters, and of them json escapes those of ASCII alone.
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def clean_text(text: str) -> str:
    """Return text that UTF-8 can encode: lone surrogates become their escapes.

    >>> clean_text("a\\udc80")
    'a\\\\udc80'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def plain(value: Any, array_digits: int | None = None, keep_non_finite: bool = False, depth: int = 0) -> Any:
    """Return a value made of what JSON has: dictionaries, lists, text, numbers, booleans and None."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        bits = int(value).bit_length()
        return int(value) if bits <= LARGEST_INT_BITS else f"<integer of {bits:,} bits>"
    if isinstance(value, float):
        return float(value) if keep_non_finite or math.isfinite(value) else None
    if isinstance(value, str | PurePath):
        return clean_text(str(value))
    # Only containers are cut off, because numbers and text are cheap.
    if depth < DEEPEST:
        options = (array_digits, keep_non_finite, depth + 1)
        if isinstance(value, np.ndarray):
            # Numbers are converted together, because a page has a million.
            if value.dtype.kind == "f":
                return _floats(value, array_digits, keep_non_finite)
            return value.tolist() if value.dtype.kind in "iub" else plain(value.tolist(), *options)
        if is_dataclass(value) and not isinstance(value, type):
            value = {field.name: getattr(value, field.name) for field in fields(value)}
        if isinstance(value, Mapping):
            try:
                items = list(value.items())
            except Exception:  # the user's own mapping may raise anything
                return f"<{type(value).__name__}>"
            return {_key(key): plain(item, *options) for key, item in items}
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
            return [plain(item, *options) for item in value]
    return clean_text(_repr(value))


def _floats(array: npt.NDArray[Any], digits: int | None, keep_non_finite: bool) -> Any:
    """Return an array of floats as nested lists."""
    numbers = array.astype(np.float64)
    if digits is not None:
        with np.errstate(all="ignore"):
            places = digits - 1 - np.floor(np.log10(np.abs(numbers)))
            # A power of ten is exact only if its exponent is positive, so numbers are multiplied or divided by it.
            power = 10.0 ** np.minimum(np.abs(places), 300)
            rounded = np.where(places > 0, np.rint(numbers * power) / power, np.rint(numbers / power) * power)
        numbers = np.where(np.isfinite(places), rounded, numbers)
    if keep_non_finite or np.isfinite(numbers).all():
        return numbers.tolist()
    values = numbers.astype(object)
    values[~np.isfinite(numbers)] = None
    return values.tolist()


def _key(key: Any) -> str:
    if isinstance(key, np.generic):
        key = key.item()
    return clean_text(str(key) if isinstance(key, str | PurePath) else _repr(key))


def _repr(value: Any) -> str:
    try:
        return repr(value)[:LONGEST_REPR]
    except Exception:  # and so may its repr
        return f"<{type(value).__name__}>"
