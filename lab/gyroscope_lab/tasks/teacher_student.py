"""A batch-normalised layer that learns the outputs of another: the smallest loss that is scale-invariant per neuron."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class TeacherStudent:
    """Inputs (batch, fan_in) and the normalised outputs (batch, neurons) that are asked for; in float64."""

    inputs: Tensor
    targets: Tensor

    @classmethod
    def draw(cls, neurons: int, fan_in: int, batch: int, generator: torch.Generator) -> Self:
        """A random teacher on random inputs of unequal scales."""
        scale = torch.logspace(-1, 0, fan_in, dtype=torch.float64)
        inputs = torch.randn(batch, fan_in, generator=generator, dtype=torch.float64) * scale
        teacher = torch.randn(neurons, fan_in, generator=generator, dtype=torch.float64)
        return cls(inputs, standardised(inputs @ teacher.T))

    def part(self, first: int, count: int) -> Self:
        """The task on some of its inputs, counted round and round: a batch."""
        rows = torch.arange(first, first + count) % len(self.inputs)
        return type(self)(self.inputs[rows], self.targets[rows])

    def loss(self, weight: Tensor) -> Tensor:
        """Half the mean square distance from the teacher, summed over neurons; blind to the norm of each row."""
        return 0.5 * (standardised(self.inputs @ weight.T) - self.targets).square().mean(0).sum()

    def gradient(self, weight: Tensor) -> Tensor:
        """The gradient of the loss at a weight."""
        leaf = weight.detach().requires_grad_()
        return torch.autograd.grad(self.loss(leaf), leaf)[0]


def standardised(x: Tensor) -> Tensor:
    """Batch normalisation without eps, which would make the loss see norms."""
    return (x - x.mean(0)) / x.std(0, correction=0)


def directions(weight: Tensor) -> Tensor:
    """The direction of each row."""
    return torch.nn.functional.normalize(weight.detach(), dim=1)
