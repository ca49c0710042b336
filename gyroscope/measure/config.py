"""What a run says about itself: where it lives, the model, the optimizer and its groups."""

from collections.abc import Mapping
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gyroscope.optim.torch_rules import rule_of
from gyroscope.theory import UpdateRule

SHOWN = ("lr", "weight_decay", "betas", "momentum", "nesterov", "dampening", "eps", "granularity")


def new_path(parent: Path = Path("runs")) -> Path:
    """A directory for a run, named after this moment: runs/2025-11-15_23-59-59, then …_2 if that is taken."""
    name = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    candidates = (parent / (name if number == 1 else f"{name}_{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())


def config(model: nn.Module, optimizer: Optimizer, every: Any, rows: int | None, user: Any) -> dict[str, Any]:
    """What goes into the run's configuration, beside what the user passed."""
    return {
        "model": type(_inner(model)).__name__,
        "optimizer": type(optimizer).__name__,
        "groups": [_group(group, optimizer) for group in optimizer.param_groups],
        "every": every if isinstance(every, int | str) else repr(every),
        "rows": rows,
        "seed": torch.initial_seed(),
        "user": user,
    }


def rule_or_none(group: Mapping[str, Any], optimizer: object) -> UpdateRule | None:
    """The theory's rule, None where the theory does not cover the optimizer."""
    try:
        return rule_of(group, optimizer)
    except ValueError:
        return None


def snapshot(group: Mapping[str, Any]) -> dict[str, Any]:
    """A group's options as they are now; numbers that live on a device are copied there, without waiting for it."""
    return {key: frozen(value) for key, value in group.items() if key not in ("params", "param_names")}


def frozen(value: Any) -> Any:
    """A number that will not change: of a tensor on the CPU its value, of one on a device a copy."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone() if value.device.type != "cpu" or value.numel() != 1 else value.item()


def _group(group: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    rule = rule_or_none(group, optimizer)
    found: dict[str, Any] = {"optimizer": type(optimizer).__name__, "parameters": len(group["params"])}
    if rule is not None:
        found["rule"] = {"name": rule.name, **rule.settings}
    return found | {name: _plain(group[name]) for name in SHOWN if name in group}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _inner(model: nn.Module) -> nn.Module:
    """The model inside torch.compile's, DDP's and the like's."""
    for name in ("_orig_mod", "module"):
        if isinstance(inner := getattr(model, name, None), nn.Module) and type(model).__module__.startswith("torch"):
            return _inner(inner)
    return model
