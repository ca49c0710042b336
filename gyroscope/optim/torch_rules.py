"""From a torch optimizer's parameter group to the theory's rule: one table, by the name of the class.

Names, not classes, so that an optimizer of another library with the usual name and the usual meaning of its options
(Lion, Muon, bitsandbytes' AdamW) is known too, and nothing is imported to compare with.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from gyroscope.model.selection import unwrapped
from gyroscope.theory import (
    SGDM,
    SGDMRT,
    AdamL2,
    AdamS,
    AdamSRT,
    AdamW,
    Hyperball,
    Lion,
    Muon,
    NAdam,
    NAdamL2,
    UpdateRule,
)

Group = Mapping[str, Any]

REMEDY = (
    "pass a rule of gyroscope.theory instead: by the one law, Rule(decay=…, correlation_time=…, update_rms=…), or the "
    "one it comes closest to, for example AdamW(lr, weight_decay, betas)"
)


def rule_of(group: Group, optimizer: object) -> UpdateRule:
    """The theory's rule, with the hyper-parameters of the moment, by which `optimizer` moves the weights of `group`.

    Wrappers (Accelerate, Lightning) are looked through. An optimizer that the theory does not cover is a ValueError.

    >>> import torch
    >>> sgd = torch.optim.SGD([torch.ones(4, 8)], lr=0.1, momentum=0.9, weight_decay=5e-4)
    >>> rule_of(sgd.param_groups[0], sgd)
    SGDM(lr=0.1, weight_decay=0.0005, momentum=0.9, nesterov=False)
    """
    name, known = _known(optimizer)
    if name == "Rotational":
        return _rotational(group, known)
    if group.get("amsgrad"):
        raise ValueError(f"{name} with amsgrad=True has no equilibrium in the theory: set amsgrad=False, or {REMEDY}")
    return RULES[name](group)


def keeps_norms(optimizer: object) -> bool:
    """Whether the optimizer holds each rotating vector at the norm it started with."""
    name, _ = _known(optimizer)
    return name.startswith("Rotational")


def _known(optimizer: object) -> tuple[str, Any]:
    """The name in the table, and the optimizer that bears it: itself, or the one inside its wrappers."""
    stepping = optimizer if _name(optimizer) is not None else unwrapped(optimizer)
    name = _name(stepping)
    if name is None:
        raise ValueError(f"{type(optimizer).__name__} is not among the known optimizers ({', '.join(RULES)}): {REMEDY}")
    return name, stepping


def _name(optimizer: object) -> str | None:
    # By the whole line of ancestors: Lightning and others subclass the optimizers of torch.
    names = [cls.__name__ for cls in type(optimizer).__mro__]
    return next((name for name in names if name in RULES or name == "Rotational"), None)


def _rotational(group: Group, optimizer: Any) -> UpdateRule:
    """Of the wrapper: the rule that the user has given for the angle, hyperball's, or the inner optimizer's own."""
    if group.get("mode", getattr(optimizer, "mode", None)) == "hyperball":
        return Hyperball(_number(group, "lr"))
    angle = group.get("angular_update")
    if angle is not None and not isinstance(angle, UpdateRule):
        raise ValueError(f"angular_update={angle!r} sets the angle by hand: there is no rule to predict it from")
    return angle if angle is not None else rule_of(group, optimizer.inner)


def _number(group: Group, option: str, default: float | None = None) -> float:
    """An option as a float: torch lets lr, betas and weight decay be tensors."""
    value = group.get(option, default)
    if value is None:
        raise ValueError(_lacks(group, option))
    return float(value)


def _lacks(group: Group, option: str) -> str:
    return f"the group has no {option!r}, only {sorted(set(group) - {'params', 'param_names'})}: {REMEDY}"


def _rates(group: Group) -> tuple[float, float]:
    return _number(group, "lr"), _number(group, "weight_decay", 0.0)


def _betas(group: Group) -> tuple[float, float]:
    if "betas" not in group:
        raise ValueError(_lacks(group, "betas"))
    beta1, beta2 = group["betas"]
    return float(beta1), float(beta2)


def _sgd(group: Group) -> UpdateRule:
    lr, weight_decay = _rates(group)
    momentum = _number(group, "momentum", 0.0)
    # Dampening multiplies all that enters the buffer; without momentum torch has no buffer and ignores it.
    share = 1 - _number(group, "dampening", 0.0) if momentum else 1.0
    return SGDM(lr * share, weight_decay, momentum, nesterov=bool(group.get("nesterov")))


def _adam(group: Group) -> UpdateRule:
    return (AdamW if group.get("decoupled_weight_decay") else AdamL2)(*_rates(group), _betas(group))


def _radam(group: Group) -> UpdateRule:
    return _adam(group).replace(rectified=True)


def _nadam(group: Group) -> UpdateRule:
    # Without decay there is nothing to couple.
    decoupled = group.get("decoupled_weight_decay") or _number(group, "weight_decay", 0.0) == 0
    return (NAdam if decoupled else NAdamL2)(*_rates(group), _betas(group))


def _muon(group: Group) -> UpdateRule:
    adjustment: Any = group.get("adjust_lr_fn") or "original"
    return Muon(*_rates(group), _number(group, "momentum"), bool(group.get("nesterov", True)), adjustment)


def _k_adam(group: Group) -> UpdateRule:
    if group.get("k") != 1:
        raise ValueError(f"KAdam with k={group.get('k')!r} has no equilibrium in the theory: take k=1, or {REMEDY}")
    stages = group["betas"]
    betas = _betas({"betas": stages[0] if isinstance(stages[0], tuple | list) else stages})
    return (AdamL2 if group.get("coupled") else AdamW)(*_rates(group), betas)


def _with_betas(rule: Callable[..., UpdateRule]) -> Callable[[Group], UpdateRule]:
    return lambda group: rule(*_rates(group), _betas(group))


RULES: Mapping[str, Callable[[Group], UpdateRule]] = MappingProxyType(
    {
        "SGD": _sgd,
        "Adam": _adam,
        "AdamW": _with_betas(AdamW),
        "NAdam": _nadam,
        "RAdam": _radam,
        "Muon": _muon,
        "Lion": _with_betas(Lion),
        "RotationalAdamW": _with_betas(AdamW),
        "RotationalSGD": _sgd,
        "RotationalLion": _with_betas(Lion),
        "AdamS": _with_betas(AdamS),
        "AdamSRT": _with_betas(AdamSRT),
        "SGDMRT": lambda group: SGDMRT(*_rates(group), _number(group, "momentum")),
        "KAdam": _k_adam,
    }
)
