"""A real check: a small BatchNorm network learns scikit-learn's digits as well when its rotation is controlled."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from gyroscope.model.groups import param_groups
from gyroscope.optim import RotationalAdamW

pytestmark = pytest.mark.slow

SEEDS = (0, 1, 2)


def digits():
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8)[order] / 8 - 1
    y = torch.tensor(labels)[order]
    return (x[:1300], y[:1300]), (x[1300:], y[1300:])


def network() -> nn.Module:
    def block(inputs, outputs):
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(1, 16), *block(16, 32), nn.MaxPool2d(2), *block(32, 32), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(32, 10)
    )


def accuracy(optimizer_class, seed: int, epochs: int = 12) -> float:
    (x, y), (x_test, y_test) = digits()
    torch.manual_seed(seed)
    model = network()
    optimizer = optimizer_class(param_groups(model, weight_decay=0.5), lr=1e-2, betas=(0.9, 0.99))
    steps = epochs * (len(y) // 100)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        if step % (len(y) // 100) == 0:
            order = torch.randperm(len(y))
        batch = order[step * 100 % 1300 : step * 100 % 1300 + 100]
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        return float((model(x_test).argmax(1) == y_test).float().mean())


def test_rotational_adamw_is_as_accurate_as_adamw_on_digits():
    plain = [accuracy(torch.optim.AdamW, seed) for seed in SEEDS]
    rotational = [accuracy(RotationalAdamW, seed) for seed in SEEDS]
    mean_plain, mean_rotational = sum(plain) / 3, sum(rotational) / 3
    assert mean_plain >= 0.95, plain
    assert mean_rotational >= 0.95, rotational
    assert mean_rotational >= mean_plain - 0.01, (plain, rotational)
