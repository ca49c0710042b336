"""A run to be planned."""

from dataclasses import dataclass

from gyroscope.theory import Schedule, UpdateRule
from gyroscope.theory.layers import Layer


@dataclass(frozen=True)
class Question:
    """A run to be planned."""

    rule_name: str
    rule: UpdateRule
    schedule: Schedule
    layers: tuple[Layer, ...]
    steps_per_epoch: float | None
    compare: tuple[str, ...]
