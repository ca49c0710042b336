"""From a torch optimizer's parameter group to the theory's rule: one table, by the name of the class.

Names, not classes, so that an optimizer of another library with the usual name and the usual meaning of its options
(Lion, Muon, bitsandbytes' AdamW) is known too, and nothing is imported to compare with. A group that names its own
algorithm (`algorithm_of`) is stepped by that, whatever the class.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from gyroscope.model.optimizer_list import algorithm_of, owner_of
from gyroscope.theory import (
    SGDM,
    SGDMRT,
    Adafactor,
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

# What groups call their algorithm, and whose rule that is. The "adam" beside a Muon decays as AdamW does.
ALGORITHMS = {"muon": "Muon", "adamw": "AdamW", "adam": "AdamW", "lion": "Lion"}
# dion's adjustments of Muon's learning rate, and torch's or our names of them.
DION_ADJUSTMENTS = {"rms_norm": "match_rms_adamw", None: "none"}

# What groups call a decay of those entries alone that the update shrinks: dion's name, and that of others.
CAUTIOUS_DECAY = ("cautious_wd", "cautious_weight_decay")
# Options, of torch and of libraries with the same names of classes, with which a rule does not hold, and why.
NOT_COVERED = {
    "amsgrad": "v never falls",
    "caution": "updates that disagree with the gradient are left out (timm)",
    "cautious": "updates that disagree with the gradient are left out, or such decay (which of them it does not say)",
    "corrected_weight_decay": "decay follows lr²; gyroscope.optim.CorrectedDecay does the same and is known",
    "decouple_lr": "decay does not follow lr (optimi); torch's with weight_decay/lr decays alike",
    "fixed_decay": "decay does not follow lr (pytorch_optimizer); torch's with weight_decay/lr decays alike",
}

REMEDY = (
    "pass a rule of gyroscope.theory instead: by the one law, Rule(decay=…, correlation_time=…, update_rms=…), or the "
    "one it comes closest to, for example AdamW(lr, weight_decay, betas)"
)


def rule_of(group: Group, optimizer: object) -> UpdateRule:
    """The theory's rule, with the hyper-parameters of the moment, by which `optimizer` moves the weights of `group`.

    Wrappers (Accelerate, Lightning) are looked through, and of several optimizers, a list or a container, the one that
    has the group is asked. An optimizer that the theory does not cover is a ValueError.

    >>> import torch
    >>> sgd = torch.optim.SGD([torch.ones(4, 8)], lr=0.1, momentum=0.9, weight_decay=5e-4)
    >>> rule_of(sgd.param_groups[0], sgd)
    SGDM(lr=0.1, weight_decay=0.0005, momentum=0.9, nesterov=False)
    """
    algorithm = algorithm_of(group)
    if algorithm is not None:
        return _flagged(algorithm, group)
    name, known = _known(optimizer, group)
    if name == "Rotational":
        return _rotational(group, known)
    return rule_by_name(name, group)


def rule_by_name(name: str, group: Group) -> UpdateRule:
    """The rule of an optimizer of `RULES` with the options of a group; a ValueError names what theory does not cover.

    >>> rule_by_name("Lion", {"lr": 1e-4, "betas": (0.9, 0.99), "cautious_wd": True}).cautious_decay
    True
    """
    for option, why in NOT_COVERED.items():
        if group.get(option):
            no_equilibrium = f"{name} with {option}=True has no equilibrium in the theory, for {why}"
            raise ValueError(f"{no_equilibrium}: set {option}=False, or {REMEDY}")
    rule = RULES[name](group)
    asked = next((option for option in CAUTIOUS_DECAY if group.get(option)), None)
    if asked is None:
        return rule
    if "cautious_decay" not in rule.settings:
        raise ValueError(f"{name} with {asked}=True is not covered, for cautious decay is of the weights: {REMEDY}")
    return rule.replace(cautious_decay=True)


def keeps_norms(optimizer: object) -> bool:
    """Whether the optimizer holds each rotating vector at the norm it started with."""
    return (_name(owner_of({}, optimizer)) or "").startswith("Rotational")


def follows_base(optimizer: object) -> bool:
    """Whether `follow` sets the angles of such an optimizer: those of its base on its way, not of equilibrium."""
    return bool(getattr(owner_of({}, optimizer), "angle_factors", None))


def _known(optimizer: object, group: Group) -> tuple[str, Any]:
    """The name in the table, and the optimizer that bears it: itself, or the one inside wrappers that has the group.

    Itself first: a wrapper of a known name says what it does.
    """
    stepping = optimizer if _name(optimizer) is not None else owner_of(group, optimizer)
    name = _name(stepping)
    if name is None:
        raise ValueError(f"{type(stepping).__name__} is not among the known optimizers ({', '.join(RULES)}): {REMEDY}")
    return name, stepping


def _name(optimizer: object) -> str | None:
    # By the whole line of ancestors: Lightning and others subclass the optimizers of torch.
    names = [cls.__name__ for cls in type(optimizer).__mro__]
    return next((name for name in names if name in RULES or name == "Rotational"), None)


def _flagged(algorithm: str, group: Group) -> UpdateRule:
    """The rule that a group names by itself: of dion, nanochat and MuonWithAuxAdam."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"{algorithm!r} is not among the known algorithms ({', '.join(ALGORITHMS)}): {REMEDY}")
    if "kind" in group and algorithm == "muon" and group.get("beta2") is not None:
        raise ValueError(
            f"kind='muon' with beta2={group['beta2']!r} is nanochat's NorMuon with cautious decay, which the theory "
            f"does not cover: {REMEDY}"
        )
    return rule_by_name(ALGORITHMS[algorithm], group)


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
    if "beta1" in group and "betas" not in group:  # dion's spelling
        return _number(group, "beta1"), _number(group, "beta2")
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
    if "adjust_lr" in group:
        adjustment = DION_ADJUSTMENTS.get(group["adjust_lr"], group["adjust_lr"])
    momentum = _number(group, "mu" if "mu" in group else "momentum")
    return Muon(*_rates(group), momentum, bool(group.get("nesterov", True)), adjustment)


def _adafactor(group: Group) -> UpdateRule:
    """torch's; that of transformers and timm has `scale_parameter` among its options."""
    if "scale_parameter" not in group:
        lr, weight_decay = _rates(group)
        return Adafactor(lr, weight_decay, float(group["beta2_decay"]), float(group["d"]), float(group["eps"][1]))
    scaled = bool(group["scale_parameter"])
    unsaid = {
        "relative_step=True: lr then follows the number of steps alone": group.get("relative_step"),
        "lr=None: lr then follows the number of steps alone": group.get("lr") is None,
        "beta1 or betas: updates then have a momentum": group.get("beta1") or group.get("betas"),
        "weight_decay beside scale_parameter=True: it then follows the norm": scaled and group.get("weight_decay"),
    }
    for what, asked in unsaid.items():
        if asked:
            raise ValueError(f"Adafactor is not covered with {what}. Use torch.optim.Adafactor, or {REMEDY}")
    if not isinstance(group.get("eps"), tuple | list):
        raise ValueError(_lacks(group, "eps, a pair"))
    threshold = max(_number(group, "clip_threshold"), 1.0)
    decay = _number(group, "decay_rate")
    return Adafactor(*_rates(group), decay, threshold, float(group["eps"][1]), scale_parameter=scaled, capped=False)


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
        "Adafactor": _adafactor,
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
