"""What the tracker knows of an optimizer: which one really steps, its rule, and how a run describes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gyroscope.model.selection import unwrapped
from gyroscope.optim.torch_rules import rule_of
from gyroscope.theory import UpdateRule

Group = Mapping[str, Any]

# Options of a parameter group that the run's configuration shows.
SHOWN = ("lr", "weight_decay", "betas", "momentum", "nesterov", "dampening", "eps", "granularity", "centre")


def real_optimizer(optimizer: Any) -> Optimizer:
    """The outermost optimizer whose own `step` runs hooks: wrappers only call it, or skip it.

    >>> import torch
    >>> adamw = torch.optim.AdamW([torch.ones(2, 2)])
    >>> wrapper = type("LightningOptimizer", (), {"optimizer": adamw})()
    >>> real_optimizer(wrapper) is adamw
    True
    """
    stepping = unwrapped(optimizer)
    if not isinstance(stepping, Optimizer) or not hasattr(stepping, "register_step_pre_hook"):
        raise ValueError(
            f"optimizer={optimizer!r} is not a torch optimizer, nor a wrapper around one: pass the "
            "torch.optim.Optimizer whose step() changes the weights"
        )
    return stepping


def steps_taken(optimizer: Optimizer) -> int:
    """How many steps the optimizer's own state counts; 0 where it does not count."""
    counts = [state["step"] for state in optimizer.state.values() if isinstance(state, dict) and "step" in state]
    return max((int(steps) for steps in counts), default=0)


def rule_or_none(group: Group, optimizer: Optimizer) -> UpdateRule | None:
    """The theory's rule, None where the theory does not cover the optimizer."""
    try:
        return rule_of(group, optimizer)
    except ValueError:
        return None


class MomentumRecursion(NamedTuple):
    """How a momentum came about, m = keep·(m before) + share·(g + decay·w): enough to go back one step."""

    keep: float
    share: float
    decay: float


@final
@dataclass(frozen=True)
class GroupRule:
    """The theory's rule of a parameter group, and what measuring needs to know of it.

    recursion: how the momentum came about; None where it is transported, or there is none.
    lr_factor: what torch's dampening makes of the learning rate.
    norms_kept: the optimizer holds every vector at the norm it started with.
    sign_beta, heavy_ball, whole_matrix: the rule's own, kept because every sample asks for them many times.
    """

    rule: UpdateRule
    norms_kept: bool
    recursion: MomentumRecursion | None
    lr_factor: float
    sign_beta: float | None
    heavy_ball: float | None
    whole_matrix: bool

    @classmethod
    def of(cls, rule: UpdateRule, options: Group, norms_kept: bool) -> "GroupRule":
        """Of a rule and the options of the group for which it was made."""
        undamped = 1 - float(options.get("dampening", 0.0))  # only torch's SGD has it
        recursion = None
        if rule.momentum_step is not None:
            keep, share = rule.momentum_step
            decay = 0.0 if norms_kept or rule.is_decoupled else float(options.get("weight_decay", 0.0))
            recursion = MomentumRecursion(keep, share * undamped, decay)
        lr_factor = 1.0 if recursion is None else undamped
        return cls(rule, norms_kept, recursion, lr_factor, rule.sign_beta, rule.heavy_ball, rule.whole_matrix)


@final
@dataclass(frozen=True)
class LayerReading:
    """How a layer was read in a sample.

    adam: it has a second moment.
    late: a closure made the gradient within the step, so that it met only the momentum after it.
    had_momentum: there was a momentum before the step.
    """

    adam: bool
    late: bool
    had_momentum: bool


@final
@dataclass(frozen=True)
class StepContext:
    """What the vectors of a parameter group share in a step.

    lr, weight_decay, betas: of the group in this step; betas are (momentum, NaN) where there is one average.
    highest_lr: of the steps since the previous sample, this one included.
    group_rule: the theory's; None where it does not cover the optimizer.
    scale: by which gradients are too large under mixed precision.
    sign: -1 where the objective is maximised, and gradients point the other way.
    """

    lr: float
    weight_decay: float
    betas: tuple[float, float]
    highest_lr: float
    group_rule: GroupRule | None
    reading: LayerReading
    scale: float
    sign: float


def run_config(model: nn.Module, optimizer: Optimizer, every: Any, rows: int | None, user: Any) -> dict[str, Any]:
    """What goes into the run's configuration, beside what the user passed."""
    return {
        "model": type(_inner(model)).__name__,
        "optimizer": type(optimizer).__name__,
        "groups": [_group_config(group, optimizer) for group in optimizer.param_groups],
        "every": every if isinstance(every, int | str) else repr(every),
        "rows": rows,
        "seed": torch.initial_seed(),
        "user": user,
    }


def _group_config(group: Group, optimizer: Optimizer) -> dict[str, Any]:
    rule = rule_or_none(group, optimizer)
    shown: dict[str, Any] = {"optimizer": type(optimizer).__name__, "parameters": len(group["params"])}
    if rule is not None:
        shown["rule"] = {"name": rule.name, **rule.settings}
    return shown | {name: _plain(group[name]) for name in SHOWN if name in group}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _inner(model: nn.Module) -> nn.Module:
    """The model inside torch.compile's, DDP's and the like's."""
    for name in ("_orig_mod", "module"):
        if isinstance(inner := getattr(model, name, None), nn.Module) and type(model).__module__.startswith("torch"):
            return _inner(inner)
    return model
