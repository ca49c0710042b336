"""Which optimizer left a state, by the names of what it keeps, and the direction of its last step."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from gyroscope.checkpoint.last_step import adam_direction, nesterov_direction
from gyroscope.optim.torch_rules import RULES, rule_by_name
from gyroscope.theory import UpdateRule

Group = Mapping[str, Any]

# What a user may call an optimizer that the file leaves in doubt, and the name of its class.
NAMES = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "lion": "Lion", "muon": "Muon", "nadam": "NAdam"}
# Settings that a rule cannot do without, by class.
NEEDED = {"AdamW": ("betas",), "Adam": ("betas",), "Lion": ("betas",), "Muon": ("momentum",)}


@final
@dataclass(frozen=True, eq=False)
class LastUpdate:
    """How the last step of a group's optimizer is taken back.

    keys        state tensors that `direction` takes
    direction   u of  w <- (1-a)·w - lr·u, from these tensors and the number of updates; None where it is unknown
    exact       whether u is exact, or an estimate
    adam_betas  where the two moments are Adam's, from which signal and noise can be told
    """

    keys: tuple[str, ...]
    direction: Callable[[list[Tensor], int], Tensor] | None
    exact: bool
    adam_betas: tuple[float, float] | None = None


NOTHING = LastUpdate((), None, exact=False)


def optimizer_name(group: Group, state: Collection[str], asked: str | None) -> str | None:
    """The class of the optimizer; None where the state is of none that is known. ValueError where two are possible.

    `state` has the names of what is kept of a parameter, `asked` is what the user says it is.
    """
    if asked is not None:
        return NAMES[asked]
    if "radius" in state and "update_sq" in state:
        return (
            "RotationalAdamW" if "exp_avg_sq" in state else "RotationalSGD" if "momentum" in group else "RotationalLion"
        )
    if "exp_avg_sq" in state and "exp_avg" in state:
        return _adam_name(group, state)
    if "ns_steps" in group or "ns_coefficients" in group:
        return "Muon"
    if "momentum_buffer" in state or "dampening" in group:
        return "SGD"
    return "Lion" if "exp_avg" in state and "betas" in group else None


def _adam_name(group: Group, state: Collection[str]) -> str | None:
    if group.get("amsgrad") or "k" in group:
        return None
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


def rule_of_group(name: str | None, group: Group) -> UpdateRule | None:
    """The theory's rule of a group; None where it has none. ValueError that names a setting which the file lacks."""
    if name is None or name not in RULES:
        return None
    for option in ("lr", *NEEDED.get(name, ())):
        if group.get(option) is None:
            raise ValueError(f"the file does not say the {option} of its {name}: pass {option}=… (--{option} …)")
    try:
        return rule_by_name(name, group)
    except ValueError:  # settings that theory does not cover
        return None


def last_update(name: str | None, group: Group) -> LastUpdate:
    """How to take back the last step of an optimizer of this class and these settings."""
    # Where the objective is maximised the optimizer turns the gradient around before it keeps anything of it.
    if name in ("Adam", "AdamW"):
        betas = (float(group["betas"][0]), float(group["betas"][1]))
        eps = float(group.get("eps", 1e-8))
        return LastUpdate(
            ("exp_avg", "exp_avg_sq"), lambda x, step: adam_direction(x[0], x[1], betas, eps, step), True, betas
        )
    if name == "SGD":
        momentum = float(group.get("momentum") or 0.0)
        if group.get("nesterov"):
            return LastUpdate(("momentum_buffer",), lambda x, _: nesterov_direction(x[0], momentum), exact=False)
        return LastUpdate(("momentum_buffer",), lambda x, _: x[0], exact=True)
    if name == "Lion":
        return LastUpdate(("exp_avg",), lambda x, _: x[0].sign(), exact=False)
    return NOTHING
