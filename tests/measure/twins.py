"""Brute-force twins of the measured quantities: float64, one vector at a time, from what a step did.

A twin takes a `Moment`, the vector before and after the step with its gradient and the optimizer's memory of it, and
knows nothing of the tracker. `None` stands for what is not there.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Moment:
    """One vector in one step: weights, gradient, momentum before, second moment after, and the optimizer's options."""

    w: torch.Tensor
    new: torch.Tensor
    g: torch.Tensor
    m: torch.Tensor | None
    v: torch.Tensor | None
    t: int
    group: dict[str, Any]
    kind: str
    """SGD, Adam (L2), AdamW, Lion, Rotational or unknown: what the formulas tell apart."""
    earlier: torch.Tensor | None = None
    """The weights before the previous sample's step."""
    first: torch.Tensor | None = None
    """The weights before the first sample's step."""
    predicted: float = math.nan

    @property
    def b(self):
        """Adam's denominator √v̂ + ε, entry by entry."""
        return (self.v / (1 - self.group["betas"][1] ** self.t)).sqrt() + self.group["eps"]


def angle(a, b):
    """By the half-angle formula; NaN without a direction."""
    if not a.any() or not b.any():
        return math.nan
    a, b = a / a.norm(), b / b.norm()
    return 2 * math.atan2((a - b).norm(), (a + b).norm())


def angular_update(x):
    return angle(x.w, x.new)


def norm(x):
    return math.sqrt(sum(e * e for e in x.new.tolist()))


def update_norm(x):
    return math.sqrt(sum((b - a) ** 2 for a, b in zip(x.w.tolist(), x.new.tolist(), strict=True)))


def radial_update(x):
    return torch.dot(x.new - x.w, x.w / x.w.norm()).item()


def tangential_update(x):
    u = x.w / x.w.norm()
    return (x.new - x.w - torch.dot(x.new - x.w, u) * u).norm().item()


def unit_grad_norm(x):
    return x.g.norm().item() * x.w.norm().item()


def grad_weight_cosine(x):
    return torch.dot(x.g, x.w).item() / (x.g.norm().item() * x.w.norm().item())


def grad_momentum_cosine(x):
    if x.m is None or not x.m.any():
        return math.nan
    return torch.dot(x.g, x.m).item() / (x.g.norm().item() * x.m.norm().item())


def gradient_beside_decay(x):
    """The gradient in the unit in which weight decay is added to it."""
    if x.kind in ("AdamW", "Rotational"):
        return x.g / x.b
    if x.kind == "Lion":
        beta1 = x.group["betas"][0]
        c = (1 - beta1) * x.g + (beta1 * x.m if x.m is not None else 0)
        return x.g * math.sqrt(2 * len(c) / math.pi) / c.norm()
    return x.g * math.nan if x.kind == "unknown" else x.g


def lambda_u(x):
    return torch.dot(x.w, gradient_beside_decay(x)).item() / torch.dot(x.w, x.w).item()


def lambda_e(x):
    return x.group["weight_decay"] + lambda_u(x)


def scale(name, x):
    """The size that a quantity of either sign would have if nothing in it cancelled; 0 for one that cannot cancel."""
    if name in ("lambda_u", "lambda_e"):
        return (gradient_beside_decay(x).norm() / x.w.norm()).item()
    if "cosine" in name:
        return 1.0
    return update_norm(x) if name == "radial_update" else 0.0


def scaled_grad_norm(x):
    if x.v is None:
        return math.nan
    return (x.g / x.b).norm().item() / math.sqrt(len(x.g))


def effective_lr(x):
    """η_e of SP's generic scheme, literally: x' = x - lr·a/b with b as SP's Table 1 has it."""
    lr, r, d = x.group["lr"], x.w.norm(), len(x.w)
    b = torch.ones_like(x.w)
    if x.v is not None:
        beta1 = x.group["betas"][0]
        b = x.b * (1 - beta1**x.t) / (1 - beta1)
    a = (x.w - x.new) / lr * b
    size = b.norm() / math.sqrt(d)
    c, u = r * a / (b / size), x.w / r
    A = lr / (r * r * size)
    return (A / (1 - A * torch.dot(c, u))).item()


def max_update(x):
    decay = x.group["lr"] * x.group["weight_decay"] if x.kind in ("AdamW", "Lion") else 0.0
    return max(abs(new - (1 - decay) * w) for w, new in zip(x.w.tolist(), x.new.tolist(), strict=True)) / x.group["lr"]


def accumulated_angle(x):
    return math.nan if x.earlier is None else angle(x.earlier, x.w)


def angle_to_start(x):
    return angle(x.first, x.w)


def rotation_discrepancy(x):
    return (x.predicted / angle(x.w, x.new)) ** 2


# Of a whole layer: the twin takes the moments of all its vectors.


def predicted_angular_update(layer):
    """To leading order."""
    return equilibrium(layer)[0]


def predicted_norm(layer):
    return equilibrium(layer)[1]


def predicted_timescale(layer):
    return equilibrium(layer)[2]


def equilibrium(layer):
    """Angle, norm and timescale to leading order (RE Table 1); the tracker's are exact, a few lr·λ away."""
    group, kind, C = layer[0].group, layer[0].kind, len(layer[0].w)
    lr, wd = group["lr"], group["weight_decay"]
    if kind in ("AdamW", "Rotational"):
        tau = (1 + group["betas"][0]) / (1 - group["betas"][0])
        return math.sqrt(2 * lr * wd / tau), math.sqrt(lr * C / (2 * wd)), 1 / (lr * wd)
    if kind == "SGD":
        alpha = group["momentum"]
        unit = sum(unit_grad_norm(x) ** 2 for x in layer) / len(layer)
        norm = (lr * unit / (2 * wd * (1 - alpha))) ** 0.25
        if group["nesterov"]:
            tau = (1 - alpha) ** -2 / ((1 + alpha) ** 2 + alpha**4 / (1 - alpha**2))
            return math.sqrt(2 * lr * wd / (1 - alpha) / tau), norm, (1 - alpha) / (lr * wd)
        return math.sqrt(2 * lr * wd / (1 + alpha)), norm, (1 - alpha) / (lr * wd)
    return math.nan, math.nan, math.nan


def lr(layer):
    return layer[0].group["lr"]


def weight_decay(layer):
    return layer[0].group["weight_decay"]


def highest_lr(layer):
    """Of runs that are sampled at every step."""
    return layer[0].group["lr"]


def lr_jump_step(layer):
    """Of runs whose settings stay."""
    return math.nan


lr_before_jump = lr_jump_step
setting_jump_step = lr_jump_step


def skipped_steps(layer):
    """Of runs without a GradScaler."""
    return 0


def beta1(layer):
    group = layer[0].group
    return group["betas"][0] if "betas" in group else group.get("momentum", math.nan)


def beta2(layer):
    return layer[0].group["betas"][1] if "betas" in layer[0].group else math.nan


def dead_vectors(layer):
    return sum(1 for x in layer if not x.g.any())


def non_finite(layer):
    broken = (x for x in layer if not all(torch.isfinite(y).all() for y in (x.w, x.new, x.g)))
    return sum(1 for _ in broken) / len(layer)


def frozen_entries(layer):
    pairs = ((w, new, g) for x in layer for w, new, g in zip(x.w.tolist(), x.new.tolist(), x.g.tolist(), strict=True))
    return sum(1 for w, new, g in pairs if g != 0 and w == new) if layer[0].group["lr"] else 0


def entries(layer):
    return sum(len(x.w) for x in layer)


def moments_of(layer):
    """Σm̂² and Σv̂ after the step, entry by entry; None but for Adam with decoupled decay."""
    if layer[0].kind not in ("AdamW", "Rotational"):
        return None
    beta1, beta2 = layer[0].group["betas"]
    first = second = 0.0
    for x in layer:
        before = torch.zeros_like(x.g) if x.m is None else x.m
        m = (beta1 * before + (1 - beta1) * x.g) / (1 - beta1**x.t)
        first += (m * m).sum().item()
        second += (x.v / (1 - beta2**x.t)).sum().item()
    return first, second


def signal_ratio(layer):
    sums = moments_of(layer)
    if sums is None:
        return math.nan
    first, second = sums
    beta1 = layer[0].group["betas"][0]
    q = (1 - beta1) / (1 + beta1)
    # Of one gradient, at the first step, M and V are the same but for rounding: nothing can be told.
    return (first - q * second) / (second - first) if layer[0].t > 1 else math.nan


def alignment(layer):
    x = layer[0]
    if x.kind == "SGD" and not x.group["nesterov"]:
        gg = sum(torch.dot(y.g, y.g).item() for y in layer)
        gm = sum(0.0 if y.m is None else torch.dot(y.g, y.m).item() for y in layer)
        return 1 + 2 * x.group["momentum"] * gm / gg
    sums = moments_of(layer)
    if sums is None:
        return math.nan
    beta1 = x.group["betas"][0]
    return sums[0] / sums[1] * (1 + beta1) / (1 - beta1)


class MeanField:
    """The recursions of E‖w‖², E⟨w,m⟩ and E‖m‖² for AdamW and SGD with momentum, as the formula sheet writes them."""

    def __init__(self, norm2, kind, fan_in):
        self.y, self.q, self.p, self.v, self.t, self.kind, self.C = norm2, 0.0, 0.0, 0.0, 0, kind, fan_in

    def step(self, group, unit_grad2):
        """The angle of this step and the norm after it."""
        eta, wd, y = group["lr"], group["weight_decay"], self.y
        self.t += 1
        g2 = unit_grad2 / y
        if self.kind == "AdamW":
            beta1, beta2 = group["betas"]
            self.v = beta2 * self.v + (1 - beta2) * g2 / self.C
            self.q = beta1**2 * self.q + (1 - beta1) ** 2 * g2
            before = beta1 * self.p
            s = eta / (1 - beta1**self.t) / math.sqrt(self.v / (1 - beta2**self.t))
            a = eta * wd
        else:
            alpha = group["momentum"]
            before = alpha * self.p + wd * y
            self.q = alpha**2 * self.q + g2 + wd**2 * y + 2 * alpha * wd * self.p
            s, a = eta, 0.0
        self.y = (1 - a) ** 2 * y - 2 * (1 - a) * s * before + s * s * self.q
        self.p = (1 - a) * before - s * self.q
        across = s * math.sqrt(self.q - before**2 / y)
        return math.atan2(across, (1 - a) * math.sqrt(y) - s * before / math.sqrt(y)), math.sqrt(self.y)


def forecast_angular_update(layer, motion):
    return motion[0]


def forecast_norm(layer, motion):
    return motion[1]
