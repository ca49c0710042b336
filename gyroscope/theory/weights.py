"""What predictions are told about the weights."""

from dataclasses import dataclass
from math import prod
from typing import Any

from gyroscope._checks import positive_array


@dataclass(frozen=True)
class Weights:
    """What a prediction may need to know about the weights; None where unknown. Arrays describe many layers at once."""

    fan_in: Any = None
    unit_grad_norm: Any = None
    shape: Any = None

    @classmethod
    def checked(cls, fan_in: object, unit_grad_norm: object, shape: object) -> "Weights":
        """The same, validated; a shape (as torch has it, outputs first) also gives the fan-in of one row."""
        if shape is not None:
            if not isinstance(shape, tuple | list) or not all(isinstance(n, int) and n > 0 for n in shape) or not shape:
                raise ValueError(f"shape={shape!r} must be a tuple of positive whole numbers, for example (256, 128)")
            shape = tuple(shape)
            fan_in = prod(shape[1:]) if fan_in is None else fan_in
        return cls(
            None if fan_in is None else positive_array("fan_in", fan_in),
            None if unit_grad_norm is None else positive_array("unit_grad_norm", unit_grad_norm),
            shape,
        )
