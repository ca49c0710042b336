"""On the sphere SGD with decay is AdamG*, Adam without momentum constrained to it, at order 2 (SP Theorem 4)."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD

from gyroscope.theory.sphere import AdamGStar, adam_g_star
from gyroscope_lab.framework.claims import Claim, agrees, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, DECADES, Figure, Panels
from gyroscope_lab.sp._normalised_layer import PAPER_LAYER, LayerConfig, draw
from gyroscope_lab.tasks.teacher_student import TeacherStudent, directions

COST = {"quick": "5 s", "paper": "1 min"}


@dataclass(frozen=True, kw_only=True)
class Config(LayerConfig):
    """lr is halved `halvings` times, and the steps are doubled, so that the time lr·k stays the same."""

    lr: float = 4.0
    steps: int = 40
    halvings: int = 4
    weight_decay: float = 0.005

    @property
    def parts(self) -> range:
        """How often lr is halved."""
        return range(self.halvings + 1)


QUICK = Config()
PAPER = Config(**PAPER_LAYER, halvings=6)


def measure(trial: Trial[Config]) -> Measurements:
    """Train a layer with SGD and with AdamG*. Return how far apart they end, and how far SGD went."""
    config = trial.config
    task, first = draw(trial)
    lr = config.lr / 2**trial.part
    steps = config.steps * 2**trial.part
    weight = first.clone().requires_grad_()
    optimizer = SGD([weight], lr=lr, weight_decay=config.weight_decay)
    for _ in range(steps):
        weight.grad = task.gradient(weight)
        optimizer.step()
    radius = first.norm(dim=1, keepdim=True)
    sphere = follow_adam_g_star(task, first, adam_g_star(lr, config.weight_decay, radius.numpy()), steps)
    return {
        "distance": (directions(weight) - sphere).norm(dim=1).mean(),
        "travelled": (directions(weight) - directions(first)).norm(dim=1).mean(),
    }


def follow_adam_g_star(task: TeacherStudent, first: Tensor, star: AdamGStar, steps: int) -> Tensor:
    """Follow AdamG* literally (SP 3.2): u' = normalise(u - lr·g/sqrt(v)), then v' = beta·v + ‖g‖²."""
    u = directions(first)
    v = torch.as_tensor(star.v0)
    for _ in range(steps):
        g = task.gradient(u)
        u = directions(u - float(star.lr) * g / v.sqrt())
        v = float(star.beta) * v + g.square().sum(1, keepdim=True)
    return u


def plot(result: Result[Config]) -> Figure:
    """Draw the distance at every lr, and a line of third order."""
    config = result.config
    lr = config.lr / 2.0 ** np.arange(config.halvings + 1)
    panels = Panels()
    for seed in range(config.seeds):
        panels.dots(0, lr, result["distance"][seed], f"seed {seed}", COLOURS[seed % len(COLOURS)], size=9)
    panels.predicted(0, lr, result["distance"][0, -1] * (lr / lr[-1]) ** 3, "third order")
    panels.line(0, lr, result["travelled"][0], "way travelled", COLOURS[6])
    panels.figure.update_xaxes(title_text="lr, at the same lr·steps", type="log", dtick=math.log10(2))
    panels.figure.update_yaxes(DECADES, title_text="mean distance of directions")
    return panels.titled("SGD and AdamG*: directions differ by the third order of lr")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether they are close, and 8 times closer for each halving."""
    distance = result["distance"]
    factor = distance[:, -2] / distance[:, -1]
    share = distance[:, -1] / result["travelled"][:, -1]
    return [
        agrees("distance per halving of lr at the same time, order 3", 2.0**3, factor, within=0.1),
        at_most("distance at the smallest lr over the way travelled", 1e-3, share),
    ]
