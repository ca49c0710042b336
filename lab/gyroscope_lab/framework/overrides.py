"""Settings that a run changes: `gyroscope lab run re/fig4 --set steps=600`.

A setting is a field of the experiment's config, or of `TrainConfig` in its trainings. Settings that the arms compare
cannot be changed. Run lengths keep their proportions, and the longest gets the given value.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from gyroscope.spelling import did_you_mean

LENGTHS = ("steps", "epochs")
# Fields with settings that all trainings share. A new setting is added there.
SHARED_SETTINGS = ("base", "settings")


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """Return the values by name: numbers, true and false, lists in brackets, or words.

    >>> parse_overrides(["steps=600", "betas=[0.9, 0.95]", "optimizer=lion"])
    {'steps': 600, 'betas': (0.9, 0.95), 'optimizer': 'lion'}
    """
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ValueError(f"--set {text!r}: write it as name=value, such as steps=600")
        values[name] = _parsed(value)
    return values


def _parsed(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return tuple(value) if isinstance(value, list) else value


def override(config: Any, values: Mapping[str, Any]) -> Any:
    """Return the config with these settings changed, or raise a ValueError with the known settings."""
    for name, value in values.items():
        config = _override_one(config, name, value)
    return config


def _override_one(config: Any, name: str, value: Any) -> Any:
    names = [field.name for field in fields(config)]
    if name in names:
        _check_type(name, getattr(config, name), value)
        return replace(config, **{name: value})
    settings = [each for field in names for each in _dicts(getattr(config, field))]
    holders = [each for each in settings if _length_or(name, each)]
    if holders:
        new = _new_values(name, value, [each[_length_or(name, each)] for each in holders])
        changed = {id(old): _with(old, name, each) for old, each in zip(holders, new, strict=True)}
        return replace(config, **{field: _replaced(getattr(config, field), changed) for field in names})
    shared = next((field for field in SHARED_SETTINGS if field in names), None)
    if shared is None or name not in _training_settings():
        known = {*names, *(key for each in settings for key in each if isinstance(each[key], int | float | str))}
        raise ValueError(f"this experiment has no setting {name!r}: {did_you_mean(name, sorted(known), most=3)}")
    return replace(config, **{shared: {**getattr(config, shared), name: value}})


def _length_or(name: str, settings: dict[str, Any]) -> str:
    """Return the name of a setting in a training, or "" if it has none. A length in epochs can be given in steps."""
    keys: tuple[str, ...] = (name, *LENGTHS) if name in LENGTHS else (name,)
    return next((key for key in keys if settings.get(key) is not None), "")


def _new_values(name: str, value: Any, old: list[Any]) -> list[Any]:
    if all(each == old[0] for each in old):
        return [value] * len(old)
    if name not in LENGTHS or not isinstance(value, int | float):
        raise ValueError(f"{name}={value!r} cannot be set: the trainings of this experiment differ in {name}")
    return [type(value)(max(1, round(value * each / max(old)))) for each in old]


def _with(settings: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    other = {length: None for length in LENGTHS if name in LENGTHS and length in settings}
    return {**settings, **other, name: value}


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all dictionaries in a field of a config, including nested ones."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _dicts(inner)


def _replaced(value: Any, changed: Mapping[int, dict[str, Any]]) -> Any:
    if not isinstance(value, dict):
        return value
    return changed.get(id(value)) or {key: _replaced(inner, changed) for key, inner in value.items()}


def _check_type(name: str, old: Any, new: Any) -> None:
    is_number = isinstance(old, float) and isinstance(new, int | float) and not isinstance(new, bool)
    if old is not None and type(new) is not type(old) and not is_number:
        raise ValueError(f"{name}={new!r} must be of the same kind as {old!r}")


def _training_settings() -> set[str]:
    from gyroscope_lab.training import TrainConfig  # with torch, which the list of experiments does without

    return {field.name for field in fields(TrainConfig)}
