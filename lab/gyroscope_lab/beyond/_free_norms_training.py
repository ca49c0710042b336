"""One training of the trial of free norms: the loss on data held out, and the process time of its steps."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gyroscope_lab.beyond._free_norms_arms import Point, Settings
from gyroscope_lab.framework.arms import LOST, capped_loss
from gyroscope_lab.training import TrainConfig
from gyroscope_lab.training.by_name import prepare_weights
from gyroscope_lab.training.optimizers import make_optimizers
from gyroscope_lab.training.problems import Problem, make_problem

# Steps between two checks that the loss is finite.
FINITE_EVERY = 10
# Blocks of steps by which the process time of a step is measured, in turns with the other optimizer.
BLOCKS = 12
BLOCK_STEPS = 20


def train(
    settings: Settings, point: Point, seed: int, report: Callable[[float], None] = lambda share: None
) -> dict[str, float]:
    """Train, and return `loss` on data held out, at most `LOST`, and `seconds` of process time of the steps."""
    config = configured(settings, point, seed)
    problem, optimizers = start(config, point)
    assert config.steps is not None
    schedule = config.multiplier(1)
    peaks = [[float(group["lr"]) for group in optimizer.param_groups] for optimizer in optimizers]
    begun = time.process_time()
    for step in range(config.steps):
        _set_rates(optimizers, peaks, float(schedule(step)))
        loss = one_step(problem, optimizers, step)
        if step % FINITE_EVERY == 0:
            report(step / config.steps)
            if not math.isfinite(loss.item()):
                return {"loss": LOST, "seconds": math.nan}
    seconds = time.process_time() - begun
    return {"loss": capped_loss(problem.evaluate(problem.model)["validation_loss"]), "seconds": seconds}


def configured(settings: Settings, point: Point, seed: int) -> TrainConfig:
    """Return the config of a training.

    MuonH rotates whole matrices by its learning rate, so it gets the angle sqrt(2·lr·weight_decay) of a plain rule. The
    others then take AdamW's step at lr times their rate.
    """
    numbers: dict[str, Any] = {"lr": point.lr, "weight_decay": point.weight_decay}
    optimizer = settings["optimizer"]
    if optimizer == "muonh":
        numbers["lr"] = math.sqrt(2 * point.lr * point.weight_decay)
        optimizer = f"muonh:plain_lr={point.lr * point.others!r}"
    warmup = point.warmup * settings["steps"]
    return TrainConfig.from_dict({**settings, **numbers, "optimizer": optimizer, "warmup": warmup, "seed": seed})


def start(config: TrainConfig, point: Point) -> tuple[Problem, list[Optimizer]]:
    """Return the network with its initial weights, and its optimizers with a rate of their own for the others."""
    problem = make_problem(config, None, torch.device("cpu"))
    optimizers = make_optimizers(config, problem.model)
    if not config.optimizer.startswith("muonh"):
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] *= point.others if group["granularity"] == "none" else 1.0
    prepare_weights(config, problem, optimizers)
    problem.model.train()
    return problem, optimizers


def one_step(problem: Problem, optimizers: list[Optimizer], number: int) -> Tensor:
    """Take one step, and return its loss."""
    model: nn.Module = problem.model
    model.zero_grad()
    loss, _ = problem.loss(model, number)
    torch.autograd.backward(loss)
    for optimizer in optimizers:
        optimizer.step()
    return loss.detach()


def _set_rates(optimizers: list[Optimizer], peaks: list[list[float]], factor: float) -> None:
    for optimizer, rates in zip(optimizers, peaks, strict=True):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor


def time_ratio(settings: Settings, reference: Settings, point: Point) -> float:
    """Return the process time of a training step over that of a reference, measured in turns.

    The least time of all blocks counts, because other processes only add to it.
    """
    both = [start(configured(each, point, 0), point) for each in (settings, reference)]
    least = [math.inf, math.inf]
    for _ in range(BLOCKS):
        for place, (problem, optimizers) in enumerate(both):
            begun = time.process_time()
            for step in range(BLOCK_STEPS):
                one_step(problem, optimizers, step)
            least[place] = min(least[place], time.process_time() - begun)
    return least[0] / least[1]
