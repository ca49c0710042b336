"""A multi-layer perceptron."""

from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers with ReLU between them, on flattened images; `norm` puts a batch norm after each hidden layer."""

    def __init__(self, inputs: int, classes: int, hidden: tuple[int, ...] = (256, 256), norm: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise((inputs, *hidden)):
            layers.append(nn.Linear(before, after, bias=not norm))
            if norm:
                layers.append(nn.BatchNorm1d(after))
            layers.append(nn.ReLU())
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(hidden[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, h, w) -> logits (batch, classes)."""
        logits: Tensor = self.head(self.features(images))
        return logits
