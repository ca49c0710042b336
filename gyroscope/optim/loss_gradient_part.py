"""The part of Adam's update that comes from the loss, if weight decay is L2 in the gradient (RE section 3).

Adam divides an average of G = g + λω by its size. Given the size, the update is linear in the average, so it is a sum
of a part of g and a part of λω. The special variant rotates only by the first:

    m averages g alone,  v averages (g + λω)²,  Δ_g = -m̂/(√v̂ + ε)
"""

from collections.abc import Sequence

from torch import Tensor
from torch.optim import Adam, Optimizer

from gyroscope.optim._engine.steps import Group
from gyroscope.optim.formulas import Number
from gyroscope.optimizers import spec_of


def rotates_loss_part(inner: Optimizer, group: Group) -> bool:
    """Return whether the group takes the special variant: torch's Adam with L2 in the gradient."""
    spec = spec_of(inner)
    # A class of another library with the same name may keep another state.
    is_adam = isinstance(inner, Adam) and spec is not None and spec.formula == "adam" and not spec.is_decoupled(group)
    return is_adam and bool(group.get("weight_decay"))


def moments(group: Group) -> tuple[str, str]:
    """Return the names of the moments in Adam's state that the direction reads."""
    return "exp_avg", "max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"


def numbers(group: Group, step: Tensor) -> dict[str, Number]:
    """Return the numbers of the direction. `step` is Adam's count in the parameter's state."""
    beta1, beta2 = group["betas"]
    decay = group["weight_decay"]
    # Reading a count from another device would wait for it.
    t = float(step) if step.device.type == "cpu" else step
    return {"l2": decay, "weight_decay": decay, "beta1": beta1, "beta2": beta2, "eps": group["eps"], "t": t}


def loss_part(
    entries: Sequence[Tensor],
    out: Tensor,
    *,
    l2: Number,
    weight_decay: Number,
    beta1: Number,
    beta2: Number,
    eps: Number,
    t: Number,
) -> None:
    """Write Δ_g at learning rate 1, a direction of `formulas`, after Adam's own step, whose state averages G.

    It subtracts the newest λω from the first moment, which thereby averages g alone without a second buffer. `l2` is λ
    for vectors of norm 0, in which L2 stays as in the plain step, and 0 for those that rotate.
    """
    w, _, m, v = entries
    m.sub_((1 - beta1) * (w.to(out.dtype) * (weight_decay - l2)))
    size = (v.to(out.dtype) / (1 - beta2**t)).sqrt() + eps
    out.copy_(-(m.to(out.dtype) / (1 - beta1**t)) / size)
