"""Arms: trainings that an experiment compares. They differ in some settings and have the same seeds."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gyroscope.store import Run
from gyroscope.tools import Array
from gyroscope_lab.framework.claims import confidence_interval
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, INK, Figure, styled
from gyroscope_lab.tasks.text import TEXTS
from gyroscope_lab.training import TrainConfig, TrainResult, train

# Loss of a run that diverged, about that of a network that has learnt nothing. Without a limit, one loss of 1e9 would
# dominate an interval. Such a network has no accuracy.
LOST = 5.0
# Samples of a tracked run, and the steps between two samples if its length is in epochs. The tracker's default depends
# on the speed of the machine, so measurements would too.
SAMPLES = 100
STEPS_PER_SAMPLE = 100


@dataclass(frozen=True)
class Arms:
    """Settings of `TrainConfig`: those that all arms share, and by name those of each arm.

    Every arm is a part of the experiment. Subclasses add what their claims need.
    """

    base: dict[str, Any]
    arms: dict[str, dict[str, Any]]
    seeds: int = 3
    choosing_seeds: int = field(default=0, kw_only=True)
    """Seeds that only choose between arms (`choices`)."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the arms."""
        return tuple(self.arms)


def train_arm(trial: Trial[Any], read: Callable[[Run], Measurements] = lambda run: {}) -> Measurements:
    """Train one arm with one seed. Return its scores and the values that `read` takes from its tracked run."""
    config: Arms = trial.config
    settings = {"evaluations": 1, **config.base, **config.arms[trial.part], "seed": trial.seed}
    return train_and_read(trial, settings, read)


def train_and_read(trial: Trial[Any], settings: dict[str, Any], read: Callable[[Run], Measurements]) -> Measurements:
    """Train with these settings of `TrainConfig`. Return final scores on held-out data and the values of `read`.

    `loss` is at most `LOST`. Tasks with an `accuracy` return it too. It is 0 for a run that diverged.
    """
    every = max(1, settings["steps"] // SAMPLES) if settings.get("steps") else STEPS_PER_SAMPLE
    with tempfile.TemporaryDirectory() as folder:
        result = _train(trial, {"sample_every": every, **settings}, folder)
        if not result.config.track:
            return _scores(result, settings)
        with result.run() as run:
            return {**_scores(result, settings), **read(run)}


def train_course(trial: Trial[Any]) -> Measurements:
    """Train one arm with one seed. Return `losses` on held-out data at each evaluation."""
    config: Arms = trial.config
    settings = {**config.base, **config.arms[trial.part], "seed": trial.seed}
    with tempfile.TemporaryDirectory() as folder:
        result = _train(trial, settings, folder)
    losses = [capped_loss(scores["validation_loss"]) for scores in result.history]
    # A run that diverged has no evaluations after that.
    return {"losses": losses + [LOST] * (result.config.evaluations - len(losses))}


def _train(trial: Trial[Any], settings: dict[str, Any], folder: str) -> TrainResult:
    config = TrainConfig.from_dict(settings)
    return train(config, Path(folder) / "run", on_step=lambda at: trial.report(at.step / at.steps))


def capped_loss(loss: float) -> float:
    """Return the loss, at most `LOST`. NaN becomes `LOST`."""
    return loss if loss < LOST else LOST


def _scores(result: TrainResult, settings: dict[str, Any]) -> dict[str, float]:
    scores = result.scores if result.divergence is None else {}
    measured = {"loss": capped_loss(scores.get("validation_loss", LOST))}
    task = settings.get("task", TrainConfig.task)
    is_text = task.partition(":")[0] in TEXTS
    return measured if is_text else {**measured, "accuracy": scores.get("validation_accuracy", 0.0)}


def of_arm(result: Result[Any], quantity: str, arm: str) -> Array:
    """Return the measurements of one arm, with the seed along the first axis."""
    place: int = result.config.parts.index(arm)
    return result[quantity][:, place]


def plot_arms(result: Result[Any], quantity: str, title: str, unit: str) -> Figure:
    """Draw each arm with its seeds as dots, and the mean with its 95 % interval."""
    figure = Figure()
    for i, arm in enumerate(result.config.parts):
        values = of_arm(result, quantity, arm)
        interval = confidence_interval(values)
        colour = COLOURS[i % len(COLOURS)]
        bars = {"array": [interval.high - interval.mean], "color": INK}
        figure.add_scatter(x=[arm], y=[interval.mean], error_y=bars, mode="markers", marker={"color": INK, "size": 9})
        figure.add_scatter(x=np.full(len(values), arm), y=values, mode="markers", marker={"color": colour, "size": 7})
    figure.update_layout(showlegend=False)
    figure.update_yaxes(title_text=unit)
    return styled(figure, title)
