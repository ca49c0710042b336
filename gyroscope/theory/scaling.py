"""Settings for another batch, length, width or depth: a linear map from a rule's powers to the changes they cause.

In logarithms every rule of `transfer_rules` is a vector of powers. With a = lr·weight_decay the map is

    rotation ∝ a^(1/2)     memory in tokens ∝ B/a     run length ∝ a·D/B     RMS entry ∝ (lr/weight_decay)^(1/2)

for decoupled weight decay. On a sphere the learning rate is the rotation, so a ∝ lr². Ours: docs/theory.md, "Transfer".
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from gyroscope._checks import check_positive
from gyroscope.theory.rules.base import UpdateRule
from gyroscope.theory.schedules import Schedule
from gyroscope.theory.transfer_move import Move
from gyroscope.theory.transfer_rows import Scale, TransferRow
from gyroscope.theory.transfer_rules import AXES, RULES, TransferRule, family_of, recommended_rule
from gyroscope.theory.transfer_trials import TRIED

# Largest change of one axis that the source of any rule has tested.
LARGEST_CHANGE = 32.0


@final
@dataclass(frozen=True)
class Transfer:
    """Settings for another scale by every published rule.

    rule         the tuned settings
    base, to     the scale at which they were tuned, and the new one
    tuned        the tuned settings at the base, as a row
    rows         one for each transfer rule
    recommended  exactly one row: the product, over the axes that change, of the rule that trials favour for each
    decided      whether trials of ours support it: one axis changes, or none. No trial covers a joint change yet
    beyond       axes that change by more than any source has tested
    """

    rule: UpdateRule
    base: Scale
    to: Scale
    tuned: TransferRow
    rows: tuple[TransferRow, ...]
    recommended: tuple[TransferRow, ...]
    decided: bool
    beyond: tuple[str, ...]


def transfer(
    rule: UpdateRule,
    *,
    base: Scale,
    to: Scale,
    schedule: Schedule | None = None,
    transfer_rules: Sequence[TransferRule] | None = None,
    initial_norm: float | None = None,
) -> Transfer:
    """Return the settings for another scale by every rule, and what each of them keeps.

    rule            tuned settings, such as AdamW(6e-4, 0.1)
    base, to        the scale at which they were tuned, and the new one
    schedule        shape of the learning rate over a run, of any number of steps. None is constant
    transfer_rules  rules to compare, of which the first is recommended. `transfer_rules.RULES` if not given
    initial_norm    norm of one weight vector at the start, for example 0.577 (torch's Linear)

    >>> from gyroscope.theory import AdamW
    >>> t = transfer(AdamW(6e-4, 0.1), base=Scale(0.5e6, 10e9), to=Scale(2e6, 10e9))
    >>> [(row.name, f"{row.lr:.1e}", f"{row.weight_decay:.2f}") for row in t.recommended]
    [('tau', '1.2e-03', '0.20')]
    """
    if initial_norm is not None:
        check_positive("initial_norm", initial_norm)
    move = Move(rule, _ratios(base, to), to, schedule, initial_norm)
    tuned = replace(move, to=base).measured(TransferRow("tuned", ""), rule)
    rules = RULES if transfer_rules is None else tuple(transfer_rules)
    if not rules:
        raise ValueError("transfer_rules is empty. Give at least one rule, or leave it out")
    rows = tuple(move.row(each, tuned) for each in rules)
    changed = [axis for axis in AXES if move.ratios[axis] != 1]
    family = family_of(rule)
    # A user's own table has no trials, so that its order counts.
    preferred = move.row(recommended_rule(family, changed), tuned) if transfer_rules is None else None
    candidates = rows if preferred is None else (preferred, *rows)
    recommended = next((row for row in candidates if row.lr is not None), candidates[0])
    is_tried = len(changed) == 1 and changed[0] in TRIED and family == "adam"
    decided = recommended is preferred and (is_tried or not changed)
    beyond = tuple(axis for axis in AXES if not 1 / LARGEST_CHANGE <= move.ratios[axis] <= LARGEST_CHANGE)
    return Transfer(rule, base, to, tuned, rows, (recommended,), decided, beyond)


def _ratios(base: Scale, to: Scale) -> dict[str, float]:
    """Return the ratio of each axis and of the parameters."""
    ratios = {}
    for axis in (*AXES, "params"):
        before = getattr(base, axis)
        after = getattr(to, axis)
        if (before is None) != (after is None):
            raise ValueError(f"{axis} is given for one of the two scales. Give it for both, or for none")
        ratios[axis] = 1.0 if before is None else after / before
    if base.params is None:
        ratios["params"] = ratios["width"] ** 2 * ratios["depth"]
    return ratios
