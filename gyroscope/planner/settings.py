"""A plan from settings by name, from a command line or a TOML file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, final

from gyroscope._checks import positive_array
from gyroscope.planner.rule_settings import (
    RULE_OPTIONS,
    read_rule,
    read_schedule,
    rule_name,
    whole_numbers,
)
from gyroscope.planner.run_plan import Plan
from gyroscope.spelling import one_of
from gyroscope.theory import Schedule, UpdateRule
from gyroscope.theory.law import Weights, safe_divide
from gyroscope.theory.layer_prediction import InitialLayer, predict_layers
from gyroscope.theory.rules.base import MEANING

LAYER_OPTIONS = ("fan_in", "shape", "init_std", "init_norm", "unit_grad_norm")
RUN_OPTIONS = ("optimizer", "steps", "schedule", "warmup", "final", "decay", "milestones", "factor")
OTHER_OPTIONS = ("batch_size", "dataset_size", "layer")
OPTIONS = RUN_OPTIONS + RULE_OPTIONS + LAYER_OPTIONS + OTHER_OPTIONS


@final
@dataclass(frozen=True)
class PlanSettings:
    """The checked settings of a run to be planned.

    optimizer        its name among `RULES`
    layers           the kinds of weight vectors and where they start
    steps_per_epoch  None if the batch or the data set is unknown
    """

    optimizer: str
    rule: UpdateRule
    schedule: Schedule
    layers: tuple[InitialLayer, ...]
    steps_per_epoch: float | None


def plan_settings(settings: PlanSettings, progress: Callable[[int], None] | None = None) -> Plan:
    """Return the plan of settings. `progress` receives the number of steps done, of all layers together.

    >>> plan_settings(read_settings({"optimizer": "AdamW", "fan_in": 256, "betas": (0.9, 0.5)})).findings.kinds
    ('unstable_betas',)
    """
    predictions = predict_layers(settings.rule, settings.schedule, settings.layers, progress)
    absent = {layer.name: layer.missing(settings.rule) for layer in settings.layers}
    missing = {name: ", and ".join(map(_needs, inputs)) for name, inputs in absent.items() if inputs}
    return Plan(
        settings.optimizer,
        predictions,
        missing,
        steps_per_epoch=settings.steps_per_epoch,
    )


def _needs(name: str) -> str:
    return f"it needs {_flag(name)} ({MEANING[name]})"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def read_settings(settings: Mapping[str, Any]) -> PlanSettings:
    """Check settings by name. A ValueError quotes a wrong one and suggests a right one.

    >>> read_settings({"optimizer": "AdamW", "lr": 3e-4, "fan_in": 512}).rule
    AdamW(lr=0.0003, weight_decay=0.1, betas=(0.9, 0.999), corrected_decay=False)
    """
    for name in settings:
        one_of("setting", name, OPTIONS)
    optimizer = rule_name(settings.get("optimizer", "adamw"))
    rule = read_rule(optimizer, settings)
    return PlanSettings(
        optimizer,
        rule,
        read_schedule(settings),
        _layers(settings, rule),
        _steps_per_epoch(settings.get("batch_size"), settings.get("dataset_size")),
    )


def _layers(settings: Mapping[str, Any], rule: UpdateRule) -> tuple[InitialLayer, ...]:
    # Settings above the [[layer]] tables hold for every layer that does not override them.
    common = {key: settings[key] for key in LAYER_OPTIONS if key in settings}
    tables = settings.get("layer", [{}])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise ValueError(f"layer={tables!r} must be tables: write [[layer]] above each layer's settings")
    for table in tables:
        for key in table:
            one_of("layer setting", key, ("name", *LAYER_OPTIONS))
    names = [str(table.get("name", f"layer {i}" if len(tables) > 1 else "weight")) for i, table in enumerate(tables, 1)]
    return tuple(_layer(name, common | table, rule) for name, table in zip(names, tables, strict=True))


def _layer(name: str, settings: dict[str, Any], rule: UpdateRule) -> InitialLayer:
    shape = settings.get("shape")
    if isinstance(shape, str):
        shape = tuple(whole_numbers("shape", shape.replace("x", ",")))
    weights = Weights.checked(settings.get("fan_in"), settings.get("unit_grad_norm"), shape)
    # The norm of a whole matrix includes every row.
    rows, fan_in = weights.matrix if rule.whole_matrix and weights.shape else (1, weights.fan_in)
    if "init_norm" in settings and "init_std" in settings:
        raise ValueError("init_norm and init_std both set the initial norm: give one of them")
    if "init_norm" in settings:
        norm = positive_array("init_norm", settings["init_norm"])
    elif "init_std" in settings:
        if fan_in is None:
            raise ValueError(f"init_std={settings['init_std']!r} needs fan_in to give a norm, or give init_norm")
        norm = positive_array("init_std", settings["init_std"]) * (rows * fan_in) ** 0.5
    else:
        norm = (rows / 3) ** 0.5  # torch's own initialisation of Linear and Conv: entries of variance 1/(3·fan_in)
    if not all(isinstance(value, float | None) for value in (norm, weights.fan_in, weights.unit_grad_norm)):
        raise ValueError(
            f"{name}: one number each for fan_in, unit_grad_norm and the initial norm. Use [[layer]] for more"
        )
    return InitialLayer(name, weights, norm)


def _steps_per_epoch(batch_size: object, dataset_size: object) -> float | None:
    if batch_size is None and dataset_size is None:
        return None
    if batch_size is None or dataset_size is None:
        absent = "batch_size" if batch_size is None else "dataset_size"
        given = "dataset_size" if batch_size is None else "batch_size"
        raise ValueError(f"{given} alone does not give epochs: add {absent}")
    steps = float(safe_divide(positive_array("dataset_size", dataset_size), positive_array("batch_size", batch_size)))
    if not 0 < steps < inf:
        raise ValueError(f"dataset_size={dataset_size!r} over batch_size={batch_size!r} is not a number of steps")
    return steps
