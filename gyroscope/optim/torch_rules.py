"""From a torch optimizer's parameter group to the theory's rule, by the table of `gyroscope.optimizers`."""

from typing import Any

from gyroscope.model.optimizer_list import algorithm_of, owner_of
from gyroscope.optimizers import SPECS, Group, Rules, rule_by_spec, spec_by_algorithm, spec_of, user_rule
from gyroscope.optimizers.group_rules import REMEDY, number
from gyroscope.theory import Hyperball, UpdateRule


def rule_of(group: Group, optimizer: object, rules: Rules | None = None) -> UpdateRule:
    """Return the theory's rule, with the hyper-parameters of the moment, by which `optimizer` moves `group`.

    Wrappers (Accelerate, Lightning) are looked through. Of several optimizers, a list or a container, the one that has
    the group is asked. An optimizer that the theory does not cover is a ValueError.

    Args:
        group: a parameter group. Its "rule", a function of the group, precedes everything else.
        optimizer: the optimizer of the group.
        rules: functions of the group for classes of your own, {SignMomentum: lambda group: Lion(…)}. They precede the
            table, and hold for subclasses.

    >>> import torch
    >>> sgd = torch.optim.SGD([torch.ones(4, 8)], lr=0.1, momentum=0.9, weight_decay=5e-4)
    >>> rule_of(sgd.param_groups[0], sgd)
    SGDM(lr=0.1, weight_decay=0.0005, momentum=0.9, nesterov=False)
    """
    # Itself first: a wrapper of a known name says what it does.
    spec = spec_of(optimizer)
    stepping: Any = optimizer if spec is not None else owner_of(group, optimizer)
    spec = spec_of(stepping)
    if spec is not None and spec.wraps:
        return _rule_of_wrapper(group, stepping, rules)
    own = user_rule(group, type(stepping).__mro__, rules)
    if own is not None:
        return own
    # A group that names its own algorithm is stepped by that, whatever the class.
    algorithm = algorithm_of(group)
    if algorithm is not None:
        return rule_by_spec(spec_by_algorithm(algorithm), group)
    if spec is None or spec.rule is None:
        known = ", ".join(spec.name for spec in SPECS if spec.rule is not None)
        raise ValueError(f"{type(stepping).__name__} is not among the known optimizers ({known}): {REMEDY}")
    return rule_by_spec(spec, group)


def _rule_of_wrapper(group: Group, wrapper: Any, rules: Rules | None) -> UpdateRule:
    """Return hyperball's rule, the rule that the user has given for the angle, or the inner optimizer's own."""
    if group.get("mode", getattr(wrapper, "mode", None)) == "hyperball":
        return Hyperball(number(group, "lr"), tangent=True)
    angle = group.get("angular_update")
    if angle is not None and not isinstance(angle, UpdateRule):
        raise ValueError(f"angular_update={angle!r} sets the angle by hand: there is no rule to predict it from")
    return angle if angle is not None else rule_of(group, wrapper.inner, rules)


def keeps_norms(optimizer: object) -> bool:
    """Return whether the optimizer holds each rotating vector at the norm it started with."""
    spec = spec_of(owner_of({}, optimizer))
    return spec is not None and spec.keeps_norms


def follows_base(optimizer: object) -> bool:
    """Return whether `follow` sets the angles of such an optimizer: its base's on its way, not those of equilibrium."""
    return bool(getattr(owner_of({}, optimizer), "angle_factors", None))
