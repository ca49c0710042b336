"""The last step of each parameter group: its settings from the file and the user, its rates and its rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, final

from gyroscope.advice.phrases import format_range
from gyroscope.checkpoint.files.formats import Checkpoint
from gyroscope.checkpoint.files.reading import StoredTensor
from gyroscope.checkpoint.files.saved_optimizers import NAMES, optimizer_name, rule_of_group
from gyroscope.checkpoint.last_step.last_rates import Rates, SavedRate
from gyroscope.checkpoint.last_step.last_update import NOTHING, LastUpdate, last_update
from gyroscope.optimizers import GroupRuleFunction, OptimizerSpec, spec_by_name, user_rule
from gyroscope.theory import UpdateRule

# Settings that are numbers, 0 or above.
NUMBERS = ("lr", "weight_decay", "momentum", "beta")


@final
@dataclass(frozen=True)
class StepRequest:
    """The user's settings of a checkpoint. `rule` is that of the user's own optimizer, which the file does not name."""

    optimizer: str | None
    lr: float | None
    settings: Mapping[str, Any]
    rule: GroupRuleFunction | None = None


@final
@dataclass(frozen=True)
class GroupStep:
    """The last step of a parameter group."""

    settings: Mapping[str, Any]  # of the optimizer in that step
    rates: Rates  # learning rate of that step and over the run
    rule: UpdateRule | None  # at the rate of that step, None if unknown
    peak_rule: UpdateRule | None  # at the peak learning rate
    update: LastUpdate = NOTHING  # how the step is reconstructed
    spec: OptimizerSpec | None = None  # optimizer, None if unknown


def group_steps(checkpoint: Checkpoint, asked: StepRequest) -> list[GroupStep]:
    """Return the last step of every group. For weights alone, return the group that the user describes, if any."""
    if not checkpoint.groups:
        return _described_group(asked)
    return [_group_step(checkpoint, asked, number) for number in range(len(checkpoint.groups))]


def _group_step(checkpoint: Checkpoint, asked: StepRequest, number: int) -> GroupStep:
    group = checkpoint.groups[number]
    settings = {key: _plain(value) for key, value in group.items()}
    # The file's own settings take precedence. The user adds those that it lacks.
    settings |= {option: value for option, value in asked.settings.items() if settings.get(option) is None}
    _check(settings)
    saved = float(settings.get("lr") or 0.0)
    in_file = SavedRate(saved, number, checkpoint.step, checkpoint.schedulers, checkpoint.extras, settings)
    given = asked.lr
    first = _plain(checkpoint.groups[0].get("lr")) or 0.0
    if given is not None and first > 0 and saved > 0:
        given = given * saved / first
    rates = in_file.rates(given)
    settings = rates.settings(settings)
    at_peak = {**settings, "lr": rates.peak}
    own = _own_rule(settings, asked)
    if own is not None:
        return GroupStep(settings, rates, own, _own_rule(at_peak, asked))
    # A rotational optimizer keeps less state for parameters that do not rotate.
    kept = {name for each in checkpoint.parameters if each.group == number for name in each.state}
    name = optimizer_name(group, kept, asked.optimizer)
    rule = rule_of_group(name, settings, kept)
    update = last_update(name, settings, kept)
    return GroupStep(settings, rates, rule, rule_of_group(name, at_peak, kept), update, spec_by_name(name))


def _own_rule(settings: Mapping[str, Any], asked: StepRequest) -> UpdateRule | None:
    """Return the rule that the user gives, in the group or for the file, or None."""
    return user_rule(settings if "rule" in settings else {**settings, "rule": asked.rule}, (), None)


def _check(settings: Mapping[str, Any]) -> None:
    """Raise ValueError for an invalid setting in the file."""
    for option in NUMBERS:
        value = settings.get(option)
        if value is not None and not (isinstance(value, int | float) and isfinite(value) and value >= 0):
            raise ValueError(f"the optimizer's {option} is {value!r}, and must be a number, 0 or above")
    betas = settings.get("betas")
    # k-Adam may have a pair for each stage, and some optimizers have a third beta.
    is_nested = isinstance(betas, list | tuple) and betas and isinstance(betas[0], list | tuple)
    pairs: Any = betas if is_nested else [betas]
    for pair in pairs if betas is not None else ():
        are_numbers = isinstance(pair, list | tuple) and all(isinstance(beta, int | float) for beta in pair)
        if not are_numbers or len(pair) < 2 or not all(0 <= beta < 1 for beta in pair):
            raise ValueError(f"the optimizer's betas are {betas!r}, and must be numbers from 0 to below 1")


def _described_group(asked: StepRequest) -> list[GroupStep]:
    """Return the group of a file that has only weights, if the user gives enough for a prediction."""
    if asked.lr is None or (asked.optimizer is None and asked.rule is None):
        return []
    settings = {"lr": asked.lr, "betas": (0.9, 0.999), "weight_decay": 0.0, "momentum": 0.9, **asked.settings}
    rule = _own_rule(settings, asked) or rule_of_group(NAMES[str(asked.optimizer)], settings)
    return [GroupStep(settings, Rates(asked.lr, asked.lr, asked.lr), rule, rule)]


def _plain(value: Any) -> Any:
    """Return an option as plain numbers, because torch lets lr, betas and weight decay be tensors."""
    if isinstance(value, StoredTensor) and value.shape in ((), (1,)):
        return float(value.load())
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def rate_notes(groups: Sequence[GroupStep]) -> tuple[str, ...]:
    """Return the assumptions about learning rates, as sentences without a full stop."""
    values: dict[str, list[float]] = {}
    for group in groups:
        if group.rates.doubt and group.rates.last > 0:
            values.setdefault(group.rates.doubt, []).extend((group.rates.last, *group.rates.others))
    return tuple(
        f"The learning rate of the last step is assumed to be {format_range(rates)}, {doubt}. "
        "Pass lr if it was different"
        for doubt, rates in values.items()
    )
