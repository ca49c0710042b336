"""Choices of normalisation for image networks."""

from collections.abc import Callable
from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

# `layer` normalises all channels and pixels of an image, `weight` standardises the weights and adds a gain.
Norm = Literal["batch", "layer", "group", "weight", "none"]

# Channels of a group of GroupNorm. Wu & He (2018) find no difference between 16 and 32 groups, and narrow networks
# have fewer than 32 channels.
GROUP_CHANNELS = 16


class ChannelAffine(nn.Module):
    """A gain and a bias per channel, for convolutions whose weights are standardised instead of their outputs."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.affine = nn.GroupNorm(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Apply only the affine part of the norm."""
        shape = (-1,) + (1,) * (x.dim() - 2)
        return x * self.affine.weight.view(shape) + self.affine.bias.view(shape)


def norm_layer(norm: Norm, batch_norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> Callable[[int], nn.Module]:
    """Return a function from a number of channels to the layer that normalises them."""
    makers: dict[str, Callable[[int], nn.Module]] = {
        "batch": batch_norm,
        "layer": lambda channels: nn.GroupNorm(1, channels),
        "group": lambda channels: nn.GroupNorm(max(channels // GROUP_CHANNELS, 1), channels),
        "weight": ChannelAffine,
        "none": lambda channels: nn.Identity(),
    }
    if norm not in makers:
        raise ValueError(f"norm={norm!r} is unknown: choose one of {', '.join(get_args(Norm))}")
    return makers[norm]


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3 × 3 convolution that keeps the size of the image. It has no bias, because a norm follows."""
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def global_average(x: Tensor) -> Tensor:
    """Average (batch, channels, height, width) to (batch, channels)."""
    return F.adaptive_avg_pool2d(x, 1).flatten(1)
