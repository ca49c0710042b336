"""Literal twins of the optimizers, from the papers, in float64: slow, obvious, and importing nothing from gyroscope.

A twin is made with a list of float64 weights, takes a list of gradients at each step, and changes its weights in
place. `vectors(w)` gives the weight vectors of a tensor as a list of views; by default one per index of dimension 0.
"""

import math

import torch


def neurons(w):
    return list(w) if w.dim() >= 2 and w[0].numel() > 1 else []


def autocorrelation(weights, lags):
    """Of white noise with these weights, from lag 1 on."""
    c = torch.tensor(weights, dtype=torch.float64)
    return [float((c[k:] * c[: len(c) - k]).sum() / (c * c).sum()) for k in range(1, lags)]


class AdamWDirection:
    """-m̂/(√v̂ + ε)."""

    def __init__(self, betas=(0.9, 0.999), eps=1e-8):
        self.betas, self.eps = betas, eps
        self.correlations = [betas[0] ** k for k in range(1, 1000)]

    def __call__(self, w, g, state, t):
        beta1, beta2 = self.betas
        state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
        state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * g * g
        return -(state["m"] / (1 - beta1**t)) / ((state["v"] / (1 - beta2**t)).sqrt() + self.eps)

    def angle(self, lr, wd):
        beta1 = self.betas[0]
        return math.sqrt(2 * lr * wd * (1 - beta1) / (1 + beta1))  # RE Table 1

    def noise_average(self, t):
        """The shrinking of a squared update per step, and the squares of m̂'s weights of the t gradients so far."""
        beta1 = self.betas[0]
        return beta1**2, sum(((1 - beta1) * beta1**k / (1 - beta1**t)) ** 2 for k in range(t))

    def plain(self, w, update, lr, wd):
        return w - lr * wd * w + lr * update


class SGDDirection:
    def __init__(self, momentum=0.9, nesterov=False):
        self.momentum, self.nesterov, self.eps = momentum, nesterov, 0.0
        weights = [(k == 0) * nesterov + momentum ** (k + nesterov) for k in range(500)]
        self.correlations = autocorrelation(weights, 400)

    def __call__(self, w, g, state, t):
        state["m"] = self.momentum * state.get("m", 0) + g
        return -(g + self.momentum * state["m"]) if self.nesterov else -state["m"]

    def angle(self, lr, wd):
        a = self.momentum
        power = (1 + a) ** 2 + a**4 / (1 - a**2) if self.nesterov else 1 / (1 - a**2)
        tau = (1 - a) ** -2 / power
        return math.sqrt(2 * (lr * wd / (1 - a)) / tau)  # the one law; RE Table 1 without Nesterov

    def noise_average(self, t):
        a = self.momentum
        weights = [a**k for k in range(t)]
        if self.nesterov:
            weights = [(k == 0) + a * weight for k, weight in enumerate(weights)]
        return a**2, sum(weight**2 for weight in weights)

    def plain(self, w, update, lr, wd):
        return w + lr * update


class LionDirection:
    def __init__(self, betas=(0.9, 0.99)):
        self.betas, self.eps = betas, 0.0
        weights = [1 - betas[0]] + [betas[0] * (1 - betas[1]) * betas[1] ** (k - 1) for k in range(1, 6000)]
        self.correlations = [2 / math.pi * math.asin(r) for r in autocorrelation(weights, 3000)]  # the arcsine law
        self.tau = 1 + 2 * sum(self.correlations)

    def __call__(self, w, g, state, t):
        beta1, beta2 = self.betas
        m = state.get("m", torch.zeros_like(g))
        state["m"] = beta2 * m + (1 - beta2) * g
        return -torch.sign(beta1 * m + (1 - beta1) * g)

    def angle(self, lr, wd):
        return math.sqrt(2 * lr * wd / self.tau)

    def noise_average(self, t):
        return 1.0, 1.0

    def plain(self, w, update, lr, wd):
        return w - lr * wd * w + lr * update


class AdamL2Direction:
    """Adam with L2 in the gradient: m̂/(√v̂ + ε), m averages g and v the square of G = g + λω.

    A weight that does not turn gets G for both. The special variant (RE section 3) turns the part of the loss, in which
    m averages g alone, by AdamW's angle.
    """

    def __init__(self, betas=(0.9, 0.999), amsgrad=False):
        self.betas, self.amsgrad, self.eps = betas, amsgrad, 1e-8
        self.correlations = [betas[0] ** k for k in range(1, 1000)]

    def __call__(self, w, g, state, t, G=None):
        G = g if G is None else G
        beta1, beta2 = self.betas
        m = state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
        v = state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * G * G
        if self.amsgrad:
            v = state["largest"] = torch.maximum(state.get("largest", v), v)
        return -m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + self.eps)

    def noise_average(self, t):
        return AdamWDirection.noise_average(self, t)

    def angle(self, lr, wd):
        return math.sqrt(2 * lr * wd / 19)  # AdamW's at β1 = 0.9, RE Table 1

    def plain(self, w, update, lr, wd):
        return w + lr * update


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
    """RE Algorithm 1; weights are centred before the first step, and the update instead of the weights thereafter.

    With centre="weights" as it is printed: lines 10 to 13, where the weights are centred after each step. With `noise`
    squared lengths are averaged in units of those expected on noise. Norms that are not fixed grow by e^growth.
    """

    def __init__(
        self, weights, direction, lr, wd, l2=False, beta=0.99, centre=True, vectors=neurons, noise=False, norms="fixed"
    ):
        super().__init__(weights, direction, lr, wd, l2)
        self.beta, self.centre, self.vectors, self.noise, self.norms = beta, centre, vectors, noise, norms

    def centred(self, x):
        return x - x.mean() if self.centre is True else x

    def update(self, w, g, state):
        if not self.vectors(w):
            super().update(w, g, state)
            return
        coupled = (g + self.wd * w,) if isinstance(self.direction, AdamL2Direction) else ()
        update = self.direction(w, g, state, self.t, *coupled)
        shrinking, expected = self.direction.noise_average(self.t) if self.noise else (1.0, 1.0)
        beta = min(self.beta, shrinking)
        rows = state.setdefault("rows", [{"n": v.norm(), "nu": 0.0} for v in self.vectors(w)])
        for v, delta, row in zip(self.vectors(w), self.vectors(update), rows, strict=True):
            n = row["n"]
            if self.t == 1:
                v.copy_(self.centred(v))
                v.mul_(n / v.norm())
            delta = self.centred(delta)
            outward = (delta * v).sum() / v.norm()
            delta = delta - (delta * v).sum() / (v * v).sum() * v
            row["nu"] = beta * row["nu"] + (1 - beta) * (delta * delta).sum() / expected
            rms = (expected * row["nu"] / (1 - beta**self.t)).sqrt() + self.direction.eps
            angle = self.direction.angle(self.lr, self.wd)
            if self.norms != "fixed":
                full = self.direction.noise_average(2000)[1] if self.noise else expected
                growth = self.growth(
                    n, angle * outward / rms, angle * delta.norm() / rms, rms * (full / expected) ** 0.5
                )
                row["n"] = n * math.exp(min(max(growth, -angle), angle))
            v.add_(angle * n * delta / rms)
            if self.centre == "weights":
                v.sub_(v.mean())
            v.mul_(row["n"] / v.norm())

    def growth(self, n, outward, tangent, rms):
        """The radial part of the step less its mean under noise, and the pull to the norm of the plain rule."""
        angle = self.direction.angle(self.lr, self.wd)
        tau = 1 + 2 * sum(self.direction.correlations)
        growth = outward - self.drift(tangent**2)
        if self.norms == "settling":
            growth -= angle**2 * tau / 2 * (1 - (self.lr * rms / (n * angle)) ** 2)
        return float(growth)

    def drift(self, T):
        """Root of D = Σρ·(T + D²) + D² - L·D·(½T + D), L = Σkρ/Σρ, by repeated substitution."""
        rho = self.direction.correlations
        total, D = sum(rho), 0.0
        lag = sum(k * r for k, r in enumerate(rho, start=1)) / total if total else 1.0
        for _ in range(100):
            D = total * (T + D * D) + D * D - lag * D * (T / 2 + D)
        return D


class HyperballTwin(Twin):
    """Hyperball as published: W ← R·u/‖u‖ of u = W - lr·R·U/‖U‖ with the optimizer's update U and R = ‖W_0‖.

    For whole matrices. A zero matrix takes the plain step, and has a radius from the first norm that is not zero.
    """

    def update(self, w, g, state):
        direction = self.direction(w, g, state, self.t)
        R = state.get("R", w.norm())
        if w.dim() < 2 or R == 0:
            w.copy_(self.direction.plain(w, direction, self.lr, self.wd))
            return
        state["R"] = R
        moved = w + self.lr * R * direction / direction.norm()
        w.copy_(R * moved / moved.norm())
