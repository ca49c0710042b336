"""The optimizers of other libraries that people use most: which have a rule, and why the others have none.

The rotation of every optimizer with a rule was compared with it on noise (docs/own-optimizer.md). Classes are
recognised by name, so nothing is imported.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from gyroscope.optimizers.group_rules import REMEDY, betas, number, rates, with_betas
from gyroscope.optimizers.spec import UNSUPPORTED, Group
from gyroscope.theory import AdamW, Lion, Rule, UpdateRule

Status = Literal["predicted", "measured only", "refused"]
# The option by which pytorch_optimizer chooses the kind of weight decay. Its classes may have names of torch's or ours.
DECOUPLED = "weight_decouple"


class OtherOptimizer(NamedTuple):
    """An optimizer of another library. `about` is its rule in words, or the reason why it has none."""

    name: str
    status: Status
    about: str
    rule: Callable[[Group], UpdateRule] | None = None


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
FACTORED = "its update is divided by a factored or block-wise v, whose size is unknown"
RELATIVE = "its step is relative to the weight's norm (trust ratio), so that there is no balance with weight decay"
AVERAGED = "the model holds y, a mean of the iterate z (in the optimizer's state) and of its average"
SLOW = "weights jump to slow weights every k steps"
TWICE = "each step takes two gradients and moves the weights in between"

OTHERS = {
    each.name: each
    for each in (
        OtherOptimizer("Lion", "predicted", "Lion", with_betas(Lion)),
        OtherOptimizer("RAdam", "predicted", AS_ADAMW, with_betas(AdamW)),
        OtherOptimizer("StableAdamW", "predicted", AS_ADAMW, with_betas(AdamW)),
        OtherOptimizer("Prodigy", "predicted", "AdamW at lr·d, with the current d", _prodigy),
        OtherOptimizer("Tiger", "predicted", "Lion with one β", lambda group: _sign(group, "beta")),
        OtherOptimizer("SignSGD", "predicted", "Lion with one β", lambda group: _sign(group, "momentum")),
        OtherOptimizer("AdaBelief", "predicted", BY_LAW, _by_law),
        OtherOptimizer("AdaNorm", "predicted", BY_LAW, _by_law),
        OtherOptimizer("ADOPT", "predicted", BY_LAW, _by_law),
        OtherOptimizer("LaProp", "predicted", BY_LAW, _by_law),
        OtherOptimizer("PAdam", "predicted", BY_LAW, _by_law),
        OtherOptimizer("SOAP", "predicted", BY_LAW, _by_law),
        OtherOptimizer("Yogi", "predicted", BY_LAW, _by_law),
        OtherOptimizer("QHAdam", "predicted", "one law, τ of g and momentum mixed", _quasi_hyperbolic),
        OtherOptimizer(
            "SGDW", "predicted", "one law, norm unknown", lambda group: _law(group, number(group, "momentum", 0.0))
        ),
        OtherOptimizer("AdamS", "measured only", "its decay is divided by the mean of √v, unlike gyroscope's AdamS"),
        OtherOptimizer(
            "AdamC", "measured only", "its decay follows lr². Use AdamW with gyroscope.optim.CorrectedDecay"
        ),
        OtherOptimizer("AdamP", "measured only", "its update is made tangent if the weight looks scale-invariant"),
        OtherOptimizer("SGDP", "measured only", "its update is made tangent if the weight looks scale-invariant"),
        OtherOptimizer("Adan", "measured only", "it averages differences of gradients"),
        OtherOptimizer("MARS", "measured only", "it extrapolates differences of gradients"),
        OtherOptimizer("AdEMAMix", "measured only", "its slow momentum remembers longer than the weights"),
        OtherOptimizer("SophiaH", "measured only", "clipping by an estimated Hessian sets the size of its update"),
        OtherOptimizer("AdaFactor", "measured only", FACTORED),
        OtherOptimizer("AdamMini", "measured only", FACTORED),
        OtherOptimizer("CAME", "measured only", FACTORED),
        OtherOptimizer(
            "GaLore", "measured only", "its updates stay in a subspace that changes every few hundred steps"
        ),
        OtherOptimizer("Shampoo", "measured only", "its preconditioner sums all gradients, so that steps shrink"),
        OtherOptimizer("ScalableShampoo", "measured only", "grafting sets the size of its update"),
        OtherOptimizer("Lamb", "measured only", RELATIVE),
        OtherOptimizer("LARS", "measured only", RELATIVE),
        OtherOptimizer("Ranger", "measured only", SLOW),
        OtherOptimizer("Ranger21", "measured only", SLOW),
        OtherOptimizer("DAdaptAdam", "measured only", "its step size grows until it is found"),
        OtherOptimizer("NorMuon", "measured only", "rows of its update are normalised by a v of their own"),
        OtherOptimizer("AdaMuon", "measured only", "its orthogonalised update is divided by a v of its own"),
        OtherOptimizer("AdamWScheduleFree", "measured only", AVERAGED),
        OtherOptimizer("SGDScheduleFree", "measured only", AVERAGED),
        OtherOptimizer("RAdamScheduleFree", "measured only", AVERAGED),
        OtherOptimizer("ScheduleFreeAdamW", "measured only", AVERAGED),
        OtherOptimizer("ScheduleFreeSGD", "measured only", AVERAGED),
        OtherOptimizer("ScheduleFreeRAdam", "measured only", AVERAGED),
        OtherOptimizer("ScheduleFreeWrapper", "refused", AVERAGED),
        OtherOptimizer("Lookahead", "refused", SLOW),
        OtherOptimizer("SAM", "refused", TWICE),
        OtherOptimizer("GSAM", "refused", TWICE),
    )
}


def other_optimizer(optimizer: object, group: Group, known: bool) -> OtherOptimizer | None:
    """Return the record of another library's optimizer, or None.

    If the name of a class is `known` from torch or gyroscope, it belongs to another library only if its group has that
    library's option.
    """
    other = OTHERS.get(type(optimizer).__name__)
    return other if other is not None and (not known or DECOUPLED in group) else None


def rule_by_other(other: OtherOptimizer, group: Group) -> UpdateRule:
    """Return the rule of another library's optimizer, or raise a ValueError with the reason why it has none."""
    if other.rule is None:
        can = "It can be measured, not predicted" if other.status == "measured only" else "It has no rule"
        raise ValueError(f"{other.name} is not covered by the theory, because {other.about}. {can}: {REMEDY}")
    if group.get(DECOUPLED) is False and group.get("weight_decay"):
        raise ValueError(
            f"{other.name} with weight_decouple=False is not covered, because L2 is part of its gradient: "
            f"set weight_decouple=True, or {REMEDY}"
        )
    for option, why in {**UNSUPPORTED, "ams_bound": UNSUPPORTED["amsgrad"]}.items():
        if group.get(option):
            raise ValueError(f"{other.name} with {option}=True is not covered by the theory, because {why}: {REMEDY}")
    return other.rule(group)
