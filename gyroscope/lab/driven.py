"""Weights under gradients of a prescribed size: the setting of Spherical Motion Dynamics, with a real optimizer.

A scale-invariant weight w has gradients tangent to the sphere and 1/‖w‖ in size. Here each vector gets such a gradient
in a random direction, with unit norm ‖g‖·‖w‖ = sqrt(L_t) for any sequence L_t.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import SGD

from gyroscope.geometry import Split

ROWS = Split()
"""One weight vector per row."""


@dataclass(frozen=True)
class Trace:
    """What was measured at every step, per vector: (steps, vectors)."""

    norm2: Tensor
    """‖w‖² after the step."""
    angle: Tensor
    """Angle turned by the step, in radians."""
    h: Tensor
    """(‖g‖² + 2α⟨v, g⟩)·‖w‖², v the momentum before the step: SMD's h̃; without momentum it is L_t."""


def drive(
    weight: Tensor,
    optimizer: SGD,
    unit_norm2: Tensor,
    generator: torch.Generator,
    steps: Iterable[int],
    *,
    angles: bool = True,
) -> Trace:
    """Step the optimizer with tangent gradients of squared unit norm `unit_norm2[t]`, a number per vector.

    Without `angles` the trace has none, and costs a third less.
    """
    alpha = optimizer.param_groups[0]["momentum"]
    norm2, angle, h = (torch.zeros(len(unit_norm2), len(weight), dtype=weight.dtype) for _ in range(3))
    for t in steps:
        before = weight.detach().clone()
        length2 = _dot(before, before)
        gradient = tangent(before, length2, generator) * (unit_norm2[t] / length2).sqrt().unsqueeze(1)
        momentum = optimizer.state[weight].get("momentum_buffer") if alpha else None
        cross = 0.0 if momentum is None else 2 * alpha * _dot(momentum, gradient)
        h[t] = (_dot(gradient, gradient) + cross) * length2
        weight.grad = gradient
        optimizer.step()
        after = weight.detach()
        norm2[t] = _dot(after, after)
        if angles:
            angle[t] = ROWS.angle(before, after)
    return Trace(norm2, angle, h)


def tangent(weight: Tensor, length2: Tensor, generator: torch.Generator) -> Tensor:
    """A random unit vector orthogonal to each row of a weight whose squared norms are `length2`."""
    noise = torch.randn(weight.shape, generator=generator).to(weight.dtype)  # drawn in float32: five times faster
    noise.addcmul_(weight, (_dot(noise, weight) / length2).unsqueeze(1), value=-1)
    return torch.nn.functional.normalize(noise, dim=1)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(1)


def start(vectors: int, fan_in: int, norm2: float | Tensor, generator: torch.Generator) -> Tensor:
    """Weights of random directions and a squared norm, in float64."""
    weight = torch.randn(vectors, fan_in, generator=generator, dtype=torch.float64)
    norm = torch.as_tensor(norm2, dtype=torch.float64).sqrt().reshape(-1, 1)
    return (torch.nn.functional.normalize(weight, dim=1) * norm).requires_grad_()
