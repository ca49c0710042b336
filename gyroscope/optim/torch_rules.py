"""From a torch optimizer's parameter group to the theory's rule, by the table of `gyroscope.optimizers`."""

from typing import Any

from gyroscope.model.optimizer_list import algorithm_of, owner_of
from gyroscope.optimizers import Group, Rules, hyperball, rule_by_spec, spec_by_algorithm, spec_of, user_rule
from gyroscope.optimizers.other_libraries import is_of_other_library, is_other, rule_by_other
from gyroscope.optimizers.table import unknown
from gyroscope.theory import UpdateRule


def rule_of(group: Group, optimizer: object, rules: Rules | None = None) -> UpdateRule:
    """Return the theory's rule by which `optimizer` moves `group`, at the group's current hyper-parameters.

    Wrappers (Accelerate, Lightning), lists and containers are searched for the optimizer of the group. An optimizer
    that the theory does not cover raises a ValueError.

    Args:
        group: a parameter group. Its "rule", a function of the group, precedes everything else.
        optimizer: the optimizer of the group.
        rules: functions of the group for your own classes and their subclasses, {SignMomentum: lambda group: Lion(…)}.
            They precede the table.

    >>> import torch
    >>> sgd = torch.optim.SGD([torch.ones(4, 8)], lr=0.1, momentum=0.9, weight_decay=5e-4)
    >>> rule_of(sgd.param_groups[0], sgd)
    SGDM(lr=0.1, weight_decay=0.0005, momentum=0.9, nesterov=False)
    """
    # A known wrapper (Rotational, Lookahead) is not unwrapped, because it changes the rule.
    is_known = spec_of(optimizer) is not None or is_other(optimizer)
    stepping: Any = optimizer if is_known else owner_of(group, optimizer)
    spec = spec_of(stepping)
    if spec is not None and spec.wraps:
        return _rule_of_wrapper(group, stepping, rules)
    own = user_rule(group, type(stepping).__mro__, rules)
    if own is not None:
        return own
    # A group may name its own algorithm, for any class.
    algorithm = algorithm_of(group)
    if algorithm is not None:
        return rule_by_spec(spec_by_algorithm(algorithm), group)
    name = type(stepping).__name__
    if is_of_other_library(stepping, group):
        return rule_by_other(name, group)
    if spec is None or spec.rule is None:
        raise ValueError(unknown(name))
    return rule_by_spec(spec, group)


def _rule_of_wrapper(group: Group, wrapper: Any, rules: Rules | None) -> UpdateRule:
    """Return hyperball's rule, the rule that the user has given for the angle, or the inner optimizer's own."""
    if group.get("mode") == "hyperball":
        return hyperball(group, None if group.get("tangent") else rule_of(group, wrapper.inner, rules))
    angle = group.get("angular_update")
    if angle is not None and not isinstance(angle, UpdateRule):
        raise ValueError(f"angular_update={angle!r} sets the angle by hand, so no rule predicts it")
    return angle if angle is not None else rule_of(group, wrapper.inner, rules)


def keeps_norms(optimizer: object) -> bool:
    """Return whether the optimizer keeps each rotating vector at its initial norm."""
    spec = spec_of(owner_of({}, optimizer))
    return spec is not None and spec.keeps_norms


def follows_base(optimizer: object) -> bool:
    """Return whether `follow` sets the optimizer's angles, so that they differ from those of equilibrium."""
    return bool(getattr(owner_of({}, optimizer), "follows_base", False))
