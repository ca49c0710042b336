"""The initial weights of a run: scaled, at the norms of equilibrium, or in bfloat16."""

from collections.abc import Sequence
from itertools import cycle

import torch
from torch.optim import Optimizer

from gyroscope.model.gradients import Loss
from gyroscope.model.selection import select
from gyroscope.optim.equilibrium_init import EquilibriumStart, to_equilibrium_
from gyroscope.optim.follow_base import BaseFollower, follow
from gyroscope_lab.training.config import TrainConfig
from gyroscope_lab.training.problems import Problem

# Batches on which gradients are measured, for optimizers whose norms depend on them.
BATCHES = 4


def prepare_weights(config: TrainConfig, problem: Problem, optimizers: Sequence[Optimizer]) -> EquilibriumStart | None:
    """Change the initial weights as configured. Return the changes of a start at equilibrium if there is one."""
    turning = [weight.parameter for weight in select(problem.model, list(optimizers))]
    with torch.no_grad():
        for weight in turning:
            weight.mul_(config.init_scale)
    started = None if config.start == "initial" else _at_equilibrium(config, problem, optimizers)
    if config.precision == "pure-bf16":
        for weight in turning:
            weight.data = weight.data.bfloat16()
    return started


def follow_bases(config: TrainConfig, problem: Problem, optimizers: Sequence[Optimizer]) -> list[BaseFollower]:
    """Let rotational optimizers rotate as their bases would from the current weights, if the config asks for it."""
    if not config.follow:
        return []
    return [follow(optimizer, problem.model, loss=_first_batches(problem)) for optimizer in optimizers]


def _first_batches(problem: Problem) -> Loss:
    """Return a loss that repeats the same batches, so that losses before and after a change are comparable."""
    numbers = cycle(range(BATCHES))
    return lambda model: problem.loss(model, next(numbers))[0]


def _at_equilibrium(config: TrainConfig, problem: Problem, optimizers: Sequence[Optimizer]) -> EquilibriumStart:
    return to_equilibrium_(
        problem.model,
        list(optimizers),
        embeddings=config.start == "equilibrium+embeddings",
        loss=_first_batches(problem),
        batches=BATCHES,
    )
