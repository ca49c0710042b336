"""VGG (Simonyan & Zisserman 2015) for small images: the published convolutions with a norm, and one linear layer."""

from torch import Tensor, nn

from gyroscope_lab.networks.norms import Norm, conv3x3, global_average, norm_layer

# By depth: (channels, convolutions) of each stage. A pool after each stage halves the image.
CONVOLUTIONS = {
    13: ((64, 2), (128, 2), (256, 2), (512, 2), (512, 2)),
    16: ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)),
}


class VGG(nn.Module):
    """3 × 3 convolutions in stages. An image of 32 pixels is reduced to one pixel."""

    def __init__(self, channels: int, classes: int, depth: int, norm: Norm = "batch") -> None:
        super().__init__()
        make_norm = norm_layer(norm)
        layers: list[nn.Module] = []
        for width, count in CONVOLUTIONS[depth]:
            for _ in range(count):
                # With a bias, as published, although a norm cancels it. The published parameter count includes it.
                layers += [nn.Conv2d(channels, width, 3, padding=1), make_norm(width), nn.ReLU()]
                channels = width
            # `ceil_mode` keeps one pixel of images below 32 pixels.
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (batch, channels, h, w) to logits (batch, classes)."""
        logits: Tensor = self.head(global_average(self.features(images)))
        return logits


class PlainCNN(nn.Module):
    """3 × 3 convolutions of one width with pools between them, and a linear layer on averages of the image.

    A pool follows every `pool_every` convolutions. Averages are over `cells` × `cells` parts of the image.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        width: int = 32,
        convolutions: int = 4,
        pool_every: int = 2,
        cells: int = 1,
        norm: Norm = "batch",
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i in range(1, convolutions + 1):
            layers += [conv3x3(channels, width), norm_layer(norm)(width), nn.ReLU()]
            channels = width
            if i % pool_every == 0 and i < convolutions:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.average = nn.AdaptiveAvgPool2d(cells)
        self.head = nn.Linear(width * cells**2, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (batch, channels, h, w) to logits (batch, classes)."""
        averages = self.average(self.features(images))  # (batch, width, cells, cells)
        logits: Tensor = self.head(averages.flatten(1))
        return logits
