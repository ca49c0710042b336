"""The part of an update that the loss makes, under torch's rules with L2 in the gradient (RE section 3, Algorithm 1).

These rules divide an average of G = g + λω by its size. Given the size, the update is linear in the average, so that it
is a sum of a part of g and a part of λω. The special variant turns the first alone:

    m averages g alone,  v averages (g + λω)²,  Δ_g = -m̂/(√v̂ + ε)

A function here is called after the inner optimizer has taken its step, whose state has G everywhere. It takes λω back
out of the first moment and returns Δ_g at learning rate 1. The moment thereby averages g alone from step to step, which
needs no second buffer: each step has only the newest λω to take out.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from gyroscope._dtensor import spread_like
from gyroscope.geometry import Split, at_least_float32
from gyroscope.optimizers import Group, spec_of
from gyroscope.theory.rules.nadam import nadam_momentum
from gyroscope.theory.schedules import ADAPTS_ABOVE, NEVER_ADAPTS, averaged_gradients, rectified


class Coupled(NamedTuple):
    """A tensor after the inner optimizer's step: `grad` and `l2`, λω, are the two parts of what it took for gradient.

    t counts the steps: a number, or a tensor where only the device knows it.
    """

    state: dict[str, Tensor]
    grad: Tensor
    l2: Tensor
    t: Any

    def moment(self, name: str) -> Tensor:
        """A moment of the state, float32 or better."""
        return self.state[name].to(self.grad.dtype)

    def first_moment(self, name: str, l2: Tensor) -> Tensor:
        """A first moment out of which the newest L2 term, as it entered, is taken for good."""
        self.state[name].sub_(l2)
        return self.moment(name)


LossPart: TypeAlias = Callable[[Coupled, Group], Tensor]


def loss_part(inner: Optimizer, group: Group) -> LossPart | None:
    """Return the function for an optimizer whose L2 shapes the direction; None without L2, and if L2 acts along ω."""
    spec = spec_of(inner)
    if spec is None or not group.get("weight_decay") or spec.is_decoupled(group):
        return None
    part = LOSS_PARTS.get(spec.formula)
    # A class of another library with the same name may keep another state.
    return part if part is not None and isinstance(inner, spec.load()) else None


def loss_update(p: Tensor, state: dict[str, Tensor], group: Group, part: LossPart) -> Tensor:
    """Δ_g of a parameter whose inner step has been taken; vectors of norm 0 have L2 in it, as in the plain step."""
    assert p.grad is not None
    dtype = at_least_float32(p.dtype)
    grad = p.grad.to(dtype)
    if group.get("maximize"):
        grad = -grad
    l2 = group["weight_decay"] * p.detach().to(dtype)
    # Without a radius it is the first step: there is no L2 in a vector of zeros.
    if "radius" in state:
        turns = spread_like(Split.of(group).broadcast(state["radius"] != 0, p.shape), p)
        grad = torch.where(turns, grad, grad + l2)
        l2 = l2 * turns
    step = state["step"]
    # Reading a number from another device would wait for it.
    t = float(step) if step.device.type == "cpu" else step
    return part(Coupled(state, grad, l2, t), group)


def adam(of: Coupled, group: Group) -> Tensor:
    """Adam's, -m̂/(√v̂ + ε)."""
    beta1, beta2 = group["betas"]
    m = of.first_moment("exp_avg", (1 - beta1) * of.l2)
    v = of.moment("max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq")
    update: Tensor = -m / (1 - beta1**of.t) / ((v / (1 - beta2**of.t)).sqrt() + group["eps"])
    return update


def nadam(of: Coupled, group: Group) -> Tensor:
    """NAdam's, which looks ahead: the gradient enters once more beside m."""
    beta1, beta2 = group["betas"]
    m = of.first_moment("exp_avg", (1 - beta1) * of.l2)
    v = of.moment("exp_avg_sq")
    momentum, next_momentum = (nadam_momentum(beta1, t, group["momentum_decay"]) for t in (of.t, of.t + 1))
    product = of.moment("mu_product")
    ahead = of.grad * (1 - momentum) / (1 - product) + m * next_momentum / (1 - product * next_momentum)
    update: Tensor = -ahead / ((v / (1 - beta2**of.t)).sqrt() + group["eps"])
    return update


def radam(of: Coupled, group: Group) -> Tensor:
    """RAdam's: Adam's times the rectification, and m̂ alone before there is one."""
    beta1, beta2 = group["betas"]
    m: Tensor = of.first_moment("exp_avg", (1 - beta1) * of.l2) / (1 - beta1**of.t)
    if beta2 <= NEVER_ADAPTS:
        return -m
    # In float64, for rho_t is a small difference of large numbers. A tensor, for what a device counts stays there.
    t = torch.as_tensor(of.t, dtype=torch.float64, device=m.device)
    count = averaged_gradients(t, beta2)
    factor = rectified(count.clamp(min=ADAPTS_ABOVE), beta2) * (1 - beta2**t) ** 0.5
    adapted = factor.to(m.dtype) / (of.moment("exp_avg_sq").sqrt() + group["eps"])
    update: Tensor = -m * torch.where(count > ADAPTS_ABOVE, adapted, 1.0)
    return update


def adamax(of: Coupled, group: Group) -> Tensor:
    """Adamax's, -m̂/u, u the largest |G| of late."""
    beta1, _ = group["betas"]
    m = of.first_moment("exp_avg", (1 - beta1) * of.l2)
    update: Tensor = -m / (1 - beta1**of.t) / of.moment("exp_inf")
    return update


def rmsprop(of: Coupled, group: Group) -> Tensor:
    """RMSprop's, -g/(√v + ε), or the momentum of it."""
    v = of.moment("square_avg")
    if group["centered"]:
        v = v - of.moment("grad_avg") ** 2
    size: Tensor = v.sqrt() + group["eps"]
    if group["momentum"] == 0:
        return -of.grad / size
    return -of.first_moment("momentum_buffer", of.l2 / size)


def adagrad(of: Coupled, group: Group) -> Tensor:
    """Adagrad's, -g/(√ΣG² + ε)."""
    update: Tensor = -of.grad / (1 + (of.t - 1) * group["lr_decay"]) / (of.moment("sum").sqrt() + group["eps"])
    return update


def adadelta(of: Coupled, group: Group) -> Tensor:
    """Adadelta's, -g·√((d + ε)/(v + ε)), d the average of squared updates before this one."""
    rho = group["rho"]
    eps = group["eps"]
    v = of.moment("square_avg")
    # The state has d' = ρ·d + (1-ρ)·G²·(d + ε)/(v + ε): solved for d + ε.
    share = (1 - rho) * (of.grad + of.l2) ** 2 / (v + eps)
    d = (of.moment("acc_delta") + rho * eps) / (rho + share)
    update: Tensor = -of.grad * (d / (v + eps)).sqrt()
    return update


# By the formula of the optimizer's record.
LOSS_PARTS: Mapping[str, LossPart] = MappingProxyType(
    {
        "adam": adam,
        "nadam": nadam,
        "radam": radam,
        "adamax": adamax,
        "rmsprop": rmsprop,
        "adagrad": adagrad,
        "adadelta": adadelta,
    }
)
