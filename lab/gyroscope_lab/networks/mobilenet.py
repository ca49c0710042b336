"""MobileNet-V2 (Sandler et al. 2018) for small images: its blocks and channels, with smaller strides."""

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gyroscope_lab.networks.norms import Norm, conv3x3, global_average, norm_layer

# Expansion, channels, blocks and stride of each stage (Table 2). Stem and second stage keep the size of the image.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
STEM = 32
LAST = 1280


class InvertedResidual(nn.Module):
    """1 × 1 to more channels, 3 × 3 within each channel, 1 × 1 back, with a shortcut if the shapes are equal."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, norm: Norm) -> None:
        super().__init__()
        make_norm = norm_layer(norm)
        hidden = expansion * inputs
        layers: list[nn.Module] = []
        if expansion > 1:
            layers += [nn.Conv2d(inputs, hidden, 1, bias=False), make_norm(hidden), nn.ReLU6()]
        layers += [
            nn.Conv2d(hidden, hidden, 3, stride, padding=1, groups=hidden, bias=False),
            make_norm(hidden),
            nn.ReLU6(),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            make_norm(outputs),
        ]
        self.layers = nn.Sequential(*layers)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, outputs, h/stride, w/stride)."""
        y: Tensor = self.layers(x)
        return x + y if self.is_residual else y


class MobileNet(nn.Module):
    """A stem, inverted residuals in stages, a 1 × 1 convolution and a linear layer. `width` multiplies all channels."""

    def __init__(self, channels: int, classes: int, norm: Norm = "batch", width: float = 1.0) -> None:
        super().__init__()
        make_norm = norm_layer(norm)
        inputs = _scaled(STEM, width)
        self.conv = conv3x3(channels, inputs)
        self.norm = make_norm(inputs)
        blocks: list[nn.Module] = []
        for expansion, stage_channels, count, stride in STAGES:
            outputs = _scaled(stage_channels, width)
            for block in range(count):
                blocks.append(InvertedResidual(inputs, outputs, stride if block == 0 else 1, expansion, norm))
                inputs = outputs
        last = _scaled(LAST, width)
        self.blocks = nn.Sequential(*blocks)
        self.conv_last = nn.Conv2d(inputs, last, 1, bias=False)
        self.norm_last = make_norm(last)
        self.head = nn.Linear(last, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (batch, channels, h, w) to logits (batch, classes)."""
        x = self.blocks(F.relu6(self.norm(self.conv(images))))
        x = F.relu6(self.norm_last(self.conv_last(x)))
        logits: Tensor = self.head(global_average(x))
        return logits


def _scaled(channels: int, width: float) -> int:
    """Return the scaled channels, rounded to a multiple of 4 so that stages of narrow networks still differ."""
    return max(round(channels * width / 4) * 4, 4)
