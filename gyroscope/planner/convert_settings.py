"""A conversion from settings by name: the same scale with another optimizer."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from gyroscope.planner.rule_settings import RULE_OPTIONS, RULES, TYPICAL, numbers, read_rule, rule_name, whole_numbers
from gyroscope.planner.transfer_settings import check_tuned, read_shape
from gyroscope.report.convert_data import Conversion
from gyroscope.spelling import one_of
from gyroscope.theory import Match, UpdateRule, match
from gyroscope.theory.law import Weights
from gyroscope.theory.rules.base import MEANING


def read_conversion(settings: Mapping[str, Any]) -> Conversion:
    """Check settings by name and convert them. A ValueError quotes the wrong one and gives the remedy.

    >>> tuned = {"optimizer": "adamw", "other": "hyperball", "lr": 1e-3, "weight_decay": 0.1}
    >>> f"{read_conversion(tuned).match.rule.lr:.5f}"
    '0.00324'
    """
    name = rule_name(settings["optimizer"])
    other = rule_name(settings["other"])
    given = {key: settings[key] for key in RULE_OPTIONS if key in settings}
    # An option that only the new optimizer has is for that one, such as momentum from AdamW to SGDM.
    of_other = {key: value for key, value in given.items() if key not in _options(name) and key in _options(other)}
    rule = read_rule(name, {key: value for key, value in given.items() if key not in of_other})
    check_tuned(rule, settings)
    typical = {key: value for key, value in TYPICAL[other].items() if key not in ("lr", "weight_decay")}
    fixed = {**typical, **of_other, **read_options(settings.get("fixed", ""), other)}
    if isinstance(fixed.get("betas"), str):
        fixed["betas"] = tuple(numbers("betas", fixed["betas"]))
    # Checked here, because a search for settings that match reports something else.
    RULES[other](**{**TYPICAL[other], **{key: fixed[key] for key in fixed if key not in ("lr", "weight_decay")}})
    layers = _layers(settings)
    matches = [_match(rule, other, weights, fixed) for weights in layers]
    schedule = read_shape(settings) if "schedule" in settings or "warmup" in settings else None
    return Conversion(rule, tuple(matches), tuple(layers), schedule)


def _layers(settings: Mapping[str, Any]) -> list[Weights]:
    """Return the weights of each layer, from lists with commas between the layers."""
    lists: dict[str, list[Any]] = {}
    for name in ("fan_in", "unit_grad_norm"):
        if name in settings:
            lists[name] = numbers(name, str(settings[name]))
    if "shape" in settings:
        shapes = settings["shape"].split(",") if "x" in settings["shape"] else [settings["shape"]]
        lists["shape"] = [tuple(whole_numbers("shape", shape.replace("x", ","))) for shape in shapes]
    count = max(map(len, lists.values()), default=1)
    for name, values in lists.items():
        if len(values) not in (1, count):
            given = f"--{name.replace('_', '-')} has {len(values)} values"
            raise ValueError(f"{given}, and another option has {count}. Give one value, or one for each layer")
    each = {name: values * count if len(values) == 1 else values for name, values in lists.items()}
    return [Weights.checked(**{name: values[number] for name, values in each.items()}) for number in range(count)]


def _options(name: str) -> list[str]:
    return [field.name for field in fields(RULES[name])]  # type: ignore[arg-type]  # every rule is a dataclass


def read_options(text: str, other: str) -> dict[str, Any]:
    """Return the settings of the new optimizer that are given.

    >>> read_options("momentum=0.95,adjust_lr_fn=match_rms_adamw,nesterov=false", "muon")
    {'momentum': 0.95, 'adjust_lr_fn': 'match_rms_adamw', 'nesterov': False}
    """
    texts: dict[str, str] = {}
    name = ""
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if equals:
            name = key.strip()
            texts[name] = value.strip()
        elif name:
            texts[name] += f",{part}"  # the second of two betas
        else:
            raise ValueError(f"--set {text!r} is not of the form name=value, for example momentum=0.95")
    for key in texts:
        if key not in _options(other):
            raise ValueError(f"{other} has no {key!r}. Its settings are {', '.join(_options(other))}")
    usual = {field.name: field.default for field in fields(RULES[other])}  # type: ignore[arg-type]
    return {key: _setting(key, value, usual[key]) for key, value in texts.items()}


def _setting(key: str, text: str, usual: Any) -> Any:
    """Return the value of a setting given as text, of the kind of its default."""
    if isinstance(usual, bool):
        return one_of(key, text.lower(), ("true", "false"), given=text) == "true"
    if isinstance(usual, str):
        return text
    if isinstance(usual, int) or key == "steps_done":
        return whole_numbers(key, text)[0]
    values = numbers(key, text)
    return tuple(values) if key == "betas" else values[0]


def _match(rule: UpdateRule, other: str, weights: Weights, fixed: Mapping[str, Any]) -> Match:
    inputs = {name: getattr(weights, name) for name in ("fan_in", "unit_grad_norm", "shape")}
    try:
        with np.errstate(all="ignore"):  # a trial far from the answer may overflow
            return match(rule, RULES[other], **inputs, **fixed)
    except ValueError as error:
        needed = dict.fromkeys((*rule.needs, *RULES[other].needs))
        missing = [name for name in needed if inputs[name] is None]
        if "shape" in missing:
            missing = [name for name in missing if name != "fan_in"]  # the shape gives it
        # An input is not needed if both norms scale alike with it.
        is_alike = rule.needs == RULES[other].needs and rule.needs in (("fan_in",), ("unit_grad_norm",))
        if not missing or rule.keeps_norm or is_alike:
            reason = str(error).partition(". ")[0]
            raise ValueError(f"{reason}. Fix one setting of {other}, for example --set lr=1e-3") from None
        flags = " and ".join(f"--{name.replace('_', '-')} ({MEANING[name]})" for name in missing)
        raise ValueError(f"the conversion from {rule.name} to {other} needs {flags}") from None
