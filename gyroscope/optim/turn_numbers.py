"""The turn of a rotational step apart from its optimizer, for what reads a step from a checkpoint."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from gyroscope.geometry import Split
from gyroscope.optim._engine.steps import MIN_CENTRED, Group, InnerRule, Vectors, rotation
from gyroscope.optim.formulas import Change, TurnNumbers


class Turn(NamedTuple):
    """How vectors of a tensor are turned in a step.

    numbers     of the step
    rows        names of the values per vector that it reads
    decide      `formulas.turn`, with the options of the group
    centred     whether vectors are held at mean 0
    """

    numbers: TurnNumbers
    rows: tuple[str, ...]
    decide: Callable[..., Change]
    centred: bool


def turn_of(
    group: Group, angle: float, t: int, *, fan_in: int, shape: tuple[int, ...], dtype: torch.dtype, **rule: Any
) -> Turn:
    """Return the turn by `angle` radians at a tensor's t-th step, as the engine makes it; `rule` has lr and eps."""
    vectors = Vectors(Split(), True, fan_in, torch.Size(shape), dtype, torch.device("cpu"))
    step = rotation(InnerRule(None, (), {}, **rule), angle, group, t, vectors)
    centred = bool(group["centre"]) and fan_in >= MIN_CENTRED
    return Turn(TurnNumbers(*step.numbers), tuple(step.rows), step.decide, centred)
