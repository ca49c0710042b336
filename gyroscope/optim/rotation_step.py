"""The rotational step apart from its optimizer, for code that reconstructs a step from a checkpoint."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from gyroscope.geometry import Split
from gyroscope.optim._engine.rotation import MIN_CENTRED, rotation
from gyroscope.optim._engine.steps import Group, InnerRule, Vectors
from gyroscope.optim.formulas import Change, RotationNumbers


class RotationStep(NamedTuple):
    """One step: its numbers, the names of the rows it reads, `formulas.rotate`, and whether vectors have mean 0."""

    numbers: RotationNumbers
    rows: tuple[str, ...]
    decide: Callable[..., Change]
    centred: bool


def rotation_step(
    group: Group, angle: float, t: int, *, fan_in: int, shape: tuple[int, ...], dtype: torch.dtype, **rule: Any
) -> RotationStep:
    """Return the rotation by `angle` radians at a tensor's t-th step. `rule` has lr, eps and formula."""
    vectors = Vectors(Split(), True, fan_in, torch.Size(shape), dtype, torch.device("cpu"))
    step = rotation(InnerRule(None, (), {}, **rule), angle, group, t, vectors)
    centred = bool(group["centre"]) and fan_in >= MIN_CENTRED
    return RotationStep(RotationNumbers(*step.numbers), tuple(step.rows), step.decide, centred)
