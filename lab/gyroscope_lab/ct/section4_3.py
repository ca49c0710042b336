"""Without normalisation, 2-Adam with γ2 = 0 trains as Adam does with it (CT section 4.3).

The paper derives that a normalised weight W rotates by u/‖W‖. ‖W‖² is a moving average of ‖u‖² with the factor (1-ηλ)²
at each step (8), so the paper interprets this as a second stage of Adam without momentum. It has no figure of it. Here
the second stage has the betas (0, (1-ηλ)²). Normalisation is BatchNorm in a CNN on a part of CIFAR-10 at a quarter of
its resolution, or qk-norm in a GPT on characters. Every arm chooses from the same learning rates. The medium size has
16 × 16 pixels, byte pairs of Shakespeare, and 400 and 600 steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.optim.lr_scheduler import LambdaLR

import gyroscope as gyro
from gyroscope.tools import Array
from gyroscope_lab.framework.arms import capped_loss
from gyroscope_lab.framework.choices import best_part, scores_at_best
from gyroscope_lab.framework.claims import Claim, agrees, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.training import TrainConfig
from gyroscope_lab.training.problems import make_problem

COST = {"quick": "1 min", "medium": "15 min", "paper": "2 h"}


class Arm(NamedTuple):
    """A task, whether its network is normalised, and the number of Adam's stages."""

    task: str
    normalised: bool
    k: int


@dataclass(frozen=True)
class Config:
    """Settings of training by task, with those of the normalised network and of the other."""

    tasks: dict[str, dict[str, Any]]
    with_norm: dict[str, dict[str, Any]]
    without_norm: dict[str, dict[str, Any]]
    lrs: tuple[float, ...]
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    seeds: int = 3
    choosing_seeds: int = 0

    @property
    def arms(self) -> list[Arm]:
        """For each task, Adam with and without normalisation, and 2-Adam without."""
        return [Arm(task, *kind) for task in self.tasks for kind in ((True, 1), (False, 1), (False, 2))]

    @property
    def parts(self) -> list[tuple[Arm, float]]:
        """Every arm at every learning rate."""
        return [part for arm in self.arms for part in self.parts_of(arm)]

    def parts_of(self, arm: Arm) -> list[tuple[Arm, float]]:
        """Return an arm at every learning rate."""
        return [(arm, lr) for lr in self.lrs]

    def judged_parts(self, choosing: Mapping[str, Array]) -> list[tuple[Arm, float]]:
        """Return every arm at its best learning rate."""
        return [best_part(self, choosing, "loss", self.parts_of(arm)) for arm in self.arms]

    def settings(self, arm: Arm) -> dict[str, Any]:
        """Return the settings of the arm's training."""
        return self.tasks[arm.task] | (self.with_norm if arm.normalised else self.without_norm)[arm.task]

    def stages(self, arm: Arm, lr: float) -> list[tuple[float, float]]:
        """Return the betas of each stage."""
        return [self.betas, (0.0, (1 - lr * self.weight_decay) ** 2)][: arm.k]


def _config(lrs: tuple[float, ...], images: dict[str, Any], text: dict[str, Any], gpt: str) -> Config:
    return Config(
        {"images": images, "text": text},
        with_norm={"images": {"norm": "batch"}, "text": {"model": f"{gpt},qk_norm=true"}},
        without_norm={"images": {"norm": "none"}, "text": {"model": gpt}},
        lrs=lrs,
        choosing_seeds=2,
    )


QUICK = _config(
    (1e-3, 3e-3, 1e-2),
    {"task": "cifar10", "shrink": 4, "model": "cnn:width=16", "batch_size": 64, "steps": 120, "warmup": 4},
    {"task": "stdlib", "batch_size": 12, "steps": 200, "warmup": 7},
    "gpt:layers=1,width=32,context=32",
)
MEDIUM = replace(
    _config(
        (3e-4, 1e-3, 3e-3, 1e-2),
        {"task": "cifar10", "shrink": 2, "model": "cnn:width=16", "batch_size": 64, "steps": 400, "warmup": 13},
        {"task": "bpe:tinyshakespeare.txt", "batch_size": 12, "steps": 600, "warmup": 20},
        "gpt:layers=1,width=32,context=32",
    ),
    seeds=10,
)
PAPER = _config(
    (1e-3, 3e-3, 1e-2),
    {"task": "cifar10", "model": "cnn:width=64", "epochs": 10, "warmup": 1},
    {"task": "stdlib", "batch_size": 64, "steps": 3000, "warmup": 100},
    "gpt:layers=6,heads=6,width=384,context=256",
)


def measure(trial: Trial[Config]) -> Measurements:
    """Train one arm at one learning rate, and return the loss on data held out at the end."""
    arm, lr = trial.part
    settings = TrainConfig.from_dict({**trial.config.settings(arm), "seed": trial.seed})
    problem = make_problem(settings, None, torch.device("cpu"))
    groups = gyro.param_groups(problem.model, weight_decay=trial.config.weight_decay)
    optimizer = gyro.optim.KAdam(groups, lr, arm.k, trial.config.stages(arm, lr))
    multiplier = settings.multiplier(problem.batches_per_epoch)
    scheduler = LambdaLR(optimizer, lambda step: float(multiplier(min(step, multiplier.steps - 1))))
    for step in trial.steps(multiplier.steps):
        optimizer.zero_grad()
        torch.autograd.backward(problem.loss(problem.model, step)[0])
        optimizer.step()
        scheduler.step()
    return {"loss": capped_loss(problem.evaluate(problem.model)["validation_loss"])}


def best_losses(result: Result[Config], arm: Arm) -> Array:
    """Return the loss at the best learning rate, one for each seed."""
    return scores_at_best(result, "loss", result.config.parts_of(arm))


def plot(result: Result[Config]) -> Figure:
    """Draw each arm over the learning rates: judged seeds, and means of the seeds that choose, if there are any."""
    config = result.config
    panels = Panels(*config.tasks, horizontal_spacing=0.08)
    for panel, task in enumerate(config.tasks):
        arms = [arm for arm in config.arms if arm.task == task]
        names = ("Adam, normalised", "Adam, not normalised", "2-Adam with γ2 = 0, not normalised")
        for arm, name, colour in zip(arms, names, COLOURS, strict=False):
            places = [config.parts.index(part) for part in config.parts_of(arm)]
            losses = result["loss"][:, places]
            means = result.choosing.get("loss", result["loss"])[:, places].mean(0)
            panels.line(panel, config.lrs, means, name, colour)
            for of_seed in losses:
                panels.dots(panel, config.lrs, of_seed, colour=colour, size=6)
    panels.figure.update_xaxes(title_text="lr", type="log", tickvals=config.lrs)
    panels.figure.update_yaxes(title_text="loss on data held out", col=1)
    lines = " (lines: seeds that choose)" if result.choosing else ""
    return panels.titled(f"Adam with normalisation, and a second stage of Adam in its place{lines}")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether 2-Adam without normalisation ends as Adam with it, and not above Adam without."""
    judged = []
    for task in result.config.tasks:
        normalised, plain, two_adam = (best_losses(result, arm) for arm in result.config.arms if arm.task == task)
        of_two_adam = f"{task}: loss of 2-Adam with γ2 = 0, not normalised, over"
        judged.append(agrees(f"{of_two_adam} Adam's, normalised", 1.0, two_adam / normalised, within=0.05))
        judged.append(at_most(f"{of_two_adam} Adam's, not normalised", 1.0, two_adam / plain))
    return judged
