"""Which optimizer left a state, by its options and the names of what it keeps, and the theory's rule of it."""

from collections.abc import Collection, Mapping
from typing import Any

from gyroscope.optim.torch_rules import RULES, rule_by_name
from gyroscope.theory import FixedNorm, Hyperball, UpdateRule

Group = Mapping[str, Any]

# What a user may call an optimizer that the file leaves in doubt, and the name of its class.
NAMES = {
    "adamw": "AdamW",
    "adam": "Adam",
    "sgd": "SGD",
    "lion": "Lion",
    "muon": "Muon",
    "nadam": "NAdam",
    "adam-s": "AdamS",
    "adam-srt": "AdamSRT",
}
# Settings that a rule cannot do without, by class.
NEEDED = {"AdamW": ("betas",), "Adam": ("betas",), "Lion": ("betas",), "Muon": ("momentum",)}


def optimizer_name(group: Group, state: Collection[str], asked: str | None) -> str | None:
    """The class of the optimizer; None where the state is of none that is known. ValueError where two are possible.

    `state` has the names of what is kept of a parameter, `asked` is what the user says it is.
    """
    if asked is not None:
        return NAMES[asked]
    return _own_name(group) or torch_name(group, state)


def _own_name(group: Group) -> str | None:
    """Gyroscope's own, by options that no other optimizer has."""
    if "centre" in group:
        if "mode" in group:
            return "Rotational"
        if "momentum" in group:
            return "RotationalSGD"
        return "RotationalAdamW" if "eps" in group else "RotationalLion"
    if "v0" in group:
        return "SphericalAdam"
    if "strategy" in group and "k" in group:
        return "KAdam"
    if "compile" in group and "momentum" in group:
        return "SGDMRT"
    if "compile" in group and "betas" in group:
        raise ValueError(
            "the file does not say whether its optimizer is AdamS or AdamSRT, which have the same options: pass "
            "optimizer='adam-s' or 'adam-srt' (--optimizer adam-s)"
        )
    return None


def torch_name(group: Group, state: Collection[str]) -> str | None:
    """torch's and others', by what they keep."""
    if "exp_avg_sq" in state and "exp_avg" in state:
        return _adam_name(group, state)
    if "exp_inf" in state:
        return "Adamax"
    if "square_avg" in state:
        return "RMSprop" if "alpha" in group else None
    if "ns_steps" in group or "ns_coefficients" in group:
        return "Muon"
    if "momentum_buffer" in state or "dampening" in group:
        return "SGD"
    return "Lion" if "exp_avg" in state and "betas" in group else None


def _adam_name(group: Group, state: Collection[str]) -> str:
    if "mu_product" in state:
        return "NAdam"
    if "decoupled_weight_decay" in group:
        # RAdam keeps what Adam keeps, but has no such option.
        return "Adam" if "amsgrad" in group else "RAdam"
    if not float(group.get("weight_decay") or 0.0):
        return "AdamW"
    raise ValueError(
        "the file does not say whether its Adam decays the weights or the gradients: pass optimizer='adamw' "
        "(--optimizer adamw; decoupled, as torch's AdamW, nanoGPT and the Trainer have it) or 'adam' (L2)"
    )


def rule_of_group(name: str | None, group: Group, state: Collection[str] = ()) -> UpdateRule | None:
    """The theory's rule of a group; None where it has none. ValueError that names a setting which the file lacks."""
    if name == "Rotational":
        return _rule_of_wrapper(group, state)
    if name is None or name not in RULES or group.get("amsgrad"):
        return None
    for option in ("lr", *NEEDED.get(name, ())):
        if group.get(option) is None:
            raise ValueError(f"the file does not say the {option} of its {name}: pass {option}=… (--{option} …)")
    try:
        rule = rule_by_name(name, group)
    except ValueError:  # settings that theory does not cover
        return None
    return FixedNorm(rule) if name.startswith("Rotational") else rule


def _rule_of_wrapper(group: Group, state: Collection[str]) -> UpdateRule | None:
    """Of Rotational: hyperball's, or the inner optimizer's, unless the angle is given; None where that is by code."""
    if group.get("mode") == "hyperball":
        return Hyperball(float(group["lr"]))
    # A state_dict leaves out what is code.
    by_rule = group.get("angular_update", "code") is None and group.get("angle_schedule", "code") is None
    inner = rule_of_group(torch_name(group, state), group) if by_rule else None
    return FixedNorm(inner) if inner is not None else None
