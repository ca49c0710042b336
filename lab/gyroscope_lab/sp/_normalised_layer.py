"""Shared parts of SP's experiments: a normalised layer that learns from a teacher, and the generic form of a step."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gyroscope.optim import AdamS, AdamSRT
from gyroscope_lab.framework.experiment import Trial
from gyroscope_lab.tasks.teacher_student import TeacherStudent

PAPER_LAYER: dict[str, Any] = {"neurons": 64, "fan_in": 128, "batch": 256, "seeds": 5}


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """The layer and the batch. Experiments add the settings that they vary."""

    neurons: int = 16
    fan_in: int = 32
    batch: int = 64
    seeds: int = 3


def draw(trial: Trial[Any]) -> tuple[TeacherStudent, Tensor]:
    """Return the task of a trial, and the weights that all of its trainings start from."""
    config: LayerConfig = trial.config
    generator = trial.generator()
    task = TeacherStudent.draw(config.neurons, config.fan_in, config.batch, generator)
    return task, torch.randn(config.neurons, config.fan_in, generator=generator, dtype=torch.float64)


def generic(optimizer: Optimizer, weight: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return a and b of the generic step x' = x - lr·a/b (SP 4, 9), from the optimizer's state before step k."""
    group = optimizer.param_groups[0]
    state = optimizer.state[weight]
    x = weight.detach()
    assert weight.grad is not None
    g = weight.grad + group["weight_decay"] * x
    if "betas" not in group:
        momentum = state.get("momentum_buffer")
        return (g if momentum is None else group["momentum"] * momentum + g), torch.ones_like(x)
    beta1, beta2 = group["betas"]
    m = state.get("exp_avg", 0.0)
    v = state.get("exp_avg_sq", 0.0)
    square = g.square()
    if isinstance(optimizer, AdamS | AdamSRT):  # one second moment per vector
        square = square.mean(1, keepdim=True)
        v = v.reshape(-1, 1) if isinstance(v, Tensor) else v
    v = (beta2 * v + (1 - beta2) * square) / (1 - beta2 ** (k + 1))
    b = (1 - beta1 ** (k + 1)) / (1 - beta1) * (v.sqrt() + group["eps"])
    return (beta1 * m + (1 - beta1) * g) / (1 - beta1), b.expand_as(x).clone()
