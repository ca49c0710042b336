"""Two layers around a ReLU, whose norms are arbitrary although neither is scale-invariant (RE Appendix L)."""

from typing import NamedTuple

import torch
from torch import Tensor

from gyroscope.tools import positive_array


class ReluPair(NamedTuple):
    """The weights of two layers, (inputs, outputs) as the paper has them, and their biases."""

    first: Tensor
    second: Tensor
    first_bias: Tensor
    second_bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return ReLU(x·W1 + b1)·W2 + b2     (RE 92).

        >>> one = torch.ones(1, 1)
        >>> ReluPair(2 * one, one, one, one)(3 * one).item()
        8.0
        """
        return torch.relu(x @ self.first + self.first_bias) @ self.second + self.second_bias

    def rescaled(self, r: float) -> "ReluPair":
        """Return the pair (r·W1, W2/r, r·b1, b2), which has the same outputs for any r > 0     (RE 93).

        Gradients of W1 become 1/r times as large and those of W2 r times. So a step of SGD changes W1 by r⁻² times as
        much, relative to its norm, and W2 by r² times as much.

        >>> one = torch.ones(1, 1)
        >>> ReluPair(2 * one, one, one, one).rescaled(4.0)(3 * one).item()
        8.0
        """
        positive_array("r", r)
        return ReluPair(r * self.first, self.second / r, r * self.first_bias, self.second_bias)
