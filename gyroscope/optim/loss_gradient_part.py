"""The part of an update that comes from the loss, for torch's rules with L2 in the gradient (RE section 3).

These rules divide an average of G = g + λω by its size. Given the size, the update is linear in the average, so it is a
sum of a part of g and a part of λω. The special variant rotates only by the first:

    m averages g alone,  v averages (g + λω)²,  Δ_g = -m̂/(√v̂ + ε)

A function here is called after the inner optimizer's step, whose state averages G. It subtracts the newest λω from the
first moment, which thereby averages g alone without a second buffer, and returns Δ_g at learning rate 1.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from gyroscope.optim._engine.steps import Group
from gyroscope.optim.formulas import Number
from gyroscope.optimizers import spec_of
from gyroscope.theory.rules.nadam import nadam_momentum
from gyroscope.theory.schedules import ADAPTS_ABOVE, averaged_gradients, rectified

# Options that the functions below need. Those of betas are beta1 and beta2.
OPTIONS = ("eps", "momentum_decay", "lr_decay", "rho")


class CoupledStep(NamedTuple):
    """Vectors after the inner optimizer's step with the gradient `loss_grad` + λ·`w`.

    `kept` is the λ of vectors of norm 0, which keep it, and `removed` the λ of vectors that rotate. `by` has the other
    numbers of the step. A number is a tensor if it is only on a device.
    """

    state: Mapping[str, Tensor]
    w: Tensor
    loss_grad: Tensor
    kept: Number
    removed: Number
    by: Mapping[str, Number]

    @property
    def grad(self) -> Tensor:
        """The gradient that makes Δ_g."""
        grad: Tensor = self.loss_grad + self.w * self.kept
        return grad

    @property
    def l2(self) -> Tensor:
        """The part of λω that is not in Δ_g."""
        l2: Tensor = self.w * self.removed
        return l2

    def moment(self, name: str) -> Tensor:
        """Return a moment of the state, float32 or better."""
        return self.state[name].to(self.w.dtype)

    def first_moment(self, name: str, l2: Tensor) -> Tensor:
        """Subtract the newest L2 term from a first moment for good, and return it."""
        self.state[name].sub_(l2)
        return self.moment(name)

    def average(self) -> Tensor:
        """Return m̂, the average of g alone with its bias correction."""
        beta1 = self.by["beta1"]
        m: Tensor = self.first_moment("exp_avg", (1 - beta1) * self.l2) / (1 - beta1 ** self.by["t"])
        return m

    def size(self, name: str = "exp_avg_sq") -> Tensor:
        """Return √v̂ + ε with v's bias correction."""
        size: Tensor = (self.moment(name) / (1 - self.by["beta2"] ** self.by["t"])).sqrt() + self.by["eps"]
        return size


Part = Callable[[CoupledStep], Tensor]


def loss_gradient_part(inner: Optimizer, group: Group) -> Part | None:
    """Return the function for an optimizer whose L2 changes the direction. None without L2, or if L2 acts along ω."""
    spec = spec_of(inner)
    if spec is None or not group.get("weight_decay") or spec.is_decoupled(group):
        return None
    part = LOSS_GRADIENT_PARTS.get(spec.formula)
    # A class of another library with the same name may keep another state.
    return part if part is not None and isinstance(inner, spec.load()) else None


def coupled_numbers(p: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of the direction from a parameter's inner state: the names of its moments, and its numbers."""
    numbers = {"t": state["step"]}
    if "mu_product" in state:
        numbers["product"] = state["mu_product"]
    # Reading a number from another device would wait for it.
    known = {name: float(x) if x.device.type == "cpu" else x for name, x in numbers.items()}
    return {"moments": tuple(name for name, x in state.items() if x.dim() == p.dim()), **known}


def direction_numbers(group: Group, known: Mapping[str, Number]) -> dict[str, Number]:
    """Return the numbers of the direction, from the group and from the inner state."""
    betas = dict(zip(("beta1", "beta2"), group.get("betas", ()), strict=False))
    options = {name: group[name] for name in OPTIONS if name in group}
    return {"l2": group["weight_decay"], "weight_decay": group["weight_decay"], **betas, **options, **known}


@cache
def loss_direction(part: Part, moments: tuple[str, ...]) -> Callable[..., None]:
    """Return the direction of `formulas` that writes Δ_g.

    Its `l2` is λ for vectors of norm 0, in which L2 stays as in the plain step, and 0 for those that rotate.
    """

    def direction(
        entries: Sequence[Tensor], out: Tensor, *, l2: Number, weight_decay: Number, **numbers: Number
    ) -> None:
        w, grad = (x.to(out.dtype) for x in entries[:2])
        state = dict(zip(moments, entries[2:], strict=True))
        out.copy_(part(CoupledStep(state, w, grad, l2, weight_decay - l2, numbers)))

    return direction


def adam(of: CoupledStep) -> Tensor:
    """Return Adam's Δ_g, -m̂/(√v̂ + ε)."""
    size = of.size("max_exp_avg_sq" if "max_exp_avg_sq" in of.state else "exp_avg_sq")
    return -of.average() / size


def nadam(of: CoupledStep) -> Tensor:
    """Return NAdam's Δ_g, in which the gradient enters once more beside m."""
    beta1 = of.by["beta1"]
    t = of.by["t"]
    m = of.first_moment("exp_avg", (1 - beta1) * of.l2)
    momentum, next_momentum = (nadam_momentum(beta1, at, of.by["momentum_decay"]) for at in (t, t + 1))
    product = torch.as_tensor(of.by["product"], dtype=m.dtype)
    ahead: Tensor = of.grad * (1 - momentum) / (1 - product) + m * next_momentum / (1 - product * next_momentum)
    return -ahead / of.size()


def radam(of: CoupledStep) -> Tensor:
    """Return RAdam's Δ_g: Adam's times the rectification, and -m̂ alone before that applies."""
    beta2 = of.by["beta2"]
    m = of.average()
    # float64, because rho_t is a small difference of large numbers. A tensor, because a device may count the steps.
    t = torch.as_tensor(of.by["t"], dtype=torch.float64, device=m.device)
    count = averaged_gradients(t, beta2)
    factor = rectified(count.clamp(min=ADAPTS_ABOVE), beta2) * (1 - beta2**t) ** 0.5
    adapted = factor.to(m.dtype) / (of.moment("exp_avg_sq").sqrt() + of.by["eps"])
    return -m * torch.where(count > ADAPTS_ABOVE, adapted, 1.0)


def adamax(of: CoupledStep) -> Tensor:
    """Return Adamax's Δ_g, -m̂/u, u the largest recent |G|."""
    return -of.average() / of.moment("exp_inf")


def rmsprop(of: CoupledStep) -> Tensor:
    """Return RMSprop's Δ_g, -g/(√v + ε), or its momentum."""
    v = of.moment("square_avg")
    if "grad_avg" in of.state:
        v = v - of.moment("grad_avg") ** 2
    size: Tensor = v.sqrt() + of.by["eps"]
    if "momentum_buffer" in of.state:
        return -of.first_moment("momentum_buffer", of.l2 / size)
    return -of.grad / size


def adagrad(of: CoupledStep) -> Tensor:
    """Return Adagrad's Δ_g, -g/(√ΣG² + ε)."""
    decayed: Tensor = -of.grad / (1 + (of.by["t"] - 1) * of.by["lr_decay"])
    size: Tensor = of.moment("sum").sqrt() + of.by["eps"]
    return decayed / size


def adadelta(of: CoupledStep) -> Tensor:
    """Return Adadelta's Δ_g, -g·√((d + ε)/(v + ε)), d the average of earlier squared updates."""
    rho = of.by["rho"]
    eps = of.by["eps"]
    v = of.moment("square_avg")
    # The state has d' = ρ·d + (1-ρ)·G²·(d + ε)/(v + ε), solved here for d + ε.
    share = (1 - rho) * (of.grad + of.l2) ** 2 / (v + eps)
    d = (of.moment("acc_delta") + rho * eps) / (rho + share)
    scale: Tensor = (d / (v + eps)).sqrt()
    return -of.grad * scale


# By the formula in the optimizer's spec.
LOSS_GRADIENT_PARTS: Mapping[str, Part] = MappingProxyType(
    {function.__name__: function for function in (adam, nadam, radam, adamax, rmsprop, adagrad, adadelta)}
)
