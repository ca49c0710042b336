"""A transfer from settings by name: the tuned run, the change of scale, and numbers as people write them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from gyroscope._checks import check_non_negative, check_positive
from gyroscope.planner.rule_settings import RULE_OPTIONS, read_rule, read_schedule, rule_name
from gyroscope.spelling import one_of
from gyroscope.theory import Scale, Schedule, UpdateRule
from gyroscope.theory.scaling import check_family, family_of
from gyroscope.theory.transfer_rules import RULES

if TYPE_CHECKING:
    from gyroscope.planner.transfer_run import MeasuredRun

# The length of a run may be given in any of these.
UNITS = ("tokens", "samples", "steps")
MODEL_AXES = ("width", "depth", "params")
SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)([KMBT]?)", re.IGNORECASE)
# Steps of the schedule whose shape is used. A thousand times fewer or more give the same mean.
SHAPE_STEPS = 10_000
# Norm of one weight vector of torch's Linear at the start: entries of variance 1/(3·fan_in).
TORCH_NORM = 3**-0.5


@final
@dataclass(frozen=True)
class TransferRequest:
    """A change of scale, checked.

    rule          the tuned settings
    base, to      the scale at which they were tuned, and the new one
    unit          what the length of a run is given in: tokens, samples or steps
    schedule      shape of the learning rate over both runs
    only          the transfer rule that was asked for, or None
    initial_norm  of one weight vector
    check         a transferred run to compare with what was promised, or None
    """

    rule: UpdateRule
    base: Scale
    to: Scale
    unit: str
    schedule: Schedule
    only: str | None
    initial_norm: float
    check: Path | None = None


def read_transfer(settings: Mapping[str, Any]) -> TransferRequest:
    """Check settings by name. A ValueError quotes what does not fit, and the remedy.

    >>> tuned = {"optimizer": "adamw", "lr": 6e-4, "weight_decay": 0.1, "batch": "0.5M", "tokens": "10B"}
    >>> read_transfer({**tuned, "to": "batch=2M"}).to
    Scale(batch=2000000.0, tokens=10000000000.0, width=None, depth=None, params=None)
    """
    source = _source(settings)
    rule = _tuned_rule(settings) if source is None else source.rule.replace(**_rule_options(settings))
    check_tuned(rule, rule.settings if source is not None else settings)
    family_of(rule)
    given = {name: read_number(name, settings[name]) for name in ("batch", *UNITS, *MODEL_AXES) if name in settings}
    if source is not None:
        given = source.sizes(given)
    unit = _unit(given)
    changed = _changes(settings.get("to"), unit, given)
    only = settings.get("rule")
    if only is not None:
        by_name = {each.name: each for each in RULES}
        check_family(by_name[one_of("transfer rule", only, by_name)], rule)
    initial_norm = settings.get("init_norm", TORCH_NORM if source is None else source.initial_norm)
    check_positive("init_norm", initial_norm)
    base = _scale(unit, given)
    if source is None or "schedule" in settings or "warmup" in settings:
        schedule = read_shape(settings, base.steps)
    else:
        schedule = source.schedule(SHAPE_STEPS)
    to = _scale(unit, given | changed)
    return TransferRequest(rule, base, to, unit, schedule, only, initial_norm, settings.get("check"))


def _source(settings: Mapping[str, Any]) -> "MeasuredRun | None":
    """Return the run that the settings come from, or None if an optimizer is named."""
    if ("source" in settings) == ("optimizer" in settings):
        raise ValueError("name the tuned optimizer, for example adamw, or the tuned run by --from, but not both")
    if "source" not in settings:
        return None
    from gyroscope.planner.transfer_run import read_run  # an answer without a run does not wait for the store

    return read_run(settings["source"])


def _tuned_rule(settings: Mapping[str, Any]) -> UpdateRule:
    return read_rule(rule_name(settings["optimizer"]), _rule_options(settings))


def _rule_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: settings[key] for key in RULE_OPTIONS if key in settings}


def check_tuned(rule: UpdateRule, settings: Mapping[str, Any]) -> None:
    """Raise unless the learning rate and the weight decay were given and are above 0."""
    for name in ("lr", "weight_decay") if rule.has_weight_decay else ("lr",):
        if name not in settings:
            raise ValueError(f"the tuned {name} is missing. Add --{name.replace('_', '-')}")
        check_positive(name, settings[name])


def read_number(name: str, text: str) -> float:
    """Return a number above 0 with an optional suffix K, M, B or T.

    >>> read_number("batch", "0.5M"), read_number("tokens", "10B")
    (500000.0, 10000000000.0)
    """
    value = _number(name, text)
    check_positive(name, value)
    return value


def _number(name: str, text: str) -> float:
    written = NUMBER.fullmatch(text.strip().replace("_", ""))
    if written is None:
        raise ValueError(f"{name}={text!r} is not a number. Write for example 2048, 0.5M, 10B or 1e9")
    return float(written[1]) * SUFFIXES[written[2].upper()]


def _unit(given: Mapping[str, float]) -> str:
    units = [unit for unit in UNITS if unit in given]
    if not units:
        raise ValueError("the length of the tuned run is missing. Give --tokens, --samples or --steps")
    if len(units) > 1:
        raise ValueError(f"--{units[0]} and --{units[1]} both give the length of the run. Give one of them")
    if "batch" not in given and units[0] != "steps":
        raise ValueError(f"the batch of the tuned run is missing. Give --batch in {units[0]}, or the length in --steps")
    return units[0]


def _changes(text: str | None, unit: str, given: Mapping[str, float]) -> dict[str, float]:
    """Return the axes that change, by name."""
    if not text:
        raise ValueError("the new scale is missing. Write for example --to batch=2M,tokens=200B,width=2048")
    changes: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ValueError(f"--to {part.strip()!r} is not of the form axis=value, for example width=2048")
        one_of("axis", name, ("batch", *UNITS, *MODEL_AXES))
        if name in UNITS and name != unit:
            raise ValueError(
                f"--to {name}={value} does not fit the tuned run, whose length is in {unit}. Use one unit for both"
            )
        if name not in given:
            raise ValueError(f"--to {name}={value} needs the {name} of the tuned run. Add --{name}")
        if name in changes:
            raise ValueError(f"--to gives {name} twice")
        changes[name] = read_number(name, value)
    return changes


def _scale(unit: str, given: Mapping[str, float]) -> Scale:
    # A run in steps may leave its batch open: only the ratio of batches counts.
    batch = given.get("batch", 1.0)
    length = given[unit] * batch if unit == "steps" else given[unit]
    if length < batch:
        raise ValueError(f"{unit}={given[unit]:g} is less than one batch={batch:g}. Use one unit for both")
    return Scale(batch, length, *(given.get(axis) for axis in MODEL_AXES))


def read_shape(settings: Mapping[str, Any], steps: float | None = None) -> Schedule:
    """Return the schedule's shape. The warmup keeps its share of the run, given as 2% or in steps of the run."""
    shaped = {key: settings[key] for key in ("schedule", "final", "decay") if key in settings}
    if str(shaped.get("schedule")) == "step":
        raise ValueError("the step schedule has milestones, which have no fixed share. Use linear or cosine")
    share = _share(settings["warmup"], steps) if "warmup" in settings else 0.0
    return read_schedule({**shaped, "steps": SHAPE_STEPS, "warmup": round(share * SHAPE_STEPS)})


def _share(text: str, steps: float | None) -> float:
    """Return the warmup as a share of the run."""
    value = _number("warmup", text.strip().removesuffix("%"))
    check_non_negative("warmup", value)
    if text.strip().endswith("%"):
        share = value / 100
    elif steps is not None:
        share = value / steps
    else:
        raise ValueError(f"warmup={text!r} is not a share of the run. Write for example 2%")
    if share > 1:
        raise ValueError(f"warmup={text!r} is longer than the run. Write for example 2%")
    return share
