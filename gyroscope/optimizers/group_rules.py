"""From the options of a parameter group to the theory's rule: the functions that the table names."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isclose, prod
from typing import Any, TypeAlias

from gyroscope.optimizers.spec import BOOKKEEPING, UNSUPPORTED, Group, OptimizerSpec
from gyroscope.theory import SGDM, Adafactor, AdamL2, AdamW, Hyperball, KAdam, Muon, NAdam, NAdamL2, UpdateRule
from gyroscope.theory.rules.muon import NEWTON_SCHULZ, NEWTON_SCHULZ_STEPS

GroupRuleFunction: TypeAlias = Callable[[Group], UpdateRule]
# Rules of a user's own optimizers, by class.
Rules: TypeAlias = Mapping[type, GroupRuleFunction]

# The names of cautious decay in groups: dion's, and that of others.
CAUTIOUS_DECAY = ("cautious_wd", "cautious_weight_decay")

# The matrix whose correlation of updates is used if no shape is known.
SQUARE = (64, 64)
REMEDY = (
    "pass rules={its class: function of the group}, or put that function into the group as group['rule']. It returns a "
    "rule of gyroscope.theory: Rule(decay=…, correlation_time=…, update_rms=…), or the closest known rule, for "
    "example AdamW(lr, weight_decay, betas) (docs/own-optimizer.md)"
)


def rule_by_spec(spec: OptimizerSpec, group: Group) -> UpdateRule:
    """Return the rule of an optimizer with a group's options, or raise a ValueError that names what is not covered."""
    assert spec.rule is not None
    refuse_unsupported(spec.name, group)
    return with_cautious_decay(spec.name, spec.rule(group), group)


def refuse_unsupported(name: str, group: Group) -> None:
    """Raise a ValueError for an option that the theory does not cover in any optimizer."""
    for option, why in UNSUPPORTED.items():
        if is_set(group.get(option)):
            raise ValueError(
                f"{name} with {option}={group[option]!r} is not covered by the theory, because {why}: "
                f"set {option}=False, or {REMEDY}"
            )


def refuse_unknown(name: str, group: Group, known: Iterable[str], options: Mapping[str, Any]) -> None:
    """Raise a ValueError for an option of the class that its record does not know, unless it is off.

    `options` are the defaults of the class. A key that a user adds to a group is not among them, and the step does not
    read it. A class without defaults may read any key.
    """
    for option in sorted(set(group) - BOOKKEEPING.union(known)):
        if is_set(group[option]) and (not options or option in options):
            raise ValueError(
                f"{name} with {option}={group[option]!r} is not covered, because no rule is known for that option: "
                f"{REMEDY}"
            )


def is_set(value: Any) -> bool:
    """Return whether an option is on. Tensors and arrays are, because reading them may wait for a device."""
    return bool(value) if isinstance(value, bool | int | float | str | tuple | list | dict | None) else True


def with_cautious_decay(name: str, rule: UpdateRule, group: Group) -> UpdateRule:
    """Return the rule with cautious decay if the group asks for it."""
    cautious = next((option for option in CAUTIOUS_DECAY if group.get(option)), None)
    if cautious is None:
        return rule
    if "cautious_decay" not in rule.settings:
        raise ValueError(
            f"{name} with {cautious}=True is not covered, because its weights do not decay themselves: {REMEDY}"
        )
    return rule.replace(cautious_decay=True)


def user_rule(group: Group, classes: tuple[type, ...], rules: Rules | None) -> UpdateRule | None:
    """Return the user's rule for a group, or None: its own "rule" first, then that of its class.

    >>> user_rule({"lr": 1e-3, "rule": lambda group: AdamW(group["lr"], 0.1)}, (), None)
    AdamW(lr=0.001, weight_decay=0.1, betas=(0.9, 0.999), corrected_decay=False)
    """
    function = group.get("rule")
    if function is None:
        function = next((rules[cls] for cls in classes if cls in rules), None) if rules else None
    if function is None:
        return None
    if not callable(function):
        raise ValueError(f"rule={function!r} must be a function of the parameter group that returns a theory rule")
    try:
        rule = function(group)
    except KeyError as error:
        raise ValueError(f"the rule of the group needs {error}, and the group has no such option") from None
    if not isinstance(rule, UpdateRule):
        raise ValueError(f"the rule of the group is {rule!r}: return a rule of gyroscope.theory, for example AdamW")
    return rule


def number(group: Group, option: str, default: float | None = None) -> float:
    """Return an option as a float, because lr, betas and weight decay may be tensors in torch."""
    value = group.get(option, default)
    if value is None:
        raise ValueError(lacks(group, option))
    return float(value)


def rates(group: Group) -> tuple[float, float]:
    """Return the learning rate and the weight decay."""
    return number(group, "lr"), number(group, "weight_decay", 0.0)


def betas(group: Group) -> tuple[float, float]:
    """Return both betas, also if they are spelled beta1 and beta2 (dion)."""
    if "beta1" in group and "betas" not in group:
        return number(group, "beta1"), number(group, "beta2")
    if "betas" not in group:
        raise ValueError(lacks(group, "betas"))
    beta1, beta2 = group["betas"]
    return float(beta1), float(beta2)


def lacks(group: Group, option: str) -> str:
    """Return the sentence about an option that a group lacks."""
    return f"the group has no {option!r}, only {sorted(set(group) - {'params', 'param_names'})}: {REMEDY}"


def with_betas(rule: Callable[..., UpdateRule]) -> GroupRuleFunction:
    """Return the function for a rule of lr, weight decay and betas."""
    return lambda group: rule(*rates(group), betas(group))


def sgd(group: Group) -> UpdateRule:
    """Return SGDM with torch's dampening."""
    lr, weight_decay = rates(group)
    momentum = number(group, "momentum", 0.0)
    # Dampening multiplies everything that enters the buffer. Without momentum torch has no buffer and ignores it.
    share = 1 - number(group, "dampening", 0.0) if momentum else 1.0
    return SGDM(lr * share, weight_decay, momentum, nesterov=bool(group.get("nesterov")))


def adam(group: Group) -> UpdateRule:
    """Return AdamW or AdamL2, by torch's option."""
    return (AdamW if group.get("decoupled_weight_decay") else AdamL2)(*rates(group), betas(group))


def nadam(group: Group) -> UpdateRule:
    """Return NAdam or NAdamL2, by torch's option."""
    # Without decay there is nothing to couple.
    decoupled = group.get("decoupled_weight_decay") or number(group, "weight_decay", 0.0) == 0
    # Optimizers of other libraries may have no ramp.
    ramp = number(group, "momentum_decay") if "momentum_decay" in group else None
    return (NAdam if decoupled else NAdamL2)(*rates(group), betas(group), momentum_decay=ramp)


def torch_muon(group: Group) -> UpdateRule:
    """Return Muon with torch's options."""
    steps = int(group.get("ns_steps", NEWTON_SCHULZ_STEPS))
    coefficients = tuple(group.get("ns_coefficients", NEWTON_SCHULZ))
    if not 3 <= steps <= 6 or coefficients != NEWTON_SCHULZ:
        raise ValueError(
            f"Muon with ns_steps={steps!r} and ns_coefficients={coefficients!r} is not covered by the theory, because "
            f"the correlation of its updates is known for torch's {NEWTON_SCHULZ} and 3 to 6 steps: {REMEDY}"
        )
    adjustment: Any = group.get("adjust_lr_fn") or "original"
    iterations = "original" if steps == NEWTON_SCHULZ_STEPS else (NEWTON_SCHULZ,) * steps
    momentum = number(group, "momentum")
    return Muon(*rates(group), momentum, bool(group.get("nesterov", True)), adjustment, ns_coefficients=iterations)


def torch_adafactor(group: Group) -> UpdateRule:
    """Return torch's Adafactor."""
    lr, weight_decay = rates(group)
    return Adafactor(lr, weight_decay, float(group["beta2_decay"]), float(group["d"]), float(group["eps"][1]))


def k_adam(group: Group) -> UpdateRule:
    """Return k-Adam's rule, or Adam's for a single stage."""
    k = int(group["k"])
    stages = group["betas"]
    coupled = bool(group.get("coupled"))
    has_pairs = isinstance(stages[0], tuple | list)
    if k == 1:
        first = betas({"betas": stages[0] if has_pairs else stages})
        return (AdamL2 if coupled else AdamW)(*rates(group), first)
    given = tuple(map(tuple, stages)) if has_pairs else betas(group)
    return KAdam(*rates(group), k, given, group.get("strategy", "inverse_exp"), coupled)


def spherical_adam(group: Group) -> UpdateRule:
    """Return the tangent step of AdamG, or of AdamG* if there is a v0, relative to the norm.

    Gradients of constant size h have v = h² and E‖m‖² = h²(1-β1)/(1+β1), and v = h²/(1-β2) in AdamG*.
    """
    beta1, beta2 = betas(group)
    square = (1 - beta1) / (1 + beta1) if group.get("v0") is None else 1 - beta2
    return Hyperball(number(group, "lr") * square**0.5, tangent=True)


def hyperball(group: Group, rule: UpdateRule | None) -> Hyperball:
    """Return Hyperball with the momentum of the inner optimizer's rule, or the tangent one, which needs none."""
    lr = number(group, "lr")
    if rule is None:
        return Hyperball(lr, tangent=True)
    beta = rule.momentum_factor
    shapes = shapes_of(group)
    tau = correlation_time(rule, shapes)
    if tau is None and rule.adam_betas is None:
        raise ValueError(f"{rule.name} inside Hyperball is not covered, because its correlation is unknown: {REMEDY}")
    if tau is None or isclose(tau, (1 + beta) / (1 - beta), rel_tol=1e-6):
        return Hyperball(lr, momentum=beta) if rule.adam_betas is None else Hyperball(lr, betas=rule.adam_betas)
    # Lion's signs remember by its second beta.
    ratio = rule.settings["betas"][1] if rule.sign_beta is not None else beta
    return Hyperball(lr, momentum=ratio or None, correlation_time=tau)


def shapes_of(group: Group) -> Sequence[tuple[int, ...]]:
    """Return the shapes of a group's parameters. A tracker keeps them in place of the parameters."""
    return group["shapes"] if "shapes" in group else [tuple(p.shape) for p in group.get("params", ())]


def correlation_time(rule: UpdateRule, shapes: Sequence[tuple[int, ...]] = ()) -> float | None:
    """Return τ of a rule's updates, for the largest of several matrices, or None if it is unknown.

    >>> f"{correlation_time(Muon(0.02, 0.0)):.1f}"
    '23.3'
    """
    if "correlation_time" in rule.settings:
        return float(rule.settings["correlation_time"])
    # The law to leading order, η_r² = 2a/τ, at any decay.
    changes = {"lr": 0.1, "weight_decay": 1e-3, "cautious_decay": False, "corrected_decay": False}
    known = {name: value for name, value in changes.items() if name in rule.settings}
    matrix = max((shape for shape in shapes if len(shape) > 1), key=prod, default=SQUARE)
    settled = rule.replace(**known).equilibrium(shape=matrix, leading_order=True)
    if settled.angular_update is None or settled.timescale is None:
        return None
    return max(1.0, float(2 / (settled.timescale * settled.angular_update**2)))
