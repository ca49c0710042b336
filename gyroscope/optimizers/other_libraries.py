"""The optimizers of other libraries that have a rule.

The rotation of every optimizer with a rule was compared with it on noise (docs/own-optimizer.md). Classes are
recognised by name, so nothing is imported.
"""

from collections.abc import Callable
from typing import NamedTuple

from gyroscope.optimizers.group_rules import REMEDY, betas, number, rates, with_betas
from gyroscope.optimizers.spec import UNSUPPORTED, Group
from gyroscope.optimizers.table import spec_of, unknown
from gyroscope.theory import AdamW, Lion, Rule, UpdateRule

# The option by which pytorch_optimizer chooses the kind of weight decay. Its classes may have names of torch's or ours.
DECOUPLED = "weight_decouple"
# Optimizers around another that move the weights more than once per step, so that the other's rule does not hold.
WRAPPERS = ("Lookahead", "SAM", "GSAM", "ScheduleFreeWrapper")


class OtherOptimizer(NamedTuple):
    """An optimizer of another library. `about` is its rule in words."""

    name: str
    about: str
    rule: Callable[[Group], UpdateRule]


def _by_law(group: Group) -> UpdateRule:
    """Return the one law for an average by β1 of updates of unknown size."""
    return _law(group, betas(group)[0])


def _law(group: Group, beta: float) -> UpdateRule:
    lr, weight_decay = rates(group)
    return Rule(lr * weight_decay, (1 + beta) / (1 - beta))


def _sign(group: Group, option: str) -> UpdateRule:
    beta = number(group, option)
    return Lion(*rates(group), (beta, beta))


def _quasi_hyperbolic(group: Group) -> UpdateRule:
    """Return QHAdam's law: u = (1-ν)·g + ν·m, so that τ = (Σc)²/Σc² with Σc = 1."""
    lr, weight_decay = rates(group)
    beta = betas(group)[0]
    nu = float(group["nus"][0])
    squares = (1 - nu) ** 2 + 2 * nu * (1 - nu) * (1 - beta) + nu**2 * (1 - beta) / (1 + beta)
    return Rule(lr * weight_decay, 1 / squares)


def _prodigy(group: Group) -> UpdateRule:
    lr, weight_decay = rates(group)
    return AdamW(lr * number(group, "d"), weight_decay, betas(group))


AS_ADAMW = "AdamW"
BY_LAW = "rotation of AdamW, norm unknown"

OTHERS = {
    each.name: each
    for each in (
        OtherOptimizer("Lion", "Lion", with_betas(Lion)),
        OtherOptimizer("RAdam", AS_ADAMW, with_betas(AdamW)),
        OtherOptimizer("StableAdamW", AS_ADAMW, with_betas(AdamW)),
        OtherOptimizer("Prodigy", "AdamW at lr·d, with the current d", _prodigy),
        OtherOptimizer("Tiger", "Lion with one β", lambda group: _sign(group, "beta")),
        OtherOptimizer("SignSGD", "Lion with one β", lambda group: _sign(group, "momentum")),
        OtherOptimizer("AdaBelief", BY_LAW, _by_law),
        OtherOptimizer("AdaNorm", BY_LAW, _by_law),
        OtherOptimizer("ADOPT", BY_LAW, _by_law),
        OtherOptimizer("LaProp", BY_LAW, _by_law),
        OtherOptimizer("PAdam", BY_LAW, _by_law),
        OtherOptimizer("SOAP", BY_LAW, _by_law),
        OtherOptimizer("Yogi", BY_LAW, _by_law),
        OtherOptimizer("QHAdam", "one law, τ of g and momentum mixed", _quasi_hyperbolic),
        OtherOptimizer("SGDW", "one law, norm unknown", lambda group: _law(group, number(group, "momentum", 0.0))),
    )
}


def is_other(optimizer: object) -> bool:
    """Return whether an optimizer is one of these, or a wrapper that has no rule."""
    return type(optimizer).__name__ in (*OTHERS, *WRAPPERS)


def is_of_other_library(optimizer: object, group: Group) -> bool:
    """Return whether a class is another library's, although torch or gyroscope may have one of that name."""
    return DECOUPLED in group or (is_other(optimizer) and spec_of(optimizer) is None)


def rule_by_other(name: str, group: Group) -> UpdateRule:
    """Return the rule of another library's optimizer, or raise a ValueError with the reason why it has none."""
    other = OTHERS.get(name)
    if other is None:
        raise ValueError(unknown(name))
    if group.get(DECOUPLED) is False and group.get("weight_decay"):
        raise ValueError(
            f"{other.name} with weight_decouple=False is not covered, because L2 is part of its gradient: "
            f"set weight_decouple=True, or {REMEDY}"
        )
    for option, why in {**UNSUPPORTED, "ams_bound": UNSUPPORTED["amsgrad"]}.items():
        if group.get(option):
            raise ValueError(f"{other.name} with {option}=True is not covered by the theory, because {why}: {REMEDY}")
    return other.rule(group)
