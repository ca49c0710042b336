"""The file of a sweep: settings that all trials share, and a grid or a list of settings that differ."""

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from gyroscope.tools import read_toml
from gyroscope_lab.training.config import TrainConfig

# A larger grid is treated as a typing error.
MOST_TRIALS = 10_000
# Scores by which trials can be compared, and whether higher is better.
METRICS = {"validation_loss": False, "validation_accuracy": True}
# Keys of a sweep's file, with their types.
KINDS: dict[str, type | tuple[type, ...]] = {
    "seeds": (int, list),
    "metric": str,
    "base": dict,
    "grid": dict,
    "list": list,
}


@dataclass(frozen=True)
class SweepTrial:
    """One run of a sweep: its settings, and those of them that differ between trials."""

    config: TrainConfig
    varied: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of its folder. It depends only on the settings, so that a resumed sweep finds its runs."""
        text = json.dumps(self.config.as_dict(), sort_keys=True)
        shown = "_".join(f"{key}={value}" for key, value in self.varied.items())
        return f"{shown[:80].replace('/', '-')}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def label(self) -> str:
        """The settings that differ, as text."""
        return ", ".join(f"{key} = {value}" for key, value in self.varied.items())


@dataclass(frozen=True)
class Sweep:
    """Trials, and the `metric` by which they are compared."""

    trials: tuple[SweepTrial, ...]
    metric: str
    higher_is_better: bool

    @property
    def axes(self) -> dict[str, list[Any]]:
        """Each setting that differs, except the seed, with its values in the file's order."""
        names = dict.fromkeys(name for trial in self.trials for name in trial.varied if name != "seed")
        # From the config, because a table of the list that omits a setting has that of [base].
        values = {name: [getattr(trial.config, name) for trial in self.trials] for name in names}
        return {name: list(dict.fromkeys(values[name])) for name in names}


def read_sweep(path: Path) -> Sweep:
    """Read a sweep from a TOML file.

        seeds = 3                     # or a list
        metric = "validation_loss"    # the default, or "validation_accuracy"
        [base]                        # settings of every run, named as options of `gyroscope train`
        task = "digits"
        [grid]                        # each combination
        lr = [1e-3, 1e-2]
        [[list]]                      # or tables, each of which is an arm
        optimizer = "adamw"

    Every combination of the grid is tried with every table of the list and every seed.
    """
    data = read_toml(path)
    try:
        return _sweep(data)
    except ValueError as error:
        raise ValueError(f"{str(path)!r}: {error}") from None


def _sweep(data: dict[str, Any]) -> Sweep:
    for key in data:
        if key not in KINDS:
            raise ValueError(f"unknown key {key!r}: a sweep has seeds, metric, [base], [grid] and [[list]]")
        if not isinstance(data[key], KINDS[key]):
            raise ValueError(f"{key}={data[key]!r}: seeds is a number or a list, metric is text, the others are tables")
    metric = data.get("metric", "validation_loss")
    if metric not in METRICS:
        raise ValueError(f"metric={metric!r} is unknown: choose {' or '.join(METRICS)}")
    tables = data.get("list", [{}])
    if not all(isinstance(table, dict) for table in tables):
        raise ValueError(f"list={tables!r} must be tables of settings, each below a line [[list]]")
    axes = _axes(data["grid"]) if "grid" in data else {}
    seeds = data.get("seeds", 1)
    # Counted before anything is built, because a typing error may make billions.
    count = prod(map(len, axes.values())) * len(tables) * _count_seeds(seeds)
    if not 0 < count <= MOST_TRIALS:
        raise ValueError(f"this makes {count:,} trials: a sweep has 1 to {MOST_TRIALS:,}")
    varied = [
        {**table, **dict(zip(axes, values, strict=True)), "seed": seed}
        for table in tables
        for values in product(*axes.values())
        for seed in (range(seeds) if isinstance(seeds, int) else seeds)
    ]
    trials = tuple(SweepTrial(_config({**data.get("base", {}), **each}), each) for each in varied)
    names = Counter(trial.name for trial in trials)
    for trial in trials:
        if names[trial.name] > 1:
            raise ValueError(f"the trial {trial.label} is listed twice: seeds belong in the key seeds only")
    return Sweep(trials, metric, higher_is_better=METRICS[metric])


def _config(settings: dict[str, Any]) -> TrainConfig:
    for name, value in settings.items():
        if isinstance(value, list | dict) and name != "betas":
            raise ValueError(f"{name}={value!r} must be one value: lists of values belong in [grid]")
    try:
        return TrainConfig.from_dict(settings)
    except TypeError as error:  # for example text instead of a number
        raise ValueError(f"{settings!r} are not settings of a training run: {error}") from None


def _count_seeds(seeds: Any) -> int:
    numbers = [seeds - 1] if type(seeds) is int else seeds
    if not isinstance(numbers, list) or not numbers or not all(type(each) is int and each >= 0 for each in numbers):
        raise ValueError(f"seeds={seeds!r} must be the number of seeds, at least 1, or a list of whole numbers")
    return seeds if type(seeds) is int else len(seeds)


def _axes(grid: dict[str, Any]) -> dict[str, list[Any]]:
    if not grid:
        raise ValueError("[grid] is empty: give a list of values for a setting, or leave [grid] out")
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"[grid] {name}={values!r} must be a list of values")
    return grid
