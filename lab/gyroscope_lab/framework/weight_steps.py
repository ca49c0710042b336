"""A training in which every step is observed completely, for experiments that need more than a tracker.

A tracker samples steps and keeps statistics. Here a function gets each weight that rotates, before and after every
step, with its gradient and its momentum.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from gyroscope.model.selection import select
from gyroscope.optim.schedulers import rescale_
from gyroscope_lab.framework.experiment import Trial
from gyroscope_lab.training import TrainConfig
from gyroscope_lab.training.by_name import named_training
from gyroscope_lab.training.problems import make_problem


@final
@dataclass(frozen=True, eq=False)
class WeightStep:
    """A weight around one step, with the gradient at `before` and the momentum before the step."""

    before: Tensor
    after: Tensor
    gradient: Tensor
    momentum: Tensor
    """SGD's buffer before the step, zero at the first step and for other optimizers."""
    next_lr: float = nan
    """Learning rate of the next step."""


# A function that gets a step may return factors by name, by which these weights are then rescaled.
See = Callable[[int, dict[str, WeightStep]], Mapping[str, float] | None]


def train_and_see(trial: Trial[Any], settings: dict[str, Any], see: See) -> dict[str, float]:
    """Train with these settings of `TrainConfig`, call `see` with each step's number and weights, and return scores.

    It gets only weights that rotate, and not the last layer if `turn_head` is False.
    """
    config = TrainConfig.from_dict({**settings, "seed": trial.seed, "track": False})
    training, _ = named_training(config, make_problem(config, None, torch.device("cpu")), Path())
    (optimizer,) = training.optimizers
    weights = {weight.name: weight.parameter for weight in select(training.model, optimizer)}
    training.model.train()
    for step in trial.steps(training.steps):
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        momenta = {name: _momentum(optimizer, weight) for name, weight in weights.items()}
        training.one_step()
        training.step += 1
        next_lr = float(optimizer.param_groups[0]["lr"])
        steps = {}
        for name, weight in weights.items():
            assert weight.grad is not None
            steps[name] = WeightStep(before[name], weight.detach(), weight.grad, momenta[name], next_lr)
        for name, factor in (see(step, steps) or {}).items():
            rescale_(weights[name], factor, optimizer.state[weights[name]])
    return training.problem.evaluate(training.model)


def _momentum(optimizer: torch.optim.Optimizer, weight: torch.nn.Parameter) -> Tensor:
    buffer = optimizer.state[weight].get("momentum_buffer")
    return torch.zeros_like(weight) if buffer is None else buffer.clone()
