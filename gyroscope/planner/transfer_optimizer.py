"""A transfer from a rule of the theory or from an optimizer of torch."""

from collections.abc import Sequence
from typing import Any

from gyroscope.theory import FixedNorm, Scale, Schedule, Transfer, TransferRule, UpdateRule
from gyroscope.theory import transfer as transfer_rule


def transfer(
    rule: Any,
    *,
    base: Scale,
    to: Scale,
    schedule: Schedule | None = None,
    transfer_rules: Sequence[TransferRule] | None = None,
    initial_norm: float | None = None,
) -> Transfer:
    """Return the settings for another scale by every rule, and what each of them keeps.

    rule  tuned settings, such as AdamW(6e-4, 0.1), or a torch optimizer, whose first group that decays counts

    The other arguments are those of `gyroscope.theory.transfer`.

    >>> import torch
    >>> sgd = torch.optim.SGD([torch.ones(4, 8)], lr=0.1, momentum=0.9, weight_decay=5e-4)
    >>> moved = transfer(sgd, base=Scale(batch=128, tokens=1e6), to=Scale(batch=256, tokens=1e6))
    >>> f"{moved.recommended[0].name}: lr {moved.recommended[0].lr:g}"
    'linear: lr 0.2'
    """
    if not isinstance(rule, UpdateRule):
        rule = _rule(rule)
    options: dict[str, Any] = {"schedule": schedule, "transfer_rules": transfer_rules, "initial_norm": initial_norm}
    return transfer_rule(rule, base=base, to=to, **options)


def _rule(optimizer: Any) -> UpdateRule:
    from gyroscope.optim.torch_rules import (
        keeps_norms,
        rule_of,
    )  # torch is slow to import, and a theory rule does without

    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        raise ValueError(f"transfer needs a theory rule or a torch optimizer, not {type(optimizer).__name__}")
    rules = [rule_of(group, optimizer) for group in groups if group.get("granularity") != "none"]
    moving = [rule for rule in rules if rule.weight_decay > 0 or not rule.has_weight_decay]
    if not moving:
        raise ValueError(f"no group of {type(optimizer).__name__} has weight decay. Set weight_decay, for example 0.1")
    return FixedNorm(moving[0]) if keeps_norms(optimizer) and not moving[0].keeps_norm else moving[0]
