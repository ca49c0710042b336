"""Measurements of one arm on one network: its best settings on choosing seeds, and losses on seeds that are judged."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gyroscope_lab.beyond._free_norms_arms import Point, Settings
from gyroscope_lab.beyond._free_norms_search import Search
from gyroscope_lab.beyond._free_norms_store import Measured, Record, Trainings
from gyroscope_lab.beyond._free_norms_training import time_ratio, train

CHOOSING_SEEDS = (900, 901)
FIRST_JUDGED_SEED = 1000
# Settings at which the time of a step is measured. It does not depend on them.
TIMED_AT = Point(8e-3, 0.3)
Report = Callable[[float], None]


@dataclass(frozen=True)
class Config:
    """A network and its arms.

    settings  settings of `TrainConfig` that all arms share
    arms      those of each arm. The first is the reference
    search    how the best settings of every arm are found
    seeds     judged seeds
    store     file of the finished trainings, or None for memory
    """

    settings: Settings
    arms: dict[str, Settings]
    search: Search
    seeds: int = 12
    store: str | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the arms."""
        return tuple(self.arms)

    @property
    def reference(self) -> str:
        """The arm with which the others are compared."""
        return self.parts[0]


class NotMeasuredError(Exception):
    """A training that a table needs is not in its store."""


@dataclass(frozen=True)
class Cell:
    """One arm of a config, with the trainings that are finished."""

    config: Config
    arm: str
    trainings: Trainings
    report: Report = lambda share: None
    only_stored: bool = False
    """Raise NotMeasuredError instead of training."""

    @property
    def settings(self) -> Settings:
        """The settings of all trainings of the arm."""
        own = {**self.config.settings, **self.config.arms[self.arm]}
        return {name: value for name, value in own.items() if name != "tuned_warmup"}

    @property
    def search(self) -> Search:
        """The search of the arm. An arm with a tuned warmup varies that too."""
        search = self.config.search
        is_tuned = self.config.arms[self.arm].get("tuned_warmup", False)
        return replace(search, axes=(*search.axes, "warmup")) if is_tuned else search

    def best(self) -> Point:
        """Return the settings with the lowest mean loss on the choosing seeds."""
        return self.search.best(self.choosing_loss)

    def choosing_loss(self, point: Point) -> float:
        """Return the mean loss over the choosing seeds."""
        return float(np.mean([self.loss(point, seed) for seed in CHOOSING_SEEDS]))

    def loss(self, point: Point, seed: int, **changes: int) -> float:
        """Return the loss of one training, with some settings changed."""
        settings = {**self.settings, **changes}
        key = {**settings, **point._asdict(), "seed": seed}
        return self._measured(key, lambda: train(settings, point, seed, self.report))["loss"]

    def time_ratio(self) -> float:
        """Return the process time of a step over that of the reference."""
        reference = replace(self, arm=self.config.reference).settings
        if reference == self.settings:
            return 1.0
        key = {"timed": self.settings, "reference": reference}
        return self._measured(key, lambda: {"ratio": time_ratio(self.settings, reference, TIMED_AT)})["ratio"]

    def equal_time_loss(self, best: Point, seed: int) -> float:
        """Return the loss of a run with as many steps as fit into the process time of the reference."""
        return self.loss(best, seed, steps=round(self.settings["steps"] / self.time_ratio()))

    def _measured(self, key: Record, function: Callable[[], Measured]) -> Measured:
        stored = self.trainings.get(key)
        if stored is None and self.only_stored:
            raise NotMeasuredError
        return self.trainings.measure(key, function)


def trainings_of(config: Config) -> Trainings:
    """Return the finished trainings of a config."""
    return Trainings(None if config.store is None else Path(config.store))
