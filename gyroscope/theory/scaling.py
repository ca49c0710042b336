"""Settings for another batch, length, width or depth: one linear map from a rule's powers to what it keeps.

Take logarithms, and every rule of `transfer_rules` is a vector of powers. With a = lr·weight_decay the map is

    rotation ∝ a^(1/2)     memory in tokens ∝ B/a     run length ∝ a·D/B     RMS entry ∝ (lr/weight_decay)^(1/2)

for decoupled weight decay. On a sphere the learning rate is the rotation, so a ∝ lr². Ours: docs/theory.md, "Transfer".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import final

import numpy as np

from gyroscope._checks import check_positive
from gyroscope.theory.rules.base import UpdateRule
from gyroscope.theory.schedules import Schedule
from gyroscope.theory.transfer_rules import (
    AXES,
    DEFAULTS,
    FAMILIES,
    RULES,
    SPHERE_DEFAULTS,
    Family,
    Powers,
    TransferRule,
)

# No source of a rule has tried a larger change of one axis.
LARGEST_CHANGE = 32.0
# The rules to print first, by family and by the axes that change: the first entry whose axes cover the change.
# Two names mean that no trial of ours decides between them.
RECOMMENDED: Mapping[Family, tuple[tuple[frozenset[str], tuple[str, ...]], ...]] = {
    "adam": (
        (frozenset(), ("copy",)),
        (frozenset({"depth"}), ("copy",)),
        (frozenset({"width"}), ("independent", "mup")),
        (frozenset({"batch"}), ("tau", "tau-wd")),
        (frozenset(AXES), ("tau", "completed")),
    ),
    "sphere": ((frozenset(), ("copy",)), (frozenset(AXES), ("hyperp", "marin-muonh"))),
    "sgd": ((frozenset(), ("copy",)), (frozenset(AXES), ("linear", "copy"))),
}


@final
@dataclass(frozen=True)
class Scale:
    """The size of a run. Batch and tokens have one unit: tokens, samples or anything else that is counted.

    batch   tokens in one step
    tokens  tokens in the whole run
    width   entries of one weight vector of a hidden layer
    depth   number of blocks
    params  number of parameters, taken to grow as width² × depth if it is not given

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
class GroupSettings:
    """The settings of one group of parameters."""

    lr: float
    weight_decay: float


@final
@dataclass(frozen=True)
class TransferRow:
    """A rule applied to a change of scale: the settings that it gives, and what they keep.

    name, source         of the rule
    lr, weight_decay     the settings, or None if the rule gives none
    note                 why it gives none
    betas                the changed betas, or None if the rule leaves them alone
    eps_factor           factor of ε
    groups               settings of hidden weights, embeddings, the head and gains, empty where lr is None
    rotation             radians per step at the peak learning rate in equilibrium
    memory               tokens after which a direction is forgotten
    run_length           memories in the whole run
    rms_entry            RMS entry of a weight in equilibrium, or None if it depends on the gradient
    start_over_rotation  rotation of the first steps over equilibrium, or None without an initial norm
    silent_on            changed axes that the rule does not speak of, filled with the default of the axis
    """

    name: str
    source: str
    lr: float | None
    weight_decay: float | None
    betas: tuple[float, float] | None
    eps_factor: float
    groups: Mapping[str, GroupSettings]
    rotation: float | None
    memory: float | None
    run_length: float | None
    rms_entry: float | None
    start_over_rotation: float | None
    silent_on: tuple[str, ...]
    note: str = ""


@final
@dataclass(frozen=True)
class Transfer:
    """Settings for another scale by every published rule, the recommended ones first.

    rule         the tuned rule
    base, to     the scale at which it was tuned, and the new one
    tuned        what the tuned settings give at the base, in the form of a row
    rows         one for each rule
    recommended  one row, or two where no trial decides
    decided      whether a trial of ours supports the one recommended row
    beyond       axes that change by more than any source has tried
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
    transfer_rules  rules to compare, `transfer_rules.RULES` if not given
    initial_norm    norm of one weight vector at the start, for example 0.577 (torch's Linear)

    >>> from gyroscope.theory import AdamW
    >>> t = transfer(AdamW(6e-4, 0.1), base=Scale(0.5e6, 10e9), to=Scale(2e6, 10e9))
    >>> [(row.name, f"{row.lr:.1e}", f"{row.weight_decay:.2f}") for row in t.recommended]
    [('tau', '1.2e-03', '0.20'), ('tau-wd', '6.0e-04', '0.40')]
    """
    ratios = _ratios(base, to)
    family = family_of(rule)
    rules = RULES if transfer_rules is None else tuple(transfer_rules)
    tuned = _measured(TransferRow("tuned", "", *_UNSET, ()), rule, base, schedule, initial_norm)
    rows = tuple(_row(each, rule, family, tuned, ratios, to, schedule, initial_norm) for each in rules)
    changed = frozenset(axis for axis in AXES if ratios[axis] != 1)
    recommended = _recommended(rows, family, changed)
    beyond = tuple(axis for axis in AXES if not 1 / LARGEST_CHANGE <= ratios[axis] <= LARGEST_CHANGE)
    return Transfer(rule, base, to, tuned, rows, recommended, len(recommended) == 1 and not changed, beyond)


_UNSET = (None, None, None, 1.0, {}, None, None, None, None, None)


def family_of(rule: UpdateRule) -> Family:
    """Return the family of transfer rules that fits an update rule.

    >>> from gyroscope.theory import SGDM
    >>> family_of(SGDM(0.1, 5e-4))
    'sgd'
    """
    if not rule.has_weight_decay and rule.keeps_norm and rule.plain is rule:
        return "sphere"
    return "adam" if rule.plain.is_decoupled else "sgd"


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


def _row(
    each: TransferRule,
    rule: UpdateRule,
    family: Family,
    tuned: TransferRow,
    ratios: Mapping[str, float],
    to: Scale,
    schedule: Schedule | None,
    initial_norm: float | None,
) -> TransferRow:
    silent = tuple(axis for axis in AXES if ratios[axis] != 1 and axis not in each.speaks_of)
    defaults = SPHERE_DEFAULTS if each.family == "sphere" else DEFAULTS
    lr_powers = {**each.lr, **{axis: defaults[axis][0] for axis in silent}}
    decay_powers = {**each.weight_decay, **{axis: defaults[axis][1] for axis in silent}}
    lr_factor = _monomial(lr_powers, ratios)
    decay_factor = _monomial(decay_powers, ratios) * (ratios["tokens"] / ratios["params"]) ** each.tokens_per_param
    row = TransferRow(each.name, each.source, *_UNSET, silent)
    betas = _betas(each, rule, ratios["batch"])
    note = "" if each.family in ("any", family) else f"made for {FAMILIES[each.family]}"
    if betas is not None and not 0 < betas[1] < 1:
        note = f"beta2 would be {betas[1]:.3g}"
    if note:
        return _in_proportion(replace(row, note=note), each.family, tuned, lr_factor, decay_factor, ratios)
    lr = rule.lr * lr_factor
    if each.lr_limit is not None:
        lr = min(lr, each.lr_limit)
    moved = rule.replace(lr=lr)
    if rule.has_weight_decay:
        moved = moved.replace(weight_decay=rule.weight_decay * decay_factor)
    row = replace(
        row,
        betas=betas,
        eps_factor=ratios["batch"] ** -0.5 if each.scales_eps else 1.0,
        groups=_groups(moved, lr_powers, decay_powers, ratios),
    )
    return _measured(row, moved if betas is None else moved.replace(betas=betas), to, schedule, initial_norm)


def _monomial(powers: Powers, ratios: Mapping[str, float]) -> float:
    return prod(ratios[axis] ** power for axis, power in powers.items())


def _betas(each: TransferRule, rule: UpdateRule, r: float) -> tuple[float, float] | None:
    betas = rule.adam_betas
    if each.beta2 is None or betas is None or r == 1:
        return None
    beta2 = 1 - (1 - betas[1]) * r if each.beta2 == "linear" else betas[1] ** r
    if each.beta2_range is not None:
        low, high = each.beta2_range
        beta2 = min(max(beta2, low), high)
    return betas[0], beta2


def _groups(
    moved: UpdateRule, lr_powers: Powers, decay_powers: Powers, ratios: Mapping[str, float]
) -> dict[str, GroupSettings]:
    """Return the settings by group. Width changes the learning rate of matrices alone (arXiv 2203.03466, Table 3)."""
    matrices = GroupSettings(moved.lr, moved.weight_decay)
    lr = moved.lr / ratios["width"] ** lr_powers.get("width", 0.0)
    decay = moved.weight_decay / ratios["width"] ** decay_powers.get("width", 0.0)
    return {
        "hidden": matrices,
        "head": matrices,
        "embedding": GroupSettings(lr, decay),
        "gains": GroupSettings(lr, 0.0),
    }


def _measured(
    row: TransferRow, rule: UpdateRule, scale: Scale, schedule: Schedule | None, initial_norm: float | None
) -> TransferRow:
    """Return the row with what the rule's own equilibrium says of its settings."""
    shape = None if scale.width is None or not rule.whole_matrix else (round(scale.width),) * 2
    settled = rule.equilibrium(shape=shape)
    rms_entry = _rms_entry(rule, shape)
    start = None
    if initial_norm is not None:
        check_positive("initial_norm", initial_norm)
        if rule.keeps_norm:
            start = 1.0
        elif rms_entry is not None and scale.width is not None:
            start = rms_entry * scale.width**0.5 / initial_norm
    timescale = settled.timescale
    return replace(
        row,
        lr=rule.lr,
        weight_decay=rule.weight_decay,
        rotation=settled.angular_update,
        memory=None if timescale is None else timescale * scale.batch,
        run_length=None if timescale is None else scale.steps * _mean_decay(rule, schedule) / timescale,
        rms_entry=rms_entry,
        start_over_rotation=start,
    )


def _rms_entry(rule: UpdateRule, shape: tuple[int, int] | None) -> float | None:
    if rule.keeps_norm:
        return None
    if rule.needs == ("fan_in",):
        return float(rule.equilibrium(fan_in=1.0).norm)
    if rule.needs == ("shape",) and shape is not None:
        return float(rule.equilibrium(shape=shape).norm) / prod(shape) ** 0.5
    return None


def _mean_decay(rule: UpdateRule, schedule: Schedule | None) -> float:
    """Return the mean over a run of the decay of a step, over that at the peak learning rate."""
    if schedule is None:
        return 1.0
    # The decay of a step follows the square of its angle.
    return float(np.mean(schedule(np.arange(schedule.steps)) ** (2 * rule.angle_exponent)))


def _in_proportion(
    row: TransferRow,
    family: Family,
    tuned: TransferRow,
    lr_factor: float,
    decay_factor: float,
    ratios: Mapping[str, float],
) -> TransferRow:
    """Return what a rule of another family would make of the tuned run, by the map alone. It gives no settings here."""
    decay = lr_factor**2 if family == "sphere" else lr_factor * decay_factor
    return replace(
        row,
        rotation=None if tuned.rotation is None else tuned.rotation * decay**0.5,
        memory=None if tuned.memory is None else tuned.memory * ratios["batch"] / decay,
        run_length=None if tuned.run_length is None else tuned.run_length * decay * ratios["tokens"] / ratios["batch"],
        start_over_rotation=1.0 if family == "sphere" and tuned.start_over_rotation is not None else None,
    )


def _recommended(rows: Sequence[TransferRow], family: Family, changed: frozenset[str]) -> tuple[TransferRow, ...]:
    names = next(names for axes, names in RECOMMENDED[family] if changed <= axes)
    by_name = {row.name: row for row in rows if row.lr is not None}
    # A user's own table may lack the recommended rules.
    return tuple(by_name[name] for name in names if name in by_name) or tuple(by_name.values())[:2]


def check_family(each: TransferRule, rule: UpdateRule) -> None:
    """Raise unless a transfer rule was made for the optimizer."""
    if each.family not in ("any", family_of(rule)):
        raise ValueError(
            f"the transfer rule {each.name!r} is for {FAMILIES[each.family]}, not for {rule.name}. "
            f"Choose one of {', '.join(other.name for other in RULES if other.family in ('any', family_of(rule)))}"
        )
