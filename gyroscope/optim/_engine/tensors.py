"""The tensors of a step: a parameter with its gradient, and its state, which is made on first use."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gyroscope._dtensor import row_like
from gyroscope.geometry import Split, at_least_float32
from gyroscope.optim._engine.memory import laid_out_like
from gyroscope.optim._engine.steps import Group, Step
from gyroscope.optim.formulas import Number


class Task(NamedTuple):
    """A parameter with all that its step needs. `update` is its gradient, or a Δ made by another optimizer."""

    p: Tensor
    update: Tensor
    state: dict[str, Any]
    group: Group


def lay_out(task: Task, step: Step, tensors: list[Tensor]) -> bool:
    """Give all tensors the weight's layout, as a program needs, and return whether that is possible."""
    strides = tensors[0].stride()
    if all(x.stride() == strides for x in tensors):
        return True
    alike = [laid_out_like(x, tensors[0]) for x in tensors]
    moments = zip(step.moments, alike[2:], tensors[2:], strict=False)
    changed = {name: new for name, new, old in moments if new is not old}
    # A DTensor in the state cannot be replaced by its local part: such a tensor steps eagerly.
    if changed and hasattr(task.p, "placements"):
        return False
    # Gradients are copied at each step. Moments, which the step writes, get the weights' layout for good.
    task.state.update(changed)
    tensors[:] = alike
    return True


def new_moment(p: Tensor, stacked: int) -> Tensor:
    """Return a moment before the first step, in the parameter's memory layout, and float32 or better.

    In float16 the square of a gradient above 255 is infinite, and of one below 2e-4 it is 0.
    """
    zeros = torch.zeros_like(p, dtype=at_least_float32(p.dtype))
    if not stacked:
        return zeros
    if hasattr(p, "placements"):
        return torch.stack([zeros] * stacked)
    return torch.zeros_like(zeros.expand(stacked, *p.shape))


def new_row(p: Tensor, split: Split, first: Number) -> Tensor:
    """Return a value per vector before the first step: float32 or better, and sharded as the vectors are."""
    return row_like(p, split, torch.zeros(split.num_vectors(p.shape), dtype=at_least_float32(p.dtype)) + first)


def loses_updates(angle: Number, dtype: torch.dtype) -> bool:
    """Return whether rounding to nearest loses much of a rotation. A tensor on a device is not read."""
    if isinstance(angle, Tensor) and angle.device.type != "cpu":
        return False
    # Rounding to nearest keeps a mean rotation down to about 1.28 spacings of the dtype.
    return bool(0 < angle < 1.28 * torch.finfo(dtype).eps)
