"""One training of the trials: parameters by group, a warmup and a cosine, and the loss on data held out."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

import gyroscope as gyro
from gyroscope.theory import cosine
from gyroscope.theory.transfer_rows import TransferSettings
from gyroscope_lab.framework.arms import capped_loss
from gyroscope_lab.framework.experiment import Trial
from gyroscope_lab.transfer._networks import Problem

Group = dict[str, Any]
# Share of the run in which the learning rate rises.
WARMUP = 0.05
# Settings were chosen on seeds from here on.
FIRST_TUNING_SEED = 100


def groups_of(model: nn.Module, settings: Mapping[str, TransferSettings]) -> dict[str, list[Group]]:
    """Return the groups of hidden weights and the head, of embeddings, and of gains, with their settings."""
    embeddings = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    groups: dict[str, list[Group]] = {"hidden": [], "embedding": [], "gains": []}
    for group in gyro.param_groups(model, weight_decay=settings["hidden"].weight_decay):
        if group["granularity"] != "none":
            groups["hidden"].append({**group, "lr": settings["hidden"].lr})
            continue
        named = dict(zip(group["param_names"], group["params"], strict=True))
        for kind in ("embedding", "gains"):
            chosen = {name: each for name, each in named.items() if (name in embeddings) == (kind == "embedding")}
            if chosen:
                own = {"lr": settings[kind].lr, "weight_decay": settings[kind].weight_decay}
                groups[kind].append({**group, **own, "params": [*chosen.values()], "param_names": [*chosen]})
    return groups


def adamw(groups: Mapping[str, list[Group]], betas: tuple[float, float]) -> Optimizer:
    """Return AdamW for all groups."""
    return torch.optim.AdamW([group for kind in groups.values() for group in kind], betas=betas)


def train(
    trial: Trial[Any],
    problem: Problem,
    optimizers: list[Optimizer],
    *,
    batch: int,
    steps: int,
    seed: int,
    warmup: float = WARMUP,
    powers: tuple[float, ...] = (1.0, 1.0),
    after_step: Callable[[int], None] = lambda step: None,
) -> float:
    """Train, and return the loss on data held out. `powers` are the powers of the schedule, one for each optimizer."""
    generator = torch.Generator().manual_seed(seed)
    multipliers = cosine(steps, round(warmup * steps))(np.arange(steps))
    peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    for step in trial.steps(steps):
        for optimizer, rates, power in zip(optimizers, peaks, powers, strict=False):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * float(multipliers[step]) ** power
        problem.model.zero_grad()
        torch.autograd.backward(problem.loss(batch, generator))
        for optimizer in optimizers:
            optimizer.step()
        after_step(step)
    return capped_loss(problem.validation_loss())
