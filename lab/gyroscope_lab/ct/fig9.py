"""One second moment for a whole query or key matrix trains it as one for each entry does (CT Figure 9).

Differences from the paper: two layers of its width and heads instead of six, batches of 8 contexts of 16 characters,
and 300 steps. The two trainings differ from the first step, in which Adam moves every entry by lr and the
coarse-grained rule moves each in proportion to its gradient.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization
from torch.optim import Adam, Optimizer

from gyroscope.optim import AdamS
from gyroscope.tools import Array
from gyroscope_lab.ct._text_training import (
    PANELS,
    PAPER_MODEL,
    TextTraining,
    draw_courses,
    qkv_layers,
    query_and_key_rows,
    train_step,
)
from gyroscope_lab.framework.claims import Claim, at_least
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import Figure, shown_steps
from gyroscope_lab.networks.gpt import GPT

COST = {"quick": "2 min", "paper": "a day"}
POINTS = 80


@dataclass(frozen=True, kw_only=True)
class Config(TextTraining):
    """A GPT with qk-norm under Adam. v of query and key matrices is the usual one, or averaged over a head's matrix."""

    steps: int = 300
    lr: float = 1e-3


QUICK = Config(heads=6, width=384)
PAPER = Config(**PAPER_MODEL, steps=1000)


def measure(trial: Trial[Config]) -> Measurements:
    """Train twice from the same start on the same batches. Return sixteen entries and how alike all are."""
    config = trial.config
    generator = trial.generator()
    models = [config.model(trial.seed) for _ in range(2)]
    optimizers = [optimizers_of(model, config, coarse) for model, coarse in zip(models, (False, True), strict=True)]
    first = entries(models[0])
    picked = torch.randperm(len(first), generator=generator)[:PANELS]
    courses: list[list[Array]] = [[], []]
    losses = np.zeros((2, config.steps))
    for n in trial.steps(config.steps):
        batch = config.random_batch(generator)
        for i, model in enumerate(models):
            losses[i, n] = train_step(model, batch, *optimizers[i])
            courses[i].append((entries(model) - first)[picked].numpy())
    plain, coarse = (entries(model) - first for model in models)
    shown = shown_steps(config.steps, POINTS)
    return {
        "plain": np.stack(courses[0], 1)[:, shown],
        "coarse": np.stack(courses[1], 1)[:, shown],
        "r2": 1 - float((plain - coarse).square().sum() / plain.square().sum()),
        "cosine": float((plain * coarse).sum() / plain.norm() / coarse.norm()),
        "loss": losses[:, -config.steps // 5 :].mean(1),
    }


class ValuesApart(nn.Module):
    """A layer's queries and keys in one parameter and its values in another, so that each has its own optimizer."""

    def forward(self, queries_and_keys: Tensor, values: Tensor) -> Tensor:
        """Return the weight of the layer."""
        return torch.cat([queries_and_keys, values])

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two parameters of a weight."""
        width = weight.shape[1]
        return weight[: 2 * width].clone(), weight[2 * width :].clone()


def optimizers_of(model: GPT, config: Config, coarse: bool) -> list[Optimizer]:
    """Return Adam for all, or Adam-S for queries and keys, whose v is the mean of g² over a head's matrix."""
    # eps so small that both rules are scale-free.
    if not coarse:
        return [Adam(model.parameters(), config.lr, eps=1e-12)]
    for layer in qkv_layers(model):
        register_parametrization(layer, "weight", ValuesApart())
    named = dict(model.named_parameters())
    special = [named.pop(name) for name in list(named) if name.endswith("qkv.parametrizations.weight.original0")]
    group = {"params": special, "granularity": "group", "group_size": config.width // config.heads}
    return [Adam(named.values(), config.lr, eps=1e-12), AdamS([group], config.lr, eps=1e-12)]


def entries(model: GPT) -> Tensor:
    """Return all entries of query and key matrices."""
    return query_and_key_rows(model).flatten()


def plot(result: Result[Config]) -> Figure:
    """Draw sixteen entries of the first seed."""
    config = result.config
    courses = {"Adam": result["plain"][0] / config.lr, "one v per matrix": result["coarse"][0] / config.lr}
    title = f"Way of 16 entries of query and key matrices over {config.steps} steps"
    return draw_courses(courses, shown_steps(config.steps, POINTS) + 1, title, "entry less its start, in lr")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether both trainings agree in their weights and in the loss."""
    plain = result["plain"]
    picked = 1 - ((plain - result["coarse"]) ** 2).sum((1, 2)) / (plain**2).sum((1, 2))
    loss = result["loss"][:, 0] / result["loss"][:, 1]
    return [
        at_least("R² of the way of 16 random entries over the run", 0.9, picked),
        at_least("R² of the place of all entries at the last step", 0.9, result["r2"]),
        at_least("cosine between the two ways of all entries at the last step", 0.9, result["cosine"]),
        at_least("loss with one v per entry over that with one v per matrix, the last fifth of the steps", 0.99, loss),
    ]
