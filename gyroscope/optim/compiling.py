"""Compiled steps: programs for kinds of tensors, and numbers that may change without a new program."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from gyroscope.optim.step import Turn, Turning, move_, sums, turn


@cache
def compiled(function: Callable[..., Any], key: tuple[object, ...]) -> Callable[..., Any]:
    """`function` compiled for one kind of tensor (sizes stay free).

    A copy of its code for each kind, because Dynamo counts recompilations per code object and gives up after eight.
    """
    code = function.__code__.replace()
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    return torch.compile(copy, dynamic=True, fullgraph=True)


def packed(values: Sequence[Any], device: torch.device) -> Tensor:
    """Numbers as one float64 tensor on the device: one input of a program instead of many."""
    if any(isinstance(value, Tensor) and value.device.type != "cpu" for value in values):
        return torch.stack([torch.as_tensor(value, dtype=torch.float64, device=device) for value in values])
    return torch.tensor([float(value) for value in values], dtype=torch.float64).to(device, non_blocking=True)


def rotate_rows(
    direction: Callable[..., None],
    names: tuple[str, ...],
    flags: Mapping[str, bool],
    w: Tensor,
    grad: Tensor,
    moments: list[Tensor],
    radius: Tensor,
    update_sq: Tensor,
    numbers: Tensor,
    angle: Tensor | None,
    l2: Tensor | None,
    noise: Tensor | None,
    **options: Any,
) -> Turn:
    """A rotational step on rows, one program: moves `w` and `moments`, and says what it did.

    `numbers` are the seven of `Turning`, then the direction's by name; `angle` is per vector if imbalanced.
    """
    values = numbers.unbind(0)
    by, knobs = Turning(*values[:7]), {**flags, **dict(zip(names, values[7:], strict=True))}
    if angle is not None:
        by = by._replace(angle=angle)
    if l2 is not None:
        knobs |= {"w": w, "l2": _column(l2, w)}
    u = torch.empty_like(w, dtype=radius.dtype)
    # A factor per vector keeps Inductor's loops nested, vectors over entries: moments, Δ and sums make one loop.
    direction(grad * _column(_one(radius), w), u, *moments, **knobs)
    turned = turn(sums(w, u), one_by_one(radius), update_sq, by, **options)
    move_(w, u.clone(), turned, noise)  # Inductor copies nothing for the clone
    return turned  # all of it, so that Inductor makes it once per vector and not once per entry


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *(1,) * (like.dim() - 1))


def one_by_one(values: Tensor) -> Tensor:
    """The values, none of them -2 or below, by way of a type that Inductor does not vectorise on a CPU.

    What is computed per vector then runs one vector at a time, like the loops over its entries before and after it, and
    the three become one loop: a vector's entries are in cache when they are moved.
    """
    if values.device.type != "cpu":
        return values
    return values * _one(values).to(torch.uint16).to(values.dtype)


def _one(radius: Tensor) -> Tensor:
    """1 for each vector, in a way that no compiler can foresee: a radius is 0 or above, or -1."""
    return (radius > -2).to(radius.dtype)
