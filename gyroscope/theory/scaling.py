"""Settings for another batch, length, width or depth: a linear map from a rule's powers to the changes they cause.

In logarithms every rule of `transfer_rules` is a vector of powers. With a = lr·weight_decay the map is

    rotation ∝ a^(1/2)     memory in tokens ∝ B/a     run length ∝ a·D/B     RMS entry ∝ (lr/weight_decay)^(1/2)

for decoupled weight decay. On a sphere the learning rate is the rotation, so a ∝ lr². Ours: docs/theory.md, "Transfer".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, final

import numpy as np

from gyroscope._checks import check_positive
from gyroscope.theory.rules.base import UpdateRule
from gyroscope.theory.schedules import Schedule
from gyroscope.theory.transfer_rules import AXES, MADE_FOR, RULES, TransferRule, family_of, recommended_rule
from gyroscope.theory.transfer_trials import TRIED

# Largest change of one axis that the source of any rule has tested.
LARGEST_CHANGE = 32.0


@final
@dataclass(frozen=True)
class Scale:
    """The size of a run. Batch and tokens have one unit: tokens, samples or anything else that is counted.

    batch   tokens in one step
    tokens  tokens in the whole run
    width   entries of one weight vector of a hidden layer
    depth   number of blocks
    params  number of parameters, assumed to grow as width² × depth if it is not given

    >>> Scale(batch=0.5e6, tokens=10e9).steps
    20000.0
    """

    batch: float
    tokens: float
    width: float | None = None
    depth: float | None = None
    params: float | None = None

    def __post_init__(self) -> None:
        for name in (*AXES, "params"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.tokens < self.batch:
            raise ValueError(f"tokens={self.tokens:g} is less than one batch={self.batch:g}. Use one unit for both")

    @property
    def steps(self) -> float:
        """The number of steps."""
        return self.tokens / self.batch


@final
@dataclass(frozen=True)
class TransferSettings:
    """The settings of one group of parameters."""

    lr: float
    weight_decay: float


@final
@dataclass(frozen=True)
class TransferRow:
    """A rule applied to a change of scale: its settings, and what they keep. None means not determined."""

    name: str
    source: str
    lr: float | None = None
    weight_decay: float | None = None
    betas: tuple[float, float] | None = None  # if the rule changes them
    eps_factor: float = 1.0
    groups: Mapping[str, TransferSettings] = field(default_factory=dict)  # of hidden weights, head, embeddings, gains
    rotation: float | None = None  # radians per step at the peak learning rate in equilibrium
    memory: float | None = None  # tokens after which a direction is forgotten
    run_length: float | None = None  # memories in the whole run
    rms_entry: float | None = None  # RMS entry of a weight in equilibrium
    start_over_rotation: float | None = None  # rotation of the first steps over equilibrium, from the initial norm
    silent_on: tuple[str, ...] = ()  # changed axes that the rule does not cover, filled with the favoured rule
    rule_by_axis: Mapping[str, str] = field(default_factory=dict)  # the rule that each changed axis follows
    note: str = ""  # why there are no settings
    decay_by_axis: Mapping[str, float] = field(default_factory=dict)  # factor of lr·weight_decay, on a sphere of lr²

    def applied_to(self, rule: UpdateRule) -> UpdateRule:
        """Return the rule with the settings of this row that it has."""
        settings = {"lr": self.lr, "weight_decay": self.weight_decay, "betas": self.betas}
        own = {name: value for name, value in settings.items() if value is not None and name in rule.plain.settings}
        return with_settings(rule, own)


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


def with_settings(rule: UpdateRule, settings: Mapping[str, Any]) -> UpdateRule:
    """Return the rule with these settings. A rule that only keeps norms passes them to its inner rule.

    >>> from gyroscope.theory import AdamW, FixedNorm
    >>> with_settings(FixedNorm(AdamW(1e-3, 0.1)), {"lr": 2e-3}).plain.lr
    0.002
    """
    plain = rule.plain.replace(**settings)
    return plain if rule.plain is rule else rule.replace(rule=plain)


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


@final
@dataclass(frozen=True)
class Move:
    """A change of scale of a tuned rule: by these ratios, to this scale."""

    rule: UpdateRule
    ratios: Mapping[str, float]
    to: Scale
    schedule: Schedule | None
    initial_norm: float | None

    def row(self, each: TransferRule, tuned: TransferRow) -> TransferRow:
        """Return the settings by a transfer rule, and what they keep."""
        rule = self.rule.plain
        silent = tuple(axis for axis in AXES if self.ratios[axis] != 1 and axis not in each.speaks_of)
        lr_powers, decay_powers = each.powers(silent)
        lr = rule.lr * self._factor(lr_powers)
        decay = rule.weight_decay * self._factor(decay_powers)
        if each.lr_limit is not None:
            lr = min(lr, each.lr_limit)
        betas = self._betas(each)
        # The square of the rotation on a sphere is that of the learning rate.
        of_decay = {axis: each.rotation_power * lr_powers[axis] + decay_powers[axis] for axis in lr_powers}
        by_axis = {axis: self.ratios[axis] ** power for axis, power in of_decay.items() if self.ratios[axis] != 1}
        followed = {axis: name for axis, name in each.names().items() if self.ratios[axis] != 1}
        row = TransferRow(each.name, each.source, silent_on=silent, rule_by_axis=followed, decay_by_axis=by_axis)
        note = ""
        if betas is not None and not 0 < betas[1] < 1:
            note = f"beta2 would be {betas[1]:.3g}"
        elif each.family not in ("any", family_of(rule)):
            note = f"for {MADE_FOR[each.family]}"
        elif lr * decay >= 1:
            note = "a step would remove the whole weight"
        if note:
            return self._in_proportion(replace(row, note=note), each, tuned)
        settings: dict[str, Any] = {"lr": lr, "weight_decay": decay} if rule.has_weight_decay else {"lr": lr}
        # All at once, because a new learning rate with the old weight decay may be out of range.
        moved = with_settings(self.rule, settings | ({} if betas is None else {"betas": betas}))
        groups = self._groups(moved.plain, lr_powers["width"], decay_powers["width"])
        eps_factor = self.ratios["batch"] ** -0.5 if each.scales_eps else 1.0
        return self.measured(replace(row, betas=betas, eps_factor=eps_factor, groups=groups), moved)

    def _factor(self, powers: Mapping[str, float]) -> float:
        return float(prod(self.ratios[axis] ** power for axis, power in powers.items()))

    def _betas(self, each: TransferRule) -> tuple[float, float] | None:
        rule = self.rule.plain
        # Hyperball has the betas of the optimizer inside.
        betas = rule.settings.get("betas") if rule.keeps_norm else rule.adam_betas
        r = self.ratios["batch"]
        if each.beta2 is None or betas is None or r == 1:
            return None
        beta2 = 1 - (1 - betas[1]) * r if each.beta2 == "linear" else betas[1] ** r
        if each.beta2_range is not None:
            low, high = each.beta2_range
            beta2 = min(max(beta2, low), high)
        return betas[0], beta2

    def _groups(self, moved: UpdateRule, lr_power: float, decay_power: float) -> dict[str, TransferSettings]:
        """Return the settings by group. Width changes those of matrices alone (arXiv 2203.03466, Table 3)."""
        matrices = TransferSettings(moved.lr, moved.weight_decay)
        if moved.keeps_norm:  # Hyperball's is a relative length, which other groups do not have
            return {"hidden": matrices}
        lr = moved.lr / self.ratios["width"] ** lr_power
        decay = moved.weight_decay / self.ratios["width"] ** decay_power
        table = TransferSettings(lr, decay)
        return {"hidden": matrices, "head": matrices, "embedding": table, "gains": TransferSettings(lr, 0.0)}

    def measured(self, row: TransferRow, rule: UpdateRule) -> TransferRow:
        """Return the row with the equilibrium of its settings."""
        width = self.to.width
        shape = None if width is None or not rule.whole_matrix else (round(width),) * 2
        settled = rule.equilibrium(shape=shape)
        rms_entry = _rms_entry(rule, shape)
        start = None
        if self.initial_norm is not None and rule.keeps_norm:
            start = 1.0
        elif self.initial_norm is not None and rms_entry is not None and width is not None:
            start = rms_entry * width**0.5 / self.initial_norm
        # The decay of a step over that at the peak learning rate follows the square of its angle.
        mean_decay = 1.0
        if self.schedule is not None:
            multipliers = self.schedule(np.arange(self.schedule.steps))
            mean_decay = float(np.mean(multipliers ** (2 * rule.angle_exponent)))
        timescale = settled.timescale
        return replace(
            row,
            lr=rule.plain.lr,
            weight_decay=rule.plain.weight_decay,
            rotation=settled.angular_update,
            memory=None if timescale is None else timescale * self.to.batch,
            run_length=None if timescale is None else self.to.steps * mean_decay / timescale,
            rms_entry=rms_entry,
            start_over_rotation=start,
        )

    def _in_proportion(self, row: TransferRow, each: TransferRule, tuned: TransferRow) -> TransferRow:
        """Return what a rule without settings would change in the tuned run, by the map alone."""
        decay = prod(row.decay_by_axis.values())
        batch = self.ratios["batch"]
        steps = self.ratios["tokens"] / batch
        return replace(
            row,
            rotation=None if tuned.rotation is None else tuned.rotation * decay**0.5,
            memory=None if tuned.memory is None else tuned.memory * batch / decay,
            run_length=None if tuned.run_length is None else tuned.run_length * decay * steps,
            start_over_rotation=1.0 if each.family == "sphere" and tuned.start_over_rotation is not None else None,
        )


def _rms_entry(rule: UpdateRule, shape: tuple[int, int] | None) -> float | None:
    if rule.keeps_norm or (rule.needs != ("fan_in",) and (rule.needs != ("shape",) or shape is None)):
        return None
    norm = rule.equilibrium(fan_in=1.0 if shape is None else None, shape=shape).norm
    return None if norm is None else float(norm) / prod(shape or (1,)) ** 0.5
