"""The JSON encoder of runs, plans, pages and results. It encodes any value and never raises.

- A number that is not finite becomes null, or with `keep_non_finite` NaN, Infinity or -Infinity.
- NumPy's arrays and numbers, dataclasses, mappings, sequences and paths become what JSON has for them.
- An integer of more than 1,024 bits becomes a description, because most programs cannot read it.
- A lone surrogate, which Python allows in file names and UTF-8 does not, becomes its escape.
- Everything else, and whatever is nested too deep, becomes its repr, cut to 2,000 characters.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import PurePath
from typing import Any, final

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
    comma = "," if compact else ", "
    return _Encoder(array_digits, keep_non_finite, comma, ":" if compact else ": ").text(value, 0)


def clean_text(text: str) -> str:
    """Return text that UTF-8 can encode: lone surrogates become their escapes.

    >>> clean_text("a\\udc80")
    'a\\\\udc80'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@final
@dataclass(frozen=True)
class _Encoder:
    array_digits: int | None
    keep_non_finite: bool
    comma: str
    colon: str

    def text(self, value: Any, depth: int) -> str:
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool):
            return json.dumps(value)
        if isinstance(value, int):
            return _integer(value)
        if isinstance(value, float):
            # float(), because the repr of a subclass may not be JSON.
            return json.dumps(float(value)) if self.keep_non_finite or math.isfinite(value) else "null"
        if isinstance(value, str | PurePath):
            return _string(str(value))
        # Only containers are cut off, because numbers and text are cheap.
        if depth < DEEPEST:
            if isinstance(value, np.ndarray):
                return self._array(value, depth)
            if is_dataclass(value) and not isinstance(value, type):
                return self._object({field.name: getattr(value, field.name) for field in fields(value)}, depth)
            if isinstance(value, Mapping):
                return self._object(value, depth)
            if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
                return f"[{self.comma.join([self.text(item, depth + 1) for item in value])}]"
        return _string(_repr(value))

    def _object(self, value: Mapping[Any, Any], depth: int) -> str:
        try:
            items = list(value.items())
        except Exception:  # the user's own mapping may raise anything
            return _string(f"<{type(value).__name__}>")
        members = [f"{_string(_key(key))}{self.colon}{self.text(item, depth + 1)}" for key, item in items]
        return f"{{{self.comma.join(members)}}}"

    def _array(self, array: npt.NDArray[Any], depth: int) -> str:
        if array.ndim == 0 or array.dtype.kind not in "iubf":
            return self.text(array.tolist(), depth + 1)
        if array.ndim > 1:
            return f"[{self.comma.join([self._array(row, depth) for row in array])}]"
        if array.dtype.kind != "f":
            return json.dumps(array.tolist(), separators=(self.comma, self.colon))
        # One format string for the whole array, because a call for each of a page's million numbers takes seconds.
        number = "%r" if self.array_digits is None else f"%.{self.array_digits}g"
        text = self.comma.join([number] * len(array)) % tuple(array.tolist())
        if not np.isfinite(array).all():
            names = ("-Infinity", "Infinity", "NaN") if self.keep_non_finite else ("null",) * 3
            # "-inf" before "inf", because "inf" is part of it. The replacements contain neither in lower case.
            for old, new in zip(("-inf", "inf", "nan"), names, strict=True):
                text = text.replace(old, new)
        return f"[{text}]"


def _string(text: str) -> str:
    # JSON itself escapes only the control characters of ASCII.
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(clean_text(text), ensure_ascii=False))


def _integer(value: int) -> str:
    bits = int(value).bit_length()
    return json.dumps(int(value)) if bits <= LARGEST_INT_BITS else _string(f"<integer of {bits:,} bits>")


def _key(key: Any) -> str:
    if isinstance(key, np.generic):
        key = key.item()
    return str(key) if isinstance(key, str | PurePath) else _repr(key)


def _repr(value: Any) -> str:
    try:
        return repr(value)[:LONGEST_REPR]
    except Exception:  # and so may its repr
        return f"<{type(value).__name__}>"
