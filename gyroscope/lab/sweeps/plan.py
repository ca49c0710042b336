"""A sweep's file: settings that all trials share, and a grid or a list of those that differ."""

import hashlib
import json
import tomllib
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from gyroscope.lab.training.config import TrainConfig

# A grid beyond this is taken for a typing error.
MOST_TRIALS = 10_000


@dataclass(frozen=True)
class SweepTrial:
    """One run of a sweep: its settings, and those of them that differ between trials."""

    config: TrainConfig
    varied: dict[str, Any]

    @property
    def name(self) -> str:
        """A folder's name that the settings alone determine: a sweep that goes on finds its runs."""
        text = json.dumps(self.config.as_dict(), sort_keys=True)
        shown = "_".join(f"{key}={value}" for key, value in self.varied.items())
        return f"{shown[:80].replace('/', '-')}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Sweep:
    """Trials, and how they are compared: by `metric`, better if `higher_is_better`."""

    trials: tuple[SweepTrial, ...]
    metric: str
    higher_is_better: bool

    @property
    def axes(self) -> dict[str, list[Any]]:
        """Each setting that differs, but for the seed, with its values in the file's order."""
        names = dict.fromkeys(name for trial in self.trials for name in trial.varied if name != "seed")
        return {
            name: list(dict.fromkeys(_hashable(trial.varied[name]) for trial in self.trials if name in trial.varied))
            for name in names
        }


def read_sweep(path: Path) -> Sweep:
    """The sweep of a TOML file.

        seeds = 3                     # or a list
        metric = "validation_loss"    # by default; or "validation_accuracy"
        [base]                        # settings of every run, as `gyroscope train` has them
        task = "digits"
        [grid]                        # each combination
        lr = [1e-3, 1e-2]
        [[list]]                      # or tables: each one an arm
        optimizer = "adamw"

    Every combination of the grid is tried with every table of the list and every seed.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read the sweep {str(path)!r}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{str(path)!r} is not TOML: {error}") from None
    for key in data:
        if key not in ("seeds", "metric", "base", "grid", "list"):
            raise ValueError(
                f"unknown key {key!r} in {str(path)!r}; a sweep has seeds, metric, [base], [grid] and [[list]]"
            )
    seeds = data.get("seeds", 1)
    varied = [
        {**arm, **point, "seed": seed}
        for arm in data.get("list", [{}])
        for point in _points(data.get("grid", {}))
        for seed in (range(seeds) if isinstance(seeds, int) else seeds)
    ]
    if not 0 < len(varied) <= MOST_TRIALS:
        raise ValueError(f"{str(path)!r} makes {len(varied):,} trials; a sweep has 1 to {MOST_TRIALS:,}")
    trials = tuple(SweepTrial(TrainConfig.from_dict({**data.get("base", {}), **each}), each) for each in varied)
    metric = data.get("metric", "validation_loss")
    return Sweep(trials, metric, higher_is_better="accuracy" in metric)


def _points(grid: dict[str, Any]) -> list[dict[str, Any]]:
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"[grid] {name}={values!r} must be a list of values")
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
