"""Handwritten digits: a data set that comes with scikit-learn, and a small network with batch norm for it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


@dataclass(frozen=True)
class Digits:
    """Images of 8 × 8 pixels from 0 to 1, one channel, and their labels."""

    images: Tensor
    labels: Tensor

    def batches(self, size: int, epochs: int, generator: torch.Generator) -> Iterator["Digits"]:
        """Shuffled batches, every image once an epoch but for those that fill no batch."""
        for _ in range(epochs):
            order = torch.randperm(len(self.labels), generator=generator)
            for part in torch.split(order, size):
                if len(part) == size:
                    yield Digits(self.images[part], self.labels[part])

    def noisy_loss(self, model: nn.Module, noise: float, smoothing: float, generator: torch.Generator) -> Tensor:
        """Cross entropy under input noise and label smoothing, which keep gradients noisy to the end."""
        noisy = self.images + noise * torch.randn(self.images.shape, generator=generator)
        loss: Tensor = cross_entropy(model(noisy), self.labels, label_smoothing=smoothing)
        return loss

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        """Share of images classified correctly, in evaluation mode."""
        was_training = model.training
        model.eval()
        share = float((model(self.images).argmax(1) == self.labels).float().mean())
        model.train(was_training)
        return share


def load(held_out: int = 360) -> tuple[Digits, Digits]:
    """All 1,797 digits, the last `held_out` of them to test on."""
    from sklearn.datasets import load_digits  # takes a second, which other tasks do without

    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    y = torch.tensor(labels)
    return Digits(x[:-held_out], y[:-held_out]), Digits(x[-held_out:], y[-held_out:])


def network(width: int = 32, convolutions: int = 4) -> nn.Sequential:
    """3 × 3 convolutions with batch norm, a pool in the middle, and a linear layer on the average of the image."""
    layers: list[nn.Module] = []
    for i in range(convolutions):
        layers += [nn.Conv2d(width if i else 1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        if i == 1:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
