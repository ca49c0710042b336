"""A random walk of many weight vectors under literal update rules: the ground truth that closed forms are held against.

Gradients are white noise in the tangent space, of norm unit_grad_norm / ‖w‖: what a scale-invariant weight feels where
noise dominates. Nothing here is imported from gyroscope; each rule is written out in float64 as its paper has it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
State = dict[str, Array]


@dataclass(frozen=True)
class Walk:
    """RMS norm over vectors after each step, and mean angle of each step."""

    norm: Array
    angle: Array


def walk(
    step: Callable[..., Array], lrs: Array, norm: float, *, vectors=128, dim=128, unit_grad_norm=1.0, seed=0
) -> Walk:
    """Run `step(w, g, state, lr, t)` from vectors of the given norm; t counts from 1."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((vectors, dim))
    w *= norm / np.linalg.norm(w, axis=1, keepdims=True)
    state: State = {}
    noise = np.empty_like(w)
    norms, angles = np.empty(len(lrs)), np.empty(len(lrs))
    for t, lr in enumerate(lrs, start=1):
        rng.standard_normal(out=noise)
        length2 = row_dot(w, w)
        g = noise - w * (row_dot(noise, w) / length2)[:, None]
        # E‖g‖² over the dim - 1 tangent directions
        g *= (unit_grad_norm / np.sqrt((dim - 1) * length2))[:, None]
        new = step(w, g, state, lr, t)
        norms[t - 1] = np.sqrt(row_dot(new, new).mean())
        angles[t - 1] = angle_between(w, new).mean()
        w = new
    return Walk(norms, angles)


def row_dot(x: Array, y: Array) -> Array:
    """Return the inner product of each row of x with its twin in y, without an array of products."""
    return np.einsum("ij,ij->i", x, y)


def angle_between(w: Array, new: Array) -> Array:
    length2 = row_dot(w, w)
    along = row_dot(w, new) / length2
    across = new - along[:, None] * w
    return np.arctan2(np.sqrt(row_dot(across, across)), along * np.sqrt(length2))


def sgdm(weight_decay, momentum=0.0, nesterov=False):
    def step(w, g, state, lr, t):
        g = g + weight_decay * w
        m = state["m"] = momentum * state.get("m", 0.0) + g
        return w - lr * (g + momentum * m if nesterov else m)

    return step


def adamw(weight_decay, betas=(0.9, 0.999), peak_lr=None):
    def step(w, g, state, lr, t):
        decay = lr * weight_decay if peak_lr is None else weight_decay * lr**2 / peak_lr
        return (1 - decay) * w - lr * _adam_direction(g, state, betas, t)

    return step


def adam_l2(weight_decay, betas=(0.9, 0.999)):
    return lambda w, g, state, lr, t: w - lr * _adam_direction(g + weight_decay * w, state, betas, t)


def nadam(weight_decay, betas=(0.9, 0.999), coupled=False):
    def step(w, g, state, lr, t):
        beta1, beta2 = betas
        g = g + weight_decay * w if coupled else g
        m = state["m"] = beta1 * state.get("m", 0.0) + (1 - beta1) * g
        v = state["v"] = beta2 * state.get("v", 0.0) + (1 - beta2) * g * g
        ahead = beta1 * m / (1 - beta1 ** (t + 1)) + (1 - beta1) * g / (1 - beta1**t)
        decay = 0.0 if coupled else lr * weight_decay
        return (1 - decay) * w - lr * ahead / np.sqrt(v / (1 - beta2**t))

    return step


def lion(weight_decay, betas=(0.9, 0.99)):
    def step(w, g, state, lr, t):
        m = state.get("m", np.zeros_like(w))
        update = np.sign(betas[0] * m + (1 - betas[0]) * g)
        state["m"] = betas[1] * m + (1 - betas[1]) * g
        return (1 - lr * weight_decay) * w - lr * update

    return step


def adam_s(weight_decay, betas=(0.9, 0.999), transport=False):
    """Adam-S, and with `transport` Adam-SRT (SP Algorithm 1)."""

    def step(w, g, state, lr, t):
        (beta1, beta2), G = betas, g + weight_decay * w
        m = beta1 * state.get("m", 0.0) + (1 - beta1) * G
        v = beta2 * state.get("v", 0.0) + (1 - beta2) * (G * G).mean(1, keepdims=True)
        new = w - lr * m / (1 - beta1**t) / np.sqrt(v / (1 - beta2**t))
        state["m"], state["v"] = m, v
        if transport:
            state["m"] = transported(w, new, m)
            state["v"] = v * ((w * w).sum(1) / (new * new).sum(1))[:, None]
        return new

    return step


def sgd_mrt(weight_decay, momentum=0.9):
    def step(w, g, state, lr, t):
        m = momentum * state.get("m", 0.0) + g + weight_decay * w
        new = w - lr * m
        state["m"] = transported(w, new, m)
        return new

    return step


def transported(w: Array, new: Array, m: Array) -> Array:
    """SP's RT."""

    def dot(a, b):
        return (a * b).sum(1, keepdims=True)

    return (dot(new, w) * m - dot(new, m) * w) / dot(new, new)


def _adam_direction(g, state, betas, t):
    beta1, beta2 = betas
    m = state["m"] = beta1 * state.get("m", 0.0) + (1 - beta1) * g
    v = state["v"] = beta2 * state.get("v", 0.0) + (1 - beta2) * g * g
    return m / (1 - beta1**t) / np.sqrt(v / (1 - beta2**t))
