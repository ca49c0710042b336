"""Literal float64 twins of Adam-S, Adam-SRT, SGD-MRT, AdamG, AdamG* and k-Adam, importing nothing from gyroscope.

As in tests/reference.py: a twin is made with a list of float64 weights, takes a list of gradients at each step, and
changes its weights in place. Below them: recorded gradients to feed both to.
"""

import math
from functools import cache
from typing import Any

import torch
from torch import nn


def dot(a, b):
    return (a * b).sum()


def neurons(x):
    """One vector per index of dimension 0; None where none of them can turn."""
    return list(x) if x.dim() >= 2 and x[0].numel() > 1 else None


class Twin:
    """`vector_step(w, g, row, t)` moves one vector with a state of its own, `plain_step` all that does not turn."""

    vector_step: Any
    plain_step: Any
    v0: Any
    stages: Any

    def __init__(self, weights, lr, vectors=neurons, **options):
        self.weights, self.lr, self.vectors, self.t = weights, lr, vectors, 0
        self.states = [{} for _ in weights]
        self.__dict__.update(options)

    def step(self, grads):
        self.t += 1
        for w, g, state in zip(self.weights, grads, self.states, strict=True):
            if self.vectors(w) is None:
                self.plain_step(w, g, state, self.t)
                continue
            rows = state.setdefault("rows", [{} for _ in self.vectors(w)])
            for vector, gradient, row in zip(self.vectors(w), self.vectors(g), rows, strict=True):
                self.vector_step(vector, gradient, row, self.t)


class AdamTwin(Twin):
    betas, eps, wd = (0.9, 0.999), 1e-8, 0.0

    def plain_step(self, w, g, state, t):
        beta1, beta2 = self.betas
        g = g + self.wd * w
        state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
        state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * g * g
        w -= self.lr * (state["m"] / (1 - beta1**t)) / ((state["v"] / (1 - beta2**t)).sqrt() + self.eps)


class AdamSTwin(AdamTwin):
    """SP 61–63; with `transport` the RT of Algorithm 1, without the stray factor of line 10."""

    transport = False

    def vector_step(self, x, g, row, t):
        beta1, beta2 = self.betas
        g = g + self.wd * x
        m = beta1 * row.get("m", 0) + (1 - beta1) * g
        v = beta2 * row.get("v", 0) + (1 - beta2) * dot(g, g) / x.numel()
        new = x - self.lr * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + self.eps)
        if self.transport:
            m = (dot(new, x) * m - dot(m, new) * x) / dot(new, new)
            v = v * dot(x, x) / dot(new, new)
        row["m"], row["v"] = m, v
        x.copy_(new)


class SGDMRTTwin(Twin):
    momentum, wd = 0.9, 0.0

    def plain_step(self, w, g, state, t):
        state["m"] = self.momentum * state.get("m", 0) + g + self.wd * w
        w -= self.lr * state["m"]

    def vector_step(self, x, g, row, t):
        m = self.momentum * row.get("m", 0) + g + self.wd * x
        new = x - self.lr * m
        row["m"] = (dot(new, x) * m - dot(new, m) * x) / dot(new, new)
        x.copy_(new)


class AdamGTwin(AdamTwin):
    """theory.md §4: w = n·u, n fixed."""

    def vector_step(self, w, g, row, t):
        beta1, beta2 = self.betas
        n = row.setdefault("n", w.norm())
        u = w / w.norm()
        h = n * (g - dot(g, u) * u)
        m = beta1 * row.get("m", 0) + (1 - beta1) * h
        v = beta2 * row.get("v", 0) + (1 - beta2) * dot(h, h)
        end = u - self.lr * math.sqrt(1 - beta2**t) / (1 - beta1**t) * m / (v.sqrt() + self.eps)
        end = end / end.norm()
        row["m"], row["v"] = m - dot(m, end) / (1 + dot(u, end)) * (u + end), v
        w.copy_(n * end)


class AdamGStarTwin(AdamTwin):
    """SP 3.2, on the sphere of radius n."""

    def vector_step(self, w, g, row, t):
        n, v = row.setdefault("n", w.norm()), row.setdefault("v", torch.tensor(self.v0, dtype=w.dtype))
        u = w / w.norm()
        h = n * (g - dot(g, u) * u)
        end = u - self.lr * h / v.sqrt()
        row["v"] = self.betas[1] * v + dot(h, h)
        w.copy_(n * end / end.norm())


class KAdamTwin(Twin):
    """CT Algorithm 1; `stages` are pairs (γ_i, β_i), and n + 1 is t."""

    eps, wd, coupled = 1e-30, 0.0, False

    def plain_step(self, theta, g, state, t):
        u = g + self.wd * theta if self.coupled else g
        for i, (gamma, beta) in enumerate(self.stages):
            state["m", i] = gamma * state.get(("m", i), 0) + (1 - gamma) * u
            state["v", i] = beta * state.get(("v", i), 0) + (1 - beta) * u * u
            u = math.sqrt(1 - beta**t) / (1 - gamma**t) * state["m", i] / (state["v", i].sqrt() + self.eps)
        theta -= self.lr * (u if self.coupled else u + self.wd * theta)


def inverse_exp(k, gamma=0.9, beta=0.999):
    return [(1 - (1 - gamma) ** (1 / k), 1 - (1 - beta) ** (1 / k))] * k


class Net(nn.Module):
    """A convolution, a LayerNorm, and a linear weight used twice."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3)
        self.norm = nn.LayerNorm(24)
        self.inner, self.outer = nn.Linear(24, 24, bias=False), nn.Linear(24, 24)
        self.outer.weight = self.inner.weight

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(self.norm(self.conv(x).flatten(1)))))


@cache
def recorded(steps=50):
    """Initial weights and the gradients of each step, float32 numbers in float64."""
    torch.manual_seed(0)
    model, generator = Net(), torch.Generator().manual_seed(1)
    weights, grads = [p.detach().double() for p in model.parameters()], []
    for _ in range(steps):
        x, y = (torch.randn(shape, generator=generator) for shape in ((8, 2, 4, 4), (8, 24)))
        model.zero_grad()
        (model(x) - y).square().mean().backward()
        grads.append([p.grad.double() for p in model.parameters()])
        with torch.no_grad():
            for p in model.parameters():
                p.add_(p.grad, alpha=-0.1)
    return weights, grads


def run(make, dtype=torch.float64, channels_last=False, **options):
    """The weights after each step of the optimizer that `make` builds, on the recorded gradients."""
    layout = {"memory_format": torch.channels_last} if channels_last else {}
    weights, grads = recorded()
    parameters = [nn.Parameter(w.to(dtype, copy=True, **(layout if w.dim() == 4 else {}))) for w in weights]
    optimizer = make(parameters, **options)
    for now in grads:
        for p, g in zip(parameters, now, strict=True):
            p.grad = g.to(dtype)
        optimizer.step()
        yield [p.detach().to(torch.float64, copy=True) for p in parameters]


def twin_run(twin):
    weights, grads = recorded()
    reference = twin([w.clone() for w in weights])
    for now in grads:
        reference.step(now)
        yield [w.clone() for w in reference.weights]


def check_twin(make, twin):
    """Step by step within 1e-12 of the norm in float64, 1e-5 in float32, a convolution being channels-last or not."""
    expected = list(twin_run(twin))
    for channels_last in (False, True):
        assert distance(run(make, torch.float64, channels_last), expected) <= 1e-12
        assert distance(run(make, torch.float32, channels_last), expected) <= 1e-5


def distance(found, expected):
    """Largest difference over steps and vectors, relative to the vector's norm."""
    worst = 0.0
    for now, then in zip(found, expected, strict=True):
        for p, q in zip(now, then, strict=True):
            difference, norm = ((x.reshape(len(x), -1) if x.dim() > 1 else x[None]).norm(dim=1) for x in (p - q, q))
            worst = max(worst, (difference / norm.clamp_min(1e-3)).max().item())
    return worst
