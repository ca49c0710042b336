"""Where the weights of a run start: scaled, at the norms of equilibrium, or in bfloat16."""

from collections.abc import Sequence
from itertools import cycle

import torch
from torch.optim import Optimizer

from gyroscope.lab.training.config import TrainConfig
from gyroscope.lab.training.problems import Problem
from gyroscope.model.selection import select
from gyroscope.optim.equilibrium_init import EquilibriumStart, to_equilibrium_

# Batches on which gradients are measured for the optimizers whose norms depend on them.
BATCHES = 4


def prepare_weights(config: TrainConfig, problem: Problem, optimizers: Sequence[Optimizer]) -> list[EquilibriumStart]:
    """Change the initial weights as the config says; what a start at equilibrium changed, for each optimizer."""
    turning = [weight.parameter for optimizer in optimizers for weight in select(problem.model, optimizer)]
    with torch.no_grad():
        for weight in turning:
            weight.mul_(config.init_scale)
    started = []
    if config.start != "initial":
        started = [_at_equilibrium(config, problem, optimizer) for optimizer in optimizers]
    if config.precision == "pure-bf16":
        for weight in turning:
            weight.data = weight.data.bfloat16()
    return started


def _at_equilibrium(config: TrainConfig, problem: Problem, optimizer: Optimizer) -> EquilibriumStart:
    # The same batches again and again, so that the loss after is comparable with the loss before.
    numbers = cycle(range(BATCHES))
    return to_equilibrium_(
        problem.model,
        optimizer,
        embeddings=config.start == "equilibrium+embeddings",
        loss=lambda model: problem.loss(model, next(numbers))[0],
        batches=BATCHES,
    )
