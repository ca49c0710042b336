"""From a torch optimizer's parameter group to the theory's rule, by the table of `gyroscope.optimizers`."""

from typing import Any

from gyroscope.model.optimizer_list import owner_of
from gyroscope.optimizers import Group, Rules, hyperball, is_known, rule_by_record, spec_of, user_rule
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
    stepping: Any = optimizer if is_known(optimizer) else owner_of(group, optimizer)
    spec = spec_of(stepping)
    if spec is not None and spec.wraps:
        return _rule_of_wrapper(group, stepping, rules)
    own = user_rule(group, type(stepping).__mro__, rules)
    return rule_by_record(stepping, group) if own is None else own


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
