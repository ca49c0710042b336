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
        """Yield shuffled batches. Every image comes once per epoch, except those that do not fill a batch."""
        for _ in range(epochs):
            order = torch.randperm(len(self.labels), generator=generator)
            for part in torch.split(order, size):
                if len(part) == size:
                    yield Digits(self.images[part], self.labels[part])

    @torch.no_grad()
    def scores(self, model: nn.Module) -> dict[str, float]:
        """Return the cross entropy and the share of images classified correctly, in evaluation mode."""
        was_training = model.training
        model.eval()
        logits = model(self.images)
        model.train(was_training)
        right = logits.argmax(1) == self.labels
        return {
            "held_out_loss": float(cross_entropy(logits, self.labels)),
            "held_out_accuracy": float(right.float().mean()),
        }


def load(held_out: int = 360) -> tuple[Digits, Digits]:
    """Return training and test digits, 1,797 in total. The last `held_out` are for the test."""
    from sklearn.datasets import load_digits  # takes a second to import, and other tasks do not need it

    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    y = torch.tensor(labels)
    return Digits(x[:-held_out], y[:-held_out]), Digits(x[-held_out:], y[-held_out:])


def network(width: int = 32, convolutions: int = 4) -> nn.Sequential:
    """Return 3 × 3 convolutions with batch norm and a pool, and a linear layer on the average of the image."""
    layers: list[nn.Module] = []
    for i in range(convolutions):
        layers += [nn.Conv2d(width if i else 1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        if i == 1:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
