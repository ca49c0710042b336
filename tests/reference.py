"""Literal twins of the optimizers, from the papers, in float64: slow, obvious, and importing nothing from gyroscope.

A twin is made with a list of float64 weights, takes a list of gradients at each step, and changes its weights in
place. `vectors(w)` gives the weight vectors of a tensor as a list of views; by default one per index of dimension 0.
"""

import math

import torch


def neurons(w):
    return list(w) if w.dim() >= 2 and w[0].numel() > 1 else []


class AdamWDirection:
    """-m̂/(√v̂ + ε)."""

    def __init__(self, betas=(0.9, 0.999), eps=1e-8):
        self.betas, self.eps = betas, eps

    def __call__(self, w, g, state, t):
        beta1, beta2 = self.betas
        state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
        state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * g * g
        return -(state["m"] / (1 - beta1**t)) / ((state["v"] / (1 - beta2**t)).sqrt() + self.eps)

    def angle(self, lr, wd):
        beta1 = self.betas[0]
        return math.sqrt(2 * lr * wd * (1 - beta1) / (1 + beta1))  # RE Table 1

    def plain(self, w, update, lr, wd):
        return w - lr * wd * w + lr * update


class SGDDirection:
    def __init__(self, momentum=0.9, nesterov=False):
        self.momentum, self.nesterov, self.eps = momentum, nesterov, 0.0

    def __call__(self, w, g, state, t):
        state["m"] = self.momentum * state.get("m", 0) + g
        return -(g + self.momentum * state["m"]) if self.nesterov else -state["m"]

    def angle(self, lr, wd):
        a = self.momentum
        power = (1 + a) ** 2 + a**4 / (1 - a**2) if self.nesterov else 1 / (1 - a**2)
        tau = (1 - a) ** -2 / power
        return math.sqrt(2 * (lr * wd / (1 - a)) / tau)  # the one law; RE Table 1 without Nesterov

    def plain(self, w, update, lr, wd):
        return w + lr * update


class LionDirection:
    def __init__(self, betas=(0.9, 0.99)):
        self.betas, self.eps = betas, 0.0
        self.tau = self.correlation_time()

    def __call__(self, w, g, state, t):
        beta1, beta2 = self.betas
        m = state.get("m", torch.zeros_like(g))
        state["m"] = beta2 * m + (1 - beta2) * g
        return -torch.sign(beta1 * m + (1 - beta1) * g)

    def angle(self, lr, wd):
        return math.sqrt(2 * lr * wd / self.tau)

    def correlation_time(self):
        beta1, beta2 = self.betas
        weights = [1 - beta1] + [beta1 * (1 - beta2) * beta2 ** (k - 1) for k in range(1, 6000)]
        c = torch.tensor(weights, dtype=torch.float64)
        rho = [float((c[k:] * c[: len(c) - k]).sum() / (c * c).sum()) for k in range(1, 3000)]
        return 1 + 4 / math.pi * sum(math.asin(r) for r in rho)  # the arcsine law

    def plain(self, w, update, lr, wd):
        return w - lr * wd * w + lr * update


class Twin:
    """The rule's own step for every parameter. `l2` puts the decay into the gradient, as torch's SGD does."""

    def __init__(self, weights, direction, lr, wd, l2=False):
        self.weights, self.direction, self.lr, self.wd, self.l2 = weights, direction, lr, wd, l2
        self.states, self.t = [{} for _ in weights], 0

    def step(self, grads):
        self.t += 1
        for w, g, state in zip(self.weights, grads, self.states, strict=True):
            self.update(w, g, state)

    def update(self, w, g, state):
        g = g + self.wd * w if self.l2 else g
        w.copy_(self.direction.plain(w, self.direction(w, g, state, self.t), self.lr, self.wd))


class RotationalTwin(Twin):
    """RE Algorithm 1; weights are centred before the first step, and the update instead of the weights thereafter."""

    def __init__(self, weights, direction, lr, wd, l2=False, beta=0.99, centre=True, vectors=neurons):
        super().__init__(weights, direction, lr, wd, l2)
        self.beta, self.centre, self.vectors = beta, centre, vectors

    def centred(self, x):
        return x - x.mean() if self.centre else x

    def update(self, w, g, state):
        if not self.vectors(w):
            super().update(w, g, state)
            return
        update = self.direction(w, g, state, self.t)
        rows = state.setdefault("rows", [{"n": v.norm(), "nu": 0.0} for v in self.vectors(w)])
        for v, delta, row in zip(self.vectors(w), self.vectors(update), rows, strict=True):
            n = row["n"]
            if self.t == 1:
                v.copy_(self.centred(v))
                v.mul_(n / v.norm())
            delta = self.centred(delta)
            delta = delta - (delta * v).sum() / (v * v).sum() * v
            row["nu"] = self.beta * row["nu"] + (1 - self.beta) * (delta * delta).sum()
            rms = (row["nu"] / (1 - self.beta**self.t)).sqrt() + self.direction.eps
            v.add_(self.direction.angle(self.lr, self.wd) * n * delta / rms)
            v.mul_(n / v.norm())
