"""A parameter's state before the first step."""

import torch
from torch import Tensor

from gyroscope._dtensor import row_like
from gyroscope.geometry import Split, at_least_float32
from gyroscope.optim._engine.steps import FirstValue, PlainStep, Step


def new_moment(p: Tensor, step: Step) -> Tensor:
    """A moment before the first step: laid out in memory as the parameter is, and float32 or better.

    In float16 the square of a gradient above 255 is infinite, and of one below 2e-4 it is 0.
    """
    zeros = torch.zeros_like(p, dtype=at_least_float32(p.dtype))
    if not isinstance(step, PlainStep) or not step.stacked:
        return zeros
    if hasattr(p, "placements"):
        return torch.stack([zeros] * step.stacked)
    return torch.zeros_like(zeros.expand(step.stacked, *p.shape))


def new_row(p: Tensor, split: Split, first: FirstValue, place: int) -> Tensor:
    """A value per vector before the first step: float32 or better, and spread over processes as the vectors are."""
    num_vectors = split.num_vectors(p.shape)
    dtype = at_least_float32(p.dtype)
    values = first(num_vectors, place).to(dtype) if callable(first) else torch.zeros(num_vectors, dtype=dtype) + first
    return row_like(p, split, values)
