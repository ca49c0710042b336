"""A multi-layer perceptron."""

from torch import Tensor, nn

from gyroscope_lab.networks.norms import Norm, norm_layer


class MLP(nn.Module):
    """Linear layers of one width on flattened images. A norm and a ReLU follow each except the last."""

    def __init__(self, inputs: int, classes: int, width: int = 256, layers: int = 2, norm: Norm = "batch") -> None:
        super().__init__()
        make_norm = norm_layer(norm, nn.BatchNorm1d)
        modules: list[nn.Module] = [nn.Flatten()]
        for i in range(layers):
            modules += [nn.Linear(width if i else inputs, width, bias=norm == "none"), make_norm(width), nn.ReLU()]
        self.features = nn.Sequential(*modules)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (batch, channels, h, w) to logits (batch, classes)."""
        logits: Tensor = self.head(self.features(images))
        return logits
