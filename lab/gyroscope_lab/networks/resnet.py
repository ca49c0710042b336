"""Residual networks for small images: ResNet-20 (He et al. 2016, section 4.2) and ResNet-18 with a 3 × 3 stem."""

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gyroscope_lab.networks.norms import Norm, conv3x3, global_average, norm_layer


class PaddedShortcut(nn.Module):
    """A shortcut without parameters: every second pixel, and zeros for the new channels (He's option A)."""

    def __init__(self, new_channels: int) -> None:
        super().__init__()
        self.new_channels = new_channels

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, c, h, w) to (batch, c + new, h/2, w/2)."""
        before = self.new_channels // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, before, self.new_channels - before))


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm, projection: bool) -> None:
        super().__init__()
        make_norm = norm_layer(norm)
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.norm1 = make_norm(outputs)
        self.conv2 = conv3x3(outputs, outputs)
        self.norm2 = make_norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 and projection:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), make_norm(outputs))
        elif stride > 1:
            self.shortcut = PaddedShortcut(outputs - inputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, outputs, h/stride, w/stride)."""
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """Stages of blocks. Each stage after the first halves the image and has more channels."""

    def __init__(
        self, channels: int, classes: int, widths: tuple[int, ...], blocks: int, norm: Norm, projection: bool
    ) -> None:
        super().__init__()
        self.conv = conv3x3(channels, widths[0])
        self.norm = norm_layer(norm)(widths[0])
        layers: list[nn.Module] = []
        inputs = widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(BasicBlock(inputs, width, stride, norm, projection))
                inputs = width
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (batch, channels, h, w) to logits (batch, classes)."""
        x = F.relu(self.norm(self.conv(images)))
        logits: Tensor = self.head(global_average(self.blocks(x)))
        return logits


def resnet20(channels: int, classes: int, norm: Norm = "batch", width: int = 16, blocks: int = 3) -> ResNet:
    """Return ResNet-20: 3 stages of 3 blocks, 16 to 64 channels, shortcuts without parameters. 0.27M parameters.

    `width` is the number of channels of the first stage, and `blocks` the number of blocks of each stage. The network
    has 6·blocks + 2 layers.
    """
    return ResNet(channels, classes, (width, 2 * width, 4 * width), blocks, norm, projection=False)


def resnet18(channels: int, classes: int, norm: Norm = "batch") -> ResNet:
    """Return ResNet-18 for small images: no pooling after the stem, 1 × 1 projections. 11.2M parameters."""
    return ResNet(channels, classes, (64, 128, 256, 512), 2, norm, projection=True)
