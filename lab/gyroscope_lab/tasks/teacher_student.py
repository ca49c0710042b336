"""A batch-normalised layer that learns the outputs of another: the smallest scale-invariant loss per neuron."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class TeacherStudent:
    """Inputs (batch, fan_in) and normalised target outputs (batch, neurons), in float64."""

    inputs: Tensor
    targets: Tensor

    @classmethod
    def draw(cls, neurons: int, fan_in: int, batch: int, generator: torch.Generator) -> Self:
        """Draw a random teacher and random inputs of unequal scales."""
        scale = torch.logspace(-1, 0, fan_in, dtype=torch.float64)
        inputs = torch.randn(batch, fan_in, generator=generator, dtype=torch.float64) * scale
        teacher = torch.randn(neurons, fan_in, generator=generator, dtype=torch.float64)
        return cls(inputs, standardised(inputs @ teacher.T))

    def part(self, first: int, count: int) -> Self:
        """Return a batch: the task on `count` of its inputs from `first` on, starting over at the end."""
        rows = torch.arange(first, first + count) % len(self.inputs)
        return type(self)(self.inputs[rows], self.targets[rows])

    def loss(self, weight: Tensor) -> Tensor:
        """Return half the mean square distance from the teacher, summed over neurons. It ignores the norms of rows."""
        return 0.5 * (standardised(self.inputs @ weight.T) - self.targets).square().mean(0).sum()

    def gradient(self, weight: Tensor) -> Tensor:
        """Return the gradient of the loss at a weight."""
        leaf = weight.detach().requires_grad_()
        return torch.autograd.grad(self.loss(leaf), leaf)[0]


def standardised(x: Tensor) -> Tensor:
    """Return batch-normalised values. There is no eps, because it would make the loss depend on norms."""
    return (x - x.mean(0)) / x.std(0, correction=0)


def directions(weight: Tensor) -> Tensor:
    """Return the direction of each row."""
    return torch.nn.functional.normalize(weight.detach(), dim=1)
