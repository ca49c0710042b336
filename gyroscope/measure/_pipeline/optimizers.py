"""The optimizers of a tracker: the rules of their groups, and how a run describes them."""

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gyroscope.model.optimizer_list import Optimizers, OwnedGroup
from gyroscope.optim.torch_rules import follows_base, rule_of
from gyroscope.optimizers import Group, Rules
from gyroscope.theory import UpdateRule

# Options of a parameter group that the run's configuration shows.
SHOWN = (
    *("lr", "weight_decay", "betas", "momentum", "nesterov", "dampening", "eps"),
    *("granularity", "centre", "beta", "update_average"),
)


def steps_taken(optimizers: Optimizers) -> int:
    """Return the largest count of steps in the state of the optimizers, 0 if none counts."""
    states = [state for member in optimizers.members for state in member.state.values()]
    counts = [state["step"] for state in states if isinstance(state, dict) and "step" in state]
    return max((int(steps) for steps in counts), default=0)


def rule_or_none(group: Group, optimizer: Optimizer, rules: Rules | None) -> UpdateRule | None:
    """Return the theory's rule, or None if the theory does not cover the optimizer."""
    try:
        return rule_of(group, optimizer, rules)
    except ValueError:
        return None


def rate_factor(rule: UpdateRule, options: Group) -> float:
    """Return the rule's learning rate over that of the group for which it was made.

    Dampening and Prodigy's d make it smaller. A `Rule` already has the group's learning rate in its decay. A rule that
    a user passes as the angle of `Rotational` is used at the group's learning rate.
    """
    lr = float(options.get("lr", 0.0))
    is_given = isinstance(options.get("angular_update"), UpdateRule)
    return rule.lr / lr if lr > 0 and rule.lr > 0 and not is_given else 1.0


def decay_factor(rule: UpdateRule, options: Group) -> float:
    """Return the rule's weight decay over that of its group, which some libraries divide by a learning rate."""
    weight_decay = float(options.get("weight_decay", 0.0))
    return rule.weight_decay / weight_decay if weight_decay > 0 and rule.has_weight_decay else 1.0


class MomentumRecursion(NamedTuple):
    """The recursion of a momentum, m = keep·(m before) + share·(g + decay·w), which can be inverted for one step."""

    keep: float
    share: float
    decay: float


@final
@dataclass(frozen=True)
class GroupRule:
    """The theory's rule of a parameter group, and facts about it that measuring needs.

    norms_kept: the optimizer holds every vector at its initial norm.
    recursion: recursion of the momentum. None if it is transported, or if there is none.
    lr_factor, decay_factor: the rule's learning rate and weight decay over the group's.
    whole_matrix: the rule's own, kept because every sample needs it many times.
    follows_base: the optimizer rotates a vector as the rule would by then, not by the equilibrium angle.
    """

    rule: UpdateRule
    norms_kept: bool
    recursion: MomentumRecursion | None
    lr_factor: float
    decay_factor: float
    whole_matrix: bool
    follows_base: bool

    @classmethod
    def of(cls, rule: UpdateRule, options: Group, norms_kept: bool, follows_base: bool = False) -> "GroupRule":
        """Make it from a rule and the options of its group."""
        own = (rate_factor(rule, options), decay_factor(rule, options), rule.whole_matrix, follows_base)
        if rule.momentum_step is None:
            return cls(rule, norms_kept, None, *own)
        keep, share = rule.momentum_step
        undamped = 1 - float(options.get("dampening", 0.0))  # only torch's SGD has it
        decay = 0.0 if norms_kept or rule.is_decoupled else float(options.get("weight_decay", 0.0))
        return cls(rule, norms_kept, MomentumRecursion(keep, share * undamped, decay), *own)


@final
@dataclass(frozen=True)
class LayerReading:
    """How a layer was read in a sample. Layers of a group with equal readings share a `StepContext`.

    adam: it has a second moment.
    late: a closure made the gradient within the step, so that it met only the momentum after it.
    had_momentum: there was a momentum before the step.
    scaled: a GradScaler left it to the step to divide the gradient by its scale.
    """

    adam: bool
    late: bool
    had_momentum: bool
    scaled: bool = False


class StepSettings(NamedTuple):
    """Settings of a parameter group in a step, and their changes since the previous sample.

    beta1, beta2: those of Adam or Lion, or (momentum, NaN).
    highest_lr: of the steps since the previous sample, this one included.
    skipped_steps: measured steps since the previous sample that a GradScaler skipped.
    lr_jump_step, lr_before_jump: first of these steps at which the learning rate jumps up, and the rate before it.
    setting_jump_step: first of these steps at which weight decay or a beta jumps.
    """

    lr: float
    weight_decay: float
    beta1: float
    beta2: float
    highest_lr: float
    skipped_steps: int
    lr_jump_step: float
    lr_before_jump: float
    setting_jump_step: float


@final
@dataclass(frozen=True)
class StepContext:
    """What the vectors of a parameter group share in a step.

    group_rule: the theory's rule. None if the theory does not cover the optimizer.
    scale: by which gradients are too large under mixed precision.
    sign: -1 if the objective is maximised, and gradients point the other way.
    """

    settings: StepSettings
    group_rule: GroupRule | None
    reading: LayerReading
    scale: float
    sign: float


def run_config(model: nn.Module, optimizers: Optimizers, every: Any, rows: int | None, user: Any) -> dict[str, Any]:
    """Return the run's configuration, with what the user passed."""
    return {
        "model": type(_inner(model)).__name__,
        "optimizer": optimizers.name,
        "groups": [_group_config(group, optimizers.rules) for group in optimizers.groups()],
        "every": every if isinstance(every, int) else repr(every),
        "rows": rows,
        "seed": torch.initial_seed(),
        "user": user,
    }


def _group_config(owned: OwnedGroup, rules: Rules | None) -> dict[str, Any]:
    group, owner = owned
    rule = rule_or_none(group, owner, rules)
    shown: dict[str, Any] = {"optimizer": type(owner).__name__, "parameters": len(group["params"])}
    if rule is not None:
        shown["rule"] = {"name": rule.name, **rule.settings}
        shown["lr_factor"] = rate_factor(rule, group)
    if follows_base(owner):
        shown["follows_base"] = True
    elif any(p in getattr(owner, "angle_factors", ()) for p in group["params"]):
        shown["angle_factors"] = True
    return shown | {name: _plain(group[name]) for name in SHOWN if name in group}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _inner(model: nn.Module) -> nn.Module:
    """Return the model inside wrappers such as torch.compile's and DDP's."""
    for name in ("_orig_mod", "module"):
        if isinstance(inner := getattr(model, name, None), nn.Module) and type(model).__module__.startswith("torch"):
            return _inner(inner)
    return model
