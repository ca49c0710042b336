"""Weights under gradients of a prescribed size: the setting of Spherical Motion Dynamics, with a real optimizer.

A scale-invariant weight w has gradients tangent to the sphere and 1/‖w‖ in size. Here each vector gets such a gradient
in a random direction, with unit norm ‖g‖·‖w‖ = sqrt(L_t) for any sequence L_t.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.optim import SGD

from gyroscope.geometry import Split
from gyroscope.theory import SGDM

# One weight vector per row.
ROWS = Split()


@dataclass(frozen=True)
class Trace:
    """Measurements of every step and vector: arrays (steps, vectors)."""

    norm2: Tensor
    """‖w‖² after the step."""
    angle: Tensor
    """Angle turned by the step, in radians."""
    h: Tensor
    """(‖g‖² + 2α⟨v, g⟩)·‖w‖², v the momentum before the step: SMD's h̃, which is L_t without momentum."""


@dataclass(frozen=True, kw_only=True)
class SGDConfig:
    """Settings for one momentum. L_t is `level`, up to ± `noise`."""

    momentum: float
    weight_decay: float
    vectors: int
    fan_in: int
    seeds: int = 3
    lr: float = 0.1
    level: float = 10.0
    noise: float = 3.0

    @property
    def rule(self) -> SGDM:
        """SGD with this momentum."""
        return SGDM(self.lr, self.weight_decay, self.momentum)

    @property
    def optimizer_name(self) -> str:
        """For a title."""
        return f"SGD with momentum {self.momentum:g}" if self.momentum else "SGD"


@dataclass(frozen=True, kw_only=True)
class MomentaConfig:
    """Settings for several momenta with the same decay a = lr·wd/(1-α), one after the other."""

    decay: float
    noise: float
    vectors: int
    fan_in: int
    seeds: int = 3
    lr: float = 0.1
    momenta: tuple[float, ...] = (0.0, 0.9)

    @property
    def parts(self) -> tuple[float, ...]:
        """One momentum after the other."""
        return self.momenta

    def rule(self, momentum: float) -> SGDM:
        """Return the rule with this momentum."""
        return SGDM(self.lr, self.decay * (1 - momentum) / self.lr, momentum)


def uniform_noise(steps: int, vectors: int, generator: torch.Generator) -> Tensor:
    """Return noise between -1 and 1, (steps, vectors)."""
    return 2 * torch.rand(steps, vectors, generator=generator, dtype=torch.float64) - 1


def equilibrium_norm2(rule: SGDM, unit_norm2: float) -> float:
    """Return (w*)², the ‖w‖² of equilibrium under gradients of squared unit norm L (SMD Theorems 1 and 2)."""
    return float(rule.equilibrium(unit_grad_norm=unit_norm2**0.5).norm or 0.0) ** 2


def equilibrium_angle(rule: SGDM) -> float:
    """Return the angle per step in equilibrium, in radians (SMD Theorem 3)."""
    return float(rule.equilibrium(leading_order=True).angular_update or 0.0)


@final
class DrivenWeights:
    """Weight vectors under torch's SGD with tangent gradients of prescribed size.

    rule       the optimizer
    fan_in     entries of a vector
    norm2      ‖w_0‖² of each vector, whose direction is random
    generator  of all directions
    """

    def __init__(self, rule: SGDM, fan_in: int, norm2: Tensor, generator: torch.Generator) -> None:
        direction = normalize(torch.randn(len(norm2), fan_in, generator=generator, dtype=torch.float64), dim=1)
        self.weight = (direction * norm2.sqrt().unsqueeze(1)).requires_grad_()
        self.optimizer = SGD([self.weight], rule.lr, rule.momentum, weight_decay=rule.weight_decay)
        self.generator = generator

    def drive(self, unit_norm2: Tensor, steps: Iterable[int], *, angles: bool = True) -> Trace:
        """Take the steps that index `unit_norm2`, the squared unit norms L_t (steps, vectors).

        Measuring angles is optional, because it takes half as long again.
        """
        alpha = self.optimizer.param_groups[0]["momentum"]
        state = self.optimizer.state[self.weight]
        norm2, angle, h = (torch.zeros_like(unit_norm2) for _ in range(3))
        for t in steps:
            before = self.weight.detach().clone()
            length2 = _dot(before, before)
            gradient = _tangent(before, length2, self.generator) * (unit_norm2[t] / length2).sqrt().unsqueeze(1)
            momentum = state.get("momentum_buffer") if alpha else None
            cross = 0.0 if momentum is None else 2 * alpha * _dot(momentum, gradient)
            h[t] = (_dot(gradient, gradient) + cross) * length2
            self.weight.grad = gradient
            self.optimizer.step()
            after = self.weight.detach()
            norm2[t] = _dot(after, after)
            if angles:
                angle[t] = ROWS.angle(before, after)
        return Trace(norm2, angle, h)


def _tangent(weight: Tensor, length2: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random unit vector orthogonal to each row of a weight whose squared norms are `length2`."""
    noise = torch.randn(weight.shape, generator=generator).to(weight.dtype)  # drawn in float32: five times faster
    noise.addcmul_(weight, (_dot(noise, weight) / length2).unsqueeze(1), value=-1)
    return normalize(noise, dim=1)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(1)
