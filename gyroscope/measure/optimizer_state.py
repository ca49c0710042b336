"""What an optimizer remembers of a parameter: its momentum, its second moment, and what these were before the step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from torch import Tensor

from gyroscope.theory import UpdateRule

State = Mapping[str, Any]
Group = Mapping[str, Any]
Number = Any
"""A float, or a 0-d tensor where the optimizer keeps it on its device."""

MOMENTUM = ("momentum_buffer", "exp_avg")
SECOND = ("max_exp_avg_sq", "exp_avg_sq", "square_avg")


def momentum(state: State, p: Tensor) -> Tensor | None:
    """The optimizer's average of gradients; None where it has none, or one of another shape."""
    found = (state.get(name) for name in MOMENTUM)
    return next((m for m in found if isinstance(m, Tensor) and m.shape == p.shape), None)


@final
@dataclass(frozen=True)
class Second:
    """Adam's denominator, √v̂ + ε = √(v/correction) + eps, per entry or per vector.

    `fill` is (1-β1^t)/(1-β1), by which Adam's momentum is smaller than a sum of gradients (SP Table 1).
    """

    v: Tensor
    correction: Number
    eps: Number
    fill: Number

    def denominator(self, v: Any) -> Any:
        """√v̂ + ε of these entries of v, an array or a tensor."""
        return (v / self.correction) ** 0.5 + self.eps


def second_moment(state: State, group: Group, p: Tensor, vectors: int) -> Second | None:
    """The optimizer's average of squared gradients after the step; None where it has none."""
    shapes = (p.shape, (vectors,))
    found = {name: v for name in SECOND if isinstance(v := state.get(name), Tensor) and v.shape in shapes}
    if not found:
        return None
    name, eps, betas = next(iter(found)), group.get("eps", 0.0), group.get("betas", ())
    if name == "square_avg" and _are_numbers(eps):
        return Second(found[name], 1.0, eps, 1.0)
    if len(betas) != 2 or "step" not in state or not _are_numbers(eps, *betas):
        return None  # a second moment of some other kind
    (beta1, beta2), t = betas, _count(state["step"])
    return Second(found[name], 1 - beta2**t, eps, (1 - beta1**t) / (1 - beta1))


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, float | int | Tensor) for value in values)


def _count(step: Any) -> Number:
    """A step count as a number, unless that would wait for a device."""
    return step if isinstance(step, Tensor) and step.device.type != "cpu" else float(step)


class Recall(NamedTuple):
    """How a momentum came about, m = keep·(m before) + share·(g + decay·w): enough to go back one step."""

    keep: float
    share: float
    decay: float


def recall(rule: UpdateRule | None, group: Group, norms_kept: bool) -> Recall | None:
    """How the rule's momentum came about; None where it is transported, or the rule is unknown, or has none."""
    if rule is None or rule.momentum_step is None:
        return None
    keep, share = rule.momentum_step
    share *= 1 - float(group.get("dampening", 0.0))  # only torch's SGD has it
    decay = 0.0 if norms_kept or rule.is_decoupled else float(group.get("weight_decay", 0.0))
    return Recall(keep, share, decay)
