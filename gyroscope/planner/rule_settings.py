"""Optimizers and schedules by name and setting, for `plan`, `transfer` and `convert`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from gyroscope.advice.layer_families import join_words
from gyroscope.optimizers import PLANS
from gyroscope.spelling import one_of
from gyroscope.theory import Schedule, UpdateRule, constant, cosine, inverse_sqrt, linear, step, wsd

RULES: dict[str, type[UpdateRule]] = {name: choice.rule for name, choice in PLANS.items()}
# Settings of a plan that names only the optimizer.
TYPICAL: dict[str, Mapping[str, Any]] = {name: choice.typical for name, choice in PLANS.items()}

SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "wsd": wsd,
    "step": step,
    "inverse_sqrt": inverse_sqrt,
}
SCHEDULE_OPTIONS = {
    "linear": ("final",),
    "cosine": ("final",),
    "wsd": ("final", "decay"),
    "step": ("milestones", "factor"),
}
RULE_OPTIONS = tuple(dict.fromkeys(field.name for rule in RULES.values() for field in fields(rule)))  # type: ignore[arg-type]


def rule_name(name: object) -> str:
    """Return the planner's name of an optimizer, however it is spelled.

    >>> rule_name("Adam-SRT"), rule_name("SGD")
    ('adam_srt', 'sgdm')
    """
    plain = {key.replace("_", ""): key for key in RULES} | {"sgd": "sgdm", "adam": "adam_l2", "adamc": "adamw"}
    # Adam-W, adam_w and AdamW are the same name.
    spelled = str(name).strip().lower().replace("-", "").replace("_", "").replace("+", "")
    return plain[one_of("optimizer", spelled, plain, given=name)]


def read_rule(name: str, settings: Mapping[str, Any]) -> UpdateRule:
    """Return an optimizer's rule with the settings that are given, and typical ones for the rest."""
    own = [field.name for field in fields(RULES[name])]  # type: ignore[arg-type]
    # A setting of another rule is an error, because it would have no effect.
    given = {key: settings[key] for key in RULE_OPTIONS if key in settings}
    for key in given:
        if key not in own:
            raise ValueError(f"{name} has no {key!r}. Its settings are {', '.join(own)}")
    if isinstance(given.get("betas"), list | str):
        given["betas"] = tuple(numbers("betas", given["betas"]))
    return RULES[name](**{**TYPICAL[name], **given})


def read_schedule(settings: Mapping[str, Any]) -> Schedule:
    """Return the schedule of a run, constant over 10,000 steps if nothing is given."""
    name = one_of("schedule", str(settings.get("schedule", "constant")).replace("-", "_"), SCHEDULES)
    own = SCHEDULE_OPTIONS.get(name, ())
    for key in ("final", "decay", "milestones", "factor"):
        if key in settings and key not in own:
            fitting = [other for other, options in SCHEDULE_OPTIONS.items() if key in options]
            has = "has" if len(fitting) == 1 else "have"
            raise ValueError(f"the {name} schedule has no {key!r}, which {join_words(fitting)} {has}")
    given = {key: settings[key] for key in (*own, "warmup") if key in settings}
    if name == "step":
        if "milestones" not in given:
            raise ValueError("the step schedule needs milestones, for example 6000,8000")
        given["milestones"] = whole_numbers("milestones", given["milestones"])
    return SCHEDULES[name](settings.get("steps", 10_000), **given)


def numbers(name: str, given: str | Sequence[Any]) -> list[float]:
    """Return numbers from '0.9,0.999' or from a list.

    >>> numbers("betas", "0.9, 0.95")
    [0.9, 0.95]
    """
    parts = given.split(",") if isinstance(given, str) else given
    try:
        return [float(part) for part in parts]
    except (TypeError, ValueError):
        raise ValueError(f"{name}={given!r} must be numbers with commas between them") from None


def whole_numbers(name: str, given: str | Sequence[Any]) -> list[int]:
    """Return the same for whole numbers only.

    >>> whole_numbers("shape", "64,32")
    [64, 32]
    """
    values = numbers(name, given)
    if not all(value.is_integer() for value in values):  # neither infinity nor NaN is one
        raise ValueError(f"{name}={given!r} must be whole numbers")
    return [int(value) for value in values]
