"""Trainings in which something happens at a known step, and trainings in which nothing does."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import gyroscope as gyro
from gyroscope.lab.tasks.images import Images
from gyroscope.lab.training.config import TrainConfig
from gyroscope.lab.training.loop import Training
from gyroscope.lab.training.problems import ImageProblem, Problem, Scores, make_problem

# Steps between samples, given as a number so that a busy machine does not make samples rarer.
EVERY = 10
# Steps for which the learning rate is raised, and for which labels are shuffled.
RAISED = 3
SHUFFLED = 50


@final
class SpoiltBatches(Problem):
    """A problem of images of which some batches are replaced."""

    def __init__(self, problem: ImageProblem, steps: range, spoil: Callable[[Images], Images]) -> None:
        self.problem = problem
        self.steps = steps
        self.spoil = spoil
        self.model = problem.model
        self.device = problem.device
        self.batches_per_epoch = problem.batches_per_epoch

    def loss(self, model: nn.Module, number: int) -> tuple[Tensor, Scores]:
        """Of the spoilt batch where it is one of them."""
        if number not in self.steps:
            return self.problem.loss(model, number)
        batch = self.spoil(self.problem.batch(number))
        return F.cross_entropy(model(batch.pixels), batch.labels), {}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """As without spoilt batches."""
        return self.problem.evaluate(model)


def garbage(batch: Images) -> Images:
    """Noise instead of pixels."""
    generator = torch.Generator().manual_seed(0)
    return replace(batch, pixels=torch.rand(batch.pixels.shape, generator=generator))


def shuffled(batch: Images) -> Images:
    """The same images with the labels of others."""
    order = torch.randperm(len(batch.labels), generator=torch.Generator().manual_seed(0))
    return replace(batch, labels=batch.labels[order])


def raise_lr(training: Training, layer: str) -> None:
    """The learning rate × 10; the scheduler takes it back after a step."""
    for group in training.optimizers[0].param_groups:
        group["lr"] *= 10


def freeze(training: Training, layer: str) -> None:
    """One layer has no gradient any more."""
    training.model.get_parameter(layer).requires_grad_(False)


@torch.no_grad()
def double(training: Training, layer: str) -> None:
    """The weights of one layer × 2."""
    training.model.get_parameter(layer).mul_(2)


def raise_decay(training: Training, layer: str) -> None:
    """The weight decay × 100."""
    for group in training.optimizers[0].param_groups:
        group["weight_decay"] *= 100


def change_betas(training: Training, layer: str) -> None:
    """Adam's second average forgets ten times as fast; SGD's momentum is twice as long."""
    for group in training.optimizers[0].param_groups:
        if "betas" in group:
            group["betas"] = (group["betas"][0], 1 - 10 * (1 - group["betas"][1]))
        else:
            group["momentum"] = 1 - (1 - group["momentum"]) / 2


# What is planted, by its name: batches that are replaced for so many steps …
SPOILT: dict[str, tuple[Callable[[Images], Images], int]] = {
    "garbage batch": (garbage, 1),
    "shuffled labels": (shuffled, SHUFFLED),
}
# … or what is done before each of so many steps.
DONE: dict[str, tuple[Callable[[Training, str], None], int]] = {
    "learning rate": (raise_lr, RAISED),
    "frozen layer": (freeze, 1),
    "doubled weights": (double, 1),
    "weight decay": (raise_decay, 1),
    "betas": (change_betas, 1),
}
PLANTED = (*SPOILT, *DONE)


def train_planted(
    config: TrainConfig,
    out: Path,
    *,
    planted: str = "",
    at: int = 0,
    layer: str = "",
    report: Callable[[float], None] = lambda share: None,
) -> Path:
    """Train with an incident at step `at`, or with none; the tracked run."""
    problem = make_problem(config, None, torch.device("cpu"))
    training = Training(config, problem, out)
    if planted in SPOILT:
        assert isinstance(problem, ImageProblem), "only images are spoilt"
        spoil, steps = SPOILT[planted]
        training.problem = SpoiltBatches(problem, range(at, at + steps), spoil)
    act, steps = DONE.get(planted, (None, 0))

    def on_step(done: object) -> None:
        report(training.step / training.schedule.steps)
        if act is not None and at <= training.step < at + steps:
            act(training, layer)

    path = out / "rotation"
    with gyro.Tracker(training.model, training.optimizers[0], path, every=EVERY) as tracker:
        training.take_steps(tracker, on_step, lambda: False)
    return path
