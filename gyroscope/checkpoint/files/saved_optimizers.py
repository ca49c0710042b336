"""The optimizer of a saved state, by its options and the names of its state, and its update rule."""

from collections.abc import Collection

from gyroscope.optimizers import COMMANDS, SPECS, Group, OptimizerSpec, hyperball, rule_by_spec, spec_by_name
from gyroscope.theory import FixedNorm, UpdateRule

# Names on the command line of optimizers, which a user may give if the file does not determine one.
NAMES = {command: spec.name for command, spec in COMMANDS.items()}


def optimizer_name(group: Group, state: Collection[str], asked: str | None) -> str | None:
    """Return the class of the optimizer, or None if it is unknown. Raise ValueError if several are possible.

    `state` has the names of a parameter's state values. `asked` is the name that the user gives.
    """
    if asked is not None:
        return NAMES[asked]
    own = [spec for spec in SPECS if spec.is_shown_by(group, state, distinctive=True)]
    return _only(own, group) if own else inner_name(group, state)


def inner_name(group: Group, state: Collection[str]) -> str | None:
    """Return the same for an optimizer without distinctive options, also for the inner optimizer of a wrapper."""
    return _only([spec for spec in SPECS if spec.is_shown_by(group, state, distinctive=False)], group)


def _only(specs: list[OptimizerSpec], group: Group) -> str | None:
    if not specs:
        return None
    # Without weight decay the Adams take the same step.
    if len(specs) > 1 and (group.get("weight_decay") or len({spec.formula for spec in specs}) > 1):
        kinds = " or ".join(f"{spec.name} ({spec.decay} weight decay)" for spec in specs)
        choices = " or ".join(repr(spec.command) for spec in specs)
        raise ValueError(
            f"the file does not show whether its optimizer is {kinds}: pass optimizer={choices} "
            f"(--optimizer {specs[0].command})"
        )
    return specs[0].name


def rule_of_group(name: str | None, group: Group, state: Collection[str] = ()) -> UpdateRule | None:
    """Return the theory's rule of a group, or None. A ValueError names a setting that the file lacks."""
    spec = spec_by_name(name)
    if spec is None or group.get("amsgrad"):
        return None
    if spec.wraps:
        return _rule_of_wrapper(group, state)
    if spec.rule is None:
        return None
    for option in ("lr", *spec.needed):
        if group.get(option) is None:
            raise ValueError(f"the file lacks the {option} of its {spec.name}: pass {option}=… (--{option} …)")
    try:
        rule = rule_by_spec(spec, group)
    except ValueError:  # settings that theory does not cover
        return None
    return FixedNorm(rule) if spec.keeps_norms else rule


def _rule_of_wrapper(group: Group, state: Collection[str]) -> UpdateRule | None:
    """Return hyperball's rule, or that of the inner optimizer. None if code sets the angle."""
    if group.get("mode") == "hyperball":
        if group.get("tangent"):
            return hyperball(group, None)
        # Decay is along the weights, so its kind does not matter.
        momentum_rule = rule_of_group(inner_name({**group, "weight_decay": 0.0}, state), group)
        return None if momentum_rule is None else hyperball(group, momentum_rule)
    # A state_dict does not contain code.
    by_rule = group.get("angular_update", "code") is None and group.get("angle_schedule", "code") is None
    inner = rule_of_group(inner_name(group, state), group) if by_rule else None
    return FixedNorm(inner) if inner is not None else None
