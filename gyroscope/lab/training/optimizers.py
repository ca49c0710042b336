"""Optimizers by name, made for a model: parameter groups decided once, the same for all."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

import gyroscope as gyro

Make = Callable[..., Optimizer]


@dataclass(frozen=True)
class OptimizerChoice:
    """A class with the settings that a user gets who names only the optimizer."""

    make: Make
    lr: float
    weight_decay: float
    options: tuple[str, ...]
    """Which of betas and momentum it takes."""


def _choices() -> dict[str, OptimizerChoice]:
    betas = ("betas",)
    momentum = ("momentum",)
    optim = gyro.optim
    return {
        "adamw": OptimizerChoice(torch.optim.AdamW, 1e-3, 0.1, betas),
        "adam": OptimizerChoice(torch.optim.Adam, 1e-3, 1e-4, betas),
        "nadam": OptimizerChoice(torch.optim.NAdam, 1e-3, 1e-4, betas),
        "sgd": OptimizerChoice(torch.optim.SGD, 0.1, 5e-4, momentum),
        "lion": OptimizerChoice(optim.Lion, 1e-4, 1.0, betas),
        "rotational-adamw": OptimizerChoice(optim.RotationalAdamW, 1e-3, 0.1, betas),
        "rotational-sgd": OptimizerChoice(optim.RotationalSGD, 0.1, 5e-4, momentum),
        "rotational-lion": OptimizerChoice(optim.RotationalLion, 1e-4, 1.0, betas),
        "adam-s": OptimizerChoice(optim.AdamS, 1e-3, 1e-4, betas),
        "adam-srt": OptimizerChoice(optim.AdamSRT, 1e-3, 1e-3, betas),
        "sgd-mrt": OptimizerChoice(optim.SGDMRT, 0.1, 5e-3, momentum),
        "spherical-adam": OptimizerChoice(optim.SphericalAdam, 1e-2, 0.0, betas),
        "k-adam": OptimizerChoice(optim.KAdam, 1e-3, 0.1, betas),
    }


def make_optimizer(
    name: str,
    model: nn.Module,
    *,
    lr: float | None = None,
    weight_decay: float | None = None,
    decay_embeddings: bool = False,
    **options: Any,
) -> Optimizer:
    """The named optimizer over the model's parameters: weights rotate and decay, all else does neither."""
    choices = _choices()
    if name not in choices:
        near = get_close_matches(name, choices, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(choices)}"
        raise ValueError(f"unknown optimizer {name!r}; {remedy}")
    choice = choices[name]
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if key not in choice.options:
            raise ValueError(f"{name} has no {key!r}; it takes lr, weight_decay and {', '.join(choice.options)}")
    if "momentum" in choice.options:
        given.setdefault("momentum", 0.9)
    decay = choice.weight_decay if weight_decay is None else weight_decay
    embeddings = [name for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
    overrides = {rf"^{name}\.weight$": {"weight_decay": decay} for name in embeddings if decay_embeddings}
    groups = gyro.param_groups(model, weight_decay=decay, overrides=overrides)
    return choice.make(groups, lr=choice.lr if lr is None else lr, weight_decay=decay, **given)
