"""The part of an update that comes from the loss, for torch's rules with L2 in the gradient (RE section 3).

These rules divide an average of G = g + λω by its size. Given the size, the update is linear in the average, so it is a
sum of a part of g and a part of λω. The special variant rotates by the first alone:

    m averages g alone,  v averages (g + λω)²,  Δ_g = -m̂/(√v̂ + ε)

A function here is called after the inner optimizer's step, whose state averages G. It subtracts the newest λω from the
first moment, which thereby averages g alone without a second buffer, and returns Δ_g at learning rate 1.
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


class CoupledStep(NamedTuple):
    """A tensor after the inner optimizer's t-th step with the gradient `grad` + `l2`, l2 = λω.

    t is a number, or a tensor if only a device knows it.
    """

    state: dict[str, Tensor]
    grad: Tensor
    l2: Tensor
    t: Any

    def moment(self, name: str) -> Tensor:
        """Return a moment of the state, float32 or better."""
        return self.state[name].to(self.grad.dtype)

    def first_moment(self, name: str, l2: Tensor) -> Tensor:
        """Subtract the newest L2 term from a first moment for good, and return it."""
        self.state[name].sub_(l2)
        return self.moment(name)

    def average(self, beta1: float) -> Tensor:
        """Return m̂, the average of g alone with its bias correction."""
        m: Tensor = self.first_moment("exp_avg", (1 - beta1) * self.l2) / (1 - beta1**self.t)
        return m


LossGradientPart: TypeAlias = Callable[[CoupledStep, Group], Tensor]


def loss_gradient_part(inner: Optimizer, group: Group) -> LossGradientPart | None:
    """Return the function for an optimizer whose L2 changes the direction. None without L2, or if L2 acts along ω."""
    spec = spec_of(inner)
    if spec is None or not group.get("weight_decay") or spec.is_decoupled(group):
        return None
    part = LOSS_GRADIENT_PARTS.get(spec.formula)
    # A class of another library with the same name may keep another state.
    return part if part is not None and isinstance(inner, spec.load()) else None


def loss_gradient_update(p: Tensor, state: dict[str, Tensor], group: Group, part: LossGradientPart) -> Tensor:
    """Return Δ_g of a parameter after the inner step. L2 stays in vectors of norm 0, as in the plain step."""
    assert p.grad is not None
    dtype = at_least_float32(p.dtype)
    grad = p.grad.to(dtype)
    if group.get("maximize"):
        grad = -grad
    l2 = group["weight_decay"] * p.detach().to(dtype)
    # Without a radius it is the first step, in which a vector of zeros has no L2.
    if "radius" in state:
        rotates = spread_like(Split.of(group).broadcast(state["radius"] != 0, p.shape), p)
        grad = torch.where(rotates, grad, grad + l2)
        l2 = l2 * rotates
    step = state["step"]
    # Reading a number from another device would wait for it.
    t = float(step) if step.device.type == "cpu" else step
    return part(CoupledStep(state, grad, l2, t), group)


def adam(of: CoupledStep, group: Group) -> Tensor:
    """Return Adam's Δ_g, -m̂/(√v̂ + ε)."""
    beta1, beta2 = group["betas"]
    v = of.moment("max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq")
    size: Tensor = (v / (1 - beta2**of.t)).sqrt() + group["eps"]
    return -of.average(beta1) / size


def nadam(of: CoupledStep, group: Group) -> Tensor:
    """Return NAdam's Δ_g, in which the gradient enters once more beside m."""
    beta1, beta2 = group["betas"]
    m = of.first_moment("exp_avg", (1 - beta1) * of.l2)
    v = of.moment("exp_avg_sq")
    momentum, next_momentum = (nadam_momentum(beta1, t, group["momentum_decay"]) for t in (of.t, of.t + 1))
    product = of.moment("mu_product")
    ahead: Tensor = of.grad * (1 - momentum) / (1 - product) + m * next_momentum / (1 - product * next_momentum)
    size: Tensor = (v / (1 - beta2**of.t)).sqrt() + group["eps"]
    return -ahead / size


def radam(of: CoupledStep, group: Group) -> Tensor:
    """Return RAdam's Δ_g: Adam's times the rectification, and -m̂ alone before that applies."""
    beta1, beta2 = group["betas"]
    m = of.average(beta1)
    if beta2 <= NEVER_ADAPTS:
        return -m
    # float64, because rho_t is a small difference of large numbers. A tensor, because a device may count the steps.
    t = torch.as_tensor(of.t, dtype=torch.float64, device=m.device)
    count = averaged_gradients(t, beta2)
    factor = rectified(count.clamp(min=ADAPTS_ABOVE), beta2) * (1 - beta2**t) ** 0.5
    adapted = factor.to(m.dtype) / (of.moment("exp_avg_sq").sqrt() + group["eps"])
    return -m * torch.where(count > ADAPTS_ABOVE, adapted, 1.0)


def adamax(of: CoupledStep, group: Group) -> Tensor:
    """Return Adamax's Δ_g, -m̂/u, u the largest recent |G|."""
    return -of.average(group["betas"][0]) / of.moment("exp_inf")


def rmsprop(of: CoupledStep, group: Group) -> Tensor:
    """Return RMSprop's Δ_g, -g/(√v + ε), or its momentum."""
    v = of.moment("square_avg")
    if group["centered"]:
        v = v - of.moment("grad_avg") ** 2
    size: Tensor = v.sqrt() + group["eps"]
    if group["momentum"] == 0:
        return -of.grad / size
    return -of.first_moment("momentum_buffer", of.l2 / size)


def adagrad(of: CoupledStep, group: Group) -> Tensor:
    """Return Adagrad's Δ_g, -g/(√ΣG² + ε)."""
    decayed: Tensor = -of.grad / (1 + (of.t - 1) * group["lr_decay"])
    size: Tensor = of.moment("sum").sqrt() + group["eps"]
    return decayed / size


def adadelta(of: CoupledStep, group: Group) -> Tensor:
    """Return Adadelta's Δ_g, -g·√((d + ε)/(v + ε)), d the average of earlier squared updates."""
    rho = group["rho"]
    eps = group["eps"]
    v = of.moment("square_avg")
    # The state has d' = ρ·d + (1-ρ)·G²·(d + ε)/(v + ε), solved here for d + ε.
    share = (1 - rho) * (of.grad + of.l2) ** 2 / (v + eps)
    d = (of.moment("acc_delta") + rho * eps) / (rho + share)
    scale: Tensor = (d / (v + eps)).sqrt()
    return -of.grad * scale


# By the formula in the optimizer's spec.
LOSS_GRADIENT_PARTS: Mapping[str, LossGradientPart] = MappingProxyType(
    {function.__name__: function for function in (adam, nadam, radam, adamax, rmsprop, adagrad, adadelta)}
)
