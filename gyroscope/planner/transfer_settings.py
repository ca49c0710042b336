"""The scales and the schedule of a transfer from settings by name, and numbers as people write them."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gyroscope._checks import check_non_negative, check_positive
from gyroscope.planner.rule_settings import read_schedule
from gyroscope.spelling import one_of
from gyroscope.theory import Scale, Schedule, UpdateRule

if TYPE_CHECKING:
    from gyroscope.planner.transfer_run import MeasuredRun

# The length of a run may be given in any of these.
UNITS = ("tokens", "samples", "steps")
MODEL_AXES = ("width", "depth", "params")
SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)([KMBT]?)", re.IGNORECASE)
# Steps of the schedule whose shape is used. A thousand times fewer or more give the same mean.
SHAPE_STEPS = 10_000


def read_scales(settings: Mapping[str, Any], source: "MeasuredRun | None") -> tuple[Scale, Scale, str]:
    """Return the tuned scale, the new one, and what the length of a run is given in: tokens, samples or steps.

    >>> to = read_scales({"batch": "0.5M", "tokens": "10B", "to": "batch=2M"}, None)[1]
    >>> to.batch, to.tokens
    (2000000.0, 10000000000.0)
    """
    given = {name: read_number(name, settings[name]) for name in ("batch", *UNITS, *MODEL_AXES) if name in settings}
    if source is not None:
        given = source.sizes(given)
    unit = _unit(given)
    changed = _changes(settings.get("to"), unit, given)
    return _scale(unit, given), _scale(unit, given | changed), unit


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
    # A run in steps may have no batch, because only the ratio of batches counts.
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
