"""Each optimizer against its literal float64 twin, step by step, on recorded gradients; compiled against eager."""

from functools import cache

import pytest
import torch
from torch import nn

from tests.optim.catalogue import compiles, every_compiling, every_optimizer

STEPS = 50


class Tied(nn.Module):
    """Linear, convolution, LayerNorm and a weight used twice."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3)
        self.norm = nn.LayerNorm(24)
        self.inner, self.outer = nn.Linear(24, 24, bias=False), nn.Linear(24, 24)
        self.outer.weight = self.inner.weight

    def forward(self, x):
        x = self.norm(self.conv(x).flatten(1))
        return self.outer(torch.tanh(self.inner(x)))


@cache
def recorded():
    """Initial weights and the gradients of each step, as float32 numbers in float64."""
    torch.manual_seed(0)
    model, generator = Tied(), torch.Generator().manual_seed(1)
    weights = [p.detach().double() for p in model.parameters()]
    grads = []
    for _ in range(STEPS):
        x, y = (torch.randn(shape, generator=generator) for shape in ((8, 2, 4, 4), (8, 24)))
        model.zero_grad()
        (model(x) - y).square().mean().backward()
        grads.append([p.grad.double() for p in model.parameters()])
        with torch.no_grad():
            for p in model.parameters():
                p.add_(p.grad, alpha=-0.1)
    return weights, grads


def distance(p, twin):
    """Largest difference over the vectors, relative to the vector's norm."""
    difference, norm = ((x.reshape(len(x), -1) if x.dim() > 1 else x[None]).norm(dim=1) for x in (p - twin, twin))
    return float((difference / norm.clamp_min(1e-3)).max())


def run(make, dtype, **options):
    weights, grads = recorded()
    parameters = [nn.Parameter(w.to(dtype, copy=True)) for w in weights]
    optimizer = make(parameters, **options)
    for now in grads:
        for p, g in zip(parameters, now, strict=True):
            p.grad = g.to(dtype)
        optimizer.step()
        yield [p.detach().double() for p in parameters]


@every_optimizer
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_each_step_is_the_twins_step(row, dtype, tolerance):
    weights, grads = recorded()
    twin = row.twin([w.clone() for w in weights])
    for now, found in zip(grads, run(row.make, dtype), strict=True):
        twin.step(now)
        for p, expected in zip(found, twin.weights, strict=True):
            assert distance(p, expected) <= tolerance


@compiles
@every_compiling
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_a_compiled_step_is_the_eager_step(row, dtype, tolerance):
    for eager, compiled in zip(run(row.make, dtype), run(row.make, dtype, compile=True), strict=True):
        for p, expected in zip(compiled, eager, strict=True):
            assert distance(p, expected) <= tolerance
