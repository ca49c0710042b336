"""The last step of each parameter group: its settings as the file and the user give them, its rate and its rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, final

from gyroscope.advice.phrases import sig
from gyroscope.checkpoint.files.formats import Checkpoint
from gyroscope.checkpoint.files.reading import StoredTensor
from gyroscope.checkpoint.files.saved_optimizers import NAMES, optimizer_name, rule_of_group
from gyroscope.checkpoint.last_step.last_rates import Rate, last_rate
from gyroscope.checkpoint.last_step.last_update import NOTHING, LastUpdate, last_update
from gyroscope.optimizers import GroupRuleFunction, OptimizerSpec, spec_by_name, user_rule
from gyroscope.theory import UpdateRule

# Settings that are numbers, 0 or above, wherever they are set.
NUMBERS = ("lr", "weight_decay", "momentum", "beta")


@final
@dataclass(frozen=True)
class Asked:
    """What the user says of a checkpoint."""

    optimizer: str | None
    lr: float | None
    settings: Mapping[str, Any]
    rule: GroupRuleFunction | None = None
    """The rule of an optimizer of the user's own, which the file does not know."""


@final
@dataclass(frozen=True)
class GroupStep:
    """The last step of a parameter group: its settings, rate, rule, how the step is taken back, and its optimizer."""

    settings: Mapping[str, Any]
    rate: Rate
    rule: UpdateRule | None
    update: LastUpdate
    spec: OptimizerSpec | None = None


def group_steps(checkpoint: Checkpoint, asked: Asked) -> list[GroupStep]:
    """Every group of the file; of a file with weights alone the one that the user describes, if any."""
    if not checkpoint.groups:
        return _described_group(asked)
    first = 0.0
    groups = []
    for number, group in enumerate(checkpoint.groups):
        # The file's own settings count; the user fills what it lacks.
        settings = {key: _plain(value) for key, value in group.items()}
        settings |= {option: value for option, value in asked.settings.items() if settings.get(option) is None}
        _check(checkpoint.name, settings)
        saved = float(settings.get("lr") or 0.0)
        first = saved if number == 0 else first
        # Of what does not turn a rotational optimizer keeps less.
        kept = {name for each in checkpoint.parameters if each.group == number for name in each.state}
        rate = _rate(checkpoint, number, saved, first, asked.lr, settings)
        settings = rate.settings(settings)
        own = _own_rule(settings, asked)
        if own is not None:
            groups.append(GroupStep(settings, rate, own, NOTHING))
            continue
        name = optimizer_name(group, kept, asked.optimizer)
        rule = rule_of_group(name, settings, kept)
        groups.append(GroupStep(settings, rate, rule, last_update(name, settings, kept), spec_by_name(name)))
    return groups


def _own_rule(settings: Mapping[str, Any], asked: Asked) -> UpdateRule | None:
    """Return the rule that the user gives, in the group or for the file."""
    return user_rule(settings if "rule" in settings else {**settings, "rule": asked.rule}, (), None)


def _check(file: str, settings: Mapping[str, Any]) -> None:
    """Raise a ValueError for a setting in the file that is none."""
    for option in NUMBERS:
        value = settings.get(option)
        if value is not None and not (isinstance(value, int | float) and isfinite(value) and value >= 0):
            raise ValueError(f"{file!r}: the optimizer's {option} is {value!r}, and must be a number, 0 or above")
    betas = settings.get("betas")
    # k-Adam may have a pair for each stage.
    pairs = betas if isinstance(betas, list | tuple) and betas and isinstance(betas[0], list | tuple) else [betas]
    if betas is not None and not all(_is_pair(pair) for pair in pairs):
        raise ValueError(f"{file!r}: the optimizer's betas are {betas!r}, and must be numbers from 0 to below 1")


def _is_pair(betas: Any) -> bool:
    # Some optimizers have a third.
    return (
        isinstance(betas, list | tuple)
        and len(betas) >= 2
        and all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in betas)
    )


def _described_group(asked: Asked) -> list[GroupStep]:
    """The group of a file that has weights alone: what the user says, if that is enough for a prediction."""
    if asked.lr is None or (asked.optimizer is None and asked.rule is None):
        return []
    settings = {"lr": asked.lr, "betas": (0.9, 0.999), "weight_decay": 0.0, "momentum": 0.9, **asked.settings}
    rule = _own_rule(settings, asked) or rule_of_group(NAMES[str(asked.optimizer)], settings)
    return [GroupStep(settings, Rate.known(asked.lr, "given"), rule, NOTHING)]


def _plain(value: Any) -> Any:
    """An option as plain numbers: torch lets lr, betas and weight decay be tensors."""
    if isinstance(value, StoredTensor) and value.shape in ((), (1,)):
        return float(value.load())
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def _rate(
    checkpoint: Checkpoint, number: int, saved: float, first: float, given: float | None, group: Mapping[str, Any]
) -> Rate:
    if given is not None:
        return Rate.known(given * saved / first if first > 0 and saved > 0 else given, "given")
    return last_rate(saved, number, checkpoint.step, checkpoint.schedulers, checkpoint.extras, group)


def rate_notes(checkpoint: Checkpoint, groups: Sequence[GroupStep]) -> tuple[str, ...]:
    """What is to be said of learning rates: nothing where they are known."""
    if not checkpoint.groups:
        return ()
    notes = []
    doubtful = [group.rate for group in groups if not group.rate.certain and group.rate.value > 0]
    for source in dict.fromkeys(rate.source for rate in doubtful):
        rates = [rate for rate in doubtful if rate.source == source]
        low = min(rate.low for rate in rates)
        high = max(rate.high for rate in rates)
        value = f"{sig(low)} to {sig(high)}" if sig(low) != sig(high) else sig(low)
        notes.append(f"The learning rate of the last step is taken as {value}, {source}; pass lr if it was another")
    return tuple(notes)
