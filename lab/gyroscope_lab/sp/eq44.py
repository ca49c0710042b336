"""SGD with decay takes the same directions as SGD without, with lr growing by (1-lr·wd)^-2 per step (SP 44)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD

from gyroscope.theory.sphere import lr_without_decay
from gyroscope_lab.framework.claims import Claim, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, DECADES, Figure, Panels
from gyroscope_lab.sp._normalised_layer import PAPER_LAYER, LayerConfig, draw
from gyroscope_lab.tasks.teacher_student import TeacherStudent, directions

COST = {"quick": "3 s", "paper": "5 s"}
WAYS = ("with decay", "growing lr, no decay", "constant lr, no decay")


@dataclass(frozen=True, kw_only=True)
class Config(LayerConfig):
    """Few enough steps that the growing rate stays stable. Instability would amplify rounding errors."""

    steps: int = 200
    lr: float = 0.5
    weight_decay: float = 0.01


# Two hundred steps: lr grows by e².
QUICK = Config()
PAPER = Config(**PAPER_LAYER)


def measure(trial: Trial[Config]) -> Measurements:
    """Train a layer in three ways from the same start. Return distances from the run with decay, and all norms."""
    config = trial.config
    task, first = draw(trial)
    paths = [
        train(task, first, config.steps, config.weight_decay, lambda k: config.lr),
        train(task, first, config.steps, 0.0, lambda k: float(lr_without_decay(config.lr, config.weight_decay, k))),
        train(task, first, config.steps, 0.0, lambda k: config.lr),
    ]
    distances = [
        [(directions(x) - directions(y)).norm(dim=1).max() for x, y in zip(paths[0], path, strict=True)]
        for path in paths[1:]
    ]
    return {
        "distance": torch.tensor(distances).numpy(),
        "norm": torch.tensor([[x.norm(dim=1).mean() for x in path] for path in paths]).numpy(),
    }


def train(
    task: TeacherStudent, first: Tensor, steps: int, weight_decay: float, lr: Callable[[int], float]
) -> list[Tensor]:
    """Return the weights after each step of torch's SGD with these learning rates."""
    weight = first.clone().requires_grad_()
    optimizer = SGD([weight], lr=lr(0), weight_decay=weight_decay)
    path = []
    for k in range(steps):
        optimizer.param_groups[0]["lr"] = lr(k)
        weight.grad = task.gradient(weight)
        optimizer.step()
        path.append(weight.detach().clone())
    return path


def plot(result: Result[Config]) -> Figure:
    """Draw norms, which diverge, and directions, which do not."""
    panels = Panels("mean norm of a neuron", "largest distance of directions from the way with decay")
    t = np.arange(1, result.config.steps + 1)
    for i, way in enumerate(WAYS):
        panels.line(0, t, result["norm"][0, i], way, COLOURS[i])
        if i:
            y = np.maximum(result["distance"][0, i - 1], 1e-17)  # zero has no place on a logarithmic axis
            panels.line(1, t, y, way, COLOURS[i])
    panels.figure.update_yaxes(DECADES, dtick=2, col=2)
    panels.figure.update_xaxes(title_text="step")
    return panels.titled("Weight decay is a growing learning rate")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether directions are the same, and whether they differ with a constant rate."""
    return [
        # Rounding alone stays below 1e-15 here.
        at_most("largest distance between the directions over all steps", 1e-8, result["distance"][:, 0].max(1)),
        at_least("the same distance if lr does not grow", 1e-2, result["distance"][:, 1].max(1)),
    ]
