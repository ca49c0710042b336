"""Vectors of few entries: centring must leave them directions to turn in."""

import math

import pytest
import torch
from torch import nn

from gyroscope.geometry import Split
from gyroscope.optim import Rotational, RotationalAdamW, RotationalLion, RotationalSGD

MAKERS = {
    "RotationalAdamW": lambda params, **options: RotationalAdamW(params, lr=0.01, weight_decay=0.1, **options),
    "RotationalSGD": lambda params, **options: RotationalSGD(params, lr=0.1, weight_decay=0.01, **options),
    "RotationalLion": lambda params, **options: RotationalLion(params, lr=1e-3, weight_decay=1.0, **options),
    "Rotational": lambda params, **options: Rotational(torch.optim.AdamW(params, lr=0.01, weight_decay=0.1), **options),
}
every_variant = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def two_moons(points, generator):
    """Two half circles that reach into each other, with a little noise, and which of them a point is on."""
    angle = math.pi * torch.rand(points, generator=generator)
    moon = torch.arange(points) % 2
    x = torch.where(moon == 0, angle.cos(), 1 - angle.cos())
    y = torch.where(moon == 0, angle.sin(), 0.5 - angle.sin())
    return torch.stack([x, y], 1) + 0.05 * torch.randn(points, 2, generator=generator), moon


def accuracy(make, seed):
    generator = torch.Generator().manual_seed(seed)
    x, target = two_moons(400, generator)
    torch.manual_seed(seed)
    # With norm layers: a rotational variant keeps the norms of weights, which would limit the logits otherwise.
    hidden = [nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()]
    net = nn.Sequential(*hidden, nn.Linear(32, 2))
    optimizer = make(net.parameters())
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), target).backward()
        optimizer.step()
    net.eval()
    new, expected = two_moons(1000, generator)
    return (net(new).argmax(1) == expected).float().mean().item()


@pytest.mark.parametrize("seed", [0, 1])
def test_two_moons_are_told_apart_with_the_defaults(seed):
    assert accuracy(lambda params: torch.optim.AdamW(params, lr=0.01), seed) > 0.99
    assert accuracy(lambda params: RotationalAdamW(params, lr=0.01), seed) > 0.99


@every_variant
@pytest.mark.parametrize(("fan_in", "centred"), [(2, False), (3, False), (4, True), (5, True)])
def test_vectors_of_four_entries_or_more_are_centred(make, fan_in, centred):
    torch.manual_seed(0)
    w = nn.Parameter(torch.randn(6, fan_in))
    optimizer = make([w])
    for step in range(10):
        w.grad = torch.randn(6, fan_in)
        optimizer.step()
        if step == 0:
            first = w.detach().clone()
    assert (Split().angle(first, w.detach()) > 1e-3).all()
    assert (w.detach().mean(1).abs().max() < 1e-6) == centred
