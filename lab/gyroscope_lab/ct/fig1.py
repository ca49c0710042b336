"""Adam's differential equation follows the weights of a real training run (CT Figure 1)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from plotly.graph_objects import Figure
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812
from torch.optim import AdamW

from gyroscope_lab.ct._flow import flow
from gyroscope_lab.ct._text_training import PANELS, PAPER_MODEL, TextTraining, draw_courses, train_step
from gyroscope_lab.framework.claims import Claim, at_least
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.networks.gpt import GPT

COST = {"quick": "40 s", "paper": "a week"}


@dataclass(frozen=True, kw_only=True)
class Config(TextTraining):
    """A GPT with qk-norm under AdamW, and its flow with K = `substeps` per step."""

    layers: int = 1
    steps: int = 100
    substeps: int = 20
    lr: float = 1e-3
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)


# One layer, K = 20. Five seeds, because with three an interval straddles the tolerance (also in Figures 5, 8 and 9).
QUICK = Config(seeds=5)
PAPER = Config(**PAPER_MODEL, substeps=100)


def measure(trial: Trial[Config]) -> Measurements:
    """Train, and run the flow over the same batches. Return sixteen weights of both, and the distance of all."""
    config = trial.config
    generator = trial.generator()
    model = config.model(trial.seed)
    batches = [config.random_batch(generator) for _ in range(config.steps)]
    first = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    # The flow has no eps.
    optimizer = AdamW(model.parameters(), config.lr, config.betas, eps=1e-30, weight_decay=config.weight_decay)
    states = flow(
        lambda weights, *batch: loss(model, weights, *batch),
        first,
        lr=config.lr,
        steps=config.steps,
        weight_decay=config.weight_decay,
        betas=config.betas,
        substeps=config.substeps,
        batches=lambda n: batches[n],
    )
    start = flat(first)
    picked = torch.randperm(len(start), generator=generator)[:PANELS]
    courses: dict[str, list[Any]] = {"discrete": [], "flow": [], "distance2": [], "moved2": []}
    for n, state in zip(trial.steps(config.steps), states, strict=True):
        train_step(model, batches[n], optimizer)
        trained = flat(dict(model.named_parameters()))
        continuous = flat(state.parameters)
        courses["discrete"].append((trained - start)[picked].tolist())
        courses["flow"].append((continuous - start)[picked].tolist())
        courses["distance2"].append(float((trained - continuous).square().sum()))
        courses["moved2"].append(float((trained - start).square().sum()))
    return {name: np.array(course).T for name, course in courses.items()}


def loss(model: GPT, weights: dict[str, Tensor], characters: Tensor, following: Tensor) -> Tensor:
    """Return the model's loss as a function of its weights."""
    logits: Any = functional_call(model, weights, (characters,))
    return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def flat(weights: dict[str, Any]) -> Tensor:
    """Return all weights in one vector."""
    return torch.cat([weight.detach().flatten() for weight in weights.values()]).double()


def plot(result: Result[Config]) -> Figure:
    """Draw sixteen weights of the first seed: training as lines, the flow as dashes."""
    config = result.config
    courses = {"training": result["discrete"][0] / config.lr, "differential equation": result["flow"][0] / config.lr}
    title = f"Way of 16 weights from their start over {config.steps} steps"
    return draw_courses(courses, np.arange(1, config.steps + 1), title, "weight less its start, in lr")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge how much of the weights' motion the equation explains."""
    picked = 1 - ((result["flow"] - result["discrete"]) ** 2).sum((1, 2)) / (result["discrete"] ** 2).sum((1, 2))
    everything = 1 - result["distance2"].sum(1) / result["moved2"].sum(1)
    last = 1 - result["distance2"][:, -1] / result["moved2"][:, -1]
    return [
        at_least("R² of the way of 16 random weights over all steps", 0.9, picked),
        at_least("R² of the way of all weights over all steps", 0.9, everything),
        at_least("R² of the place of all weights at the last step", 0.9, last),
    ]
