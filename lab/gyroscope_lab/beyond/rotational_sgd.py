"""Without warmup, at large learning rates, RotationalSGD learns more within an epoch than SGDM (ours).

A large first step of SGDM makes the norms of normalised weights grow. The weights then rotate slowly until weight decay
has brought the norms down again. RotationalSGD rotates by the equilibrium angle from the first step.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, of_arm
from gyroscope_lab.framework.arms import train_arm as measure
from gyroscope_lab.framework.choices import scores_at_best
from gyroscope_lab.framework.claims import Claim, at_least
from gyroscope_lab.framework.experiment import Result
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels

__all__ = ["measure"]

COST = {"quick": "2 min", "paper": "days"}
OPTIMIZERS = {"SGDM": "sgd", "RotationalSGD": "rotational-sgd"}


@dataclass(frozen=True)
class Config(Arms):
    """Arms are an optimizer and one of the learning rates `lrs`."""

    lrs: tuple[float, ...] = ()


def _name(optimizer: str, lr: float) -> str:
    return f"{optimizer}, lr {lr:g}"


def compared(base: dict[str, Any], lrs: tuple[float, ...], seeds: int = 3) -> Config:
    """Return a config with both optimizers at every learning rate."""
    arms = {_name(name, lr): {"optimizer": value, "lr": lr} for name, value in OPTIMIZERS.items() for lr in lrs}
    return Config({"track": False, "weight_decay": 5e-4, **base}, arms, seeds, lrs, choosing_seeds=2)


# A part of CIFAR-10 at half its resolution.
QUICK = compared({"task": "cifar10", "shrink": 2, "model": "resnet20", "epochs": 1}, (0.3, 3.0))
PAPER = compared({"task": "cifar10", "model": "resnet20", "augment": True, "epochs": 200}, (0.1, 0.3, 1.0, 3.0))


def accuracies(result: Result[Config], optimizer: str) -> Array:
    """Return the accuracies, (seeds, learning rates)."""
    return np.stack([of_arm(result, "accuracy", _name(optimizer, lr)) for lr in result.config.lrs], 1)


def plot(result: Result[Config]) -> Figure:
    """Draw the accuracy over the learning rate."""
    panels = Panels()
    lrs = result.config.lrs
    for optimizer, colour in zip(OPTIMIZERS, COLOURS, strict=False):
        of_rates = accuracies(result, optimizer)
        panels.line(0, lrs, of_rates.mean(0), optimizer, colour)
        for of_seed in of_rates:
            panels.dots(0, lrs, of_seed, colour=colour, size=7)
    panels.figure.update_xaxes(title_text="lr", type="log", tickvals=lrs)
    panels.figure.update_yaxes(title_text="accuracy on data held out")
    return panels.titled("A ResNet-20 without warmup")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the accuracy at each learning rate, and at the best."""
    sgdm, rotational = (accuracies(result, optimizer) for optimizer in OPTIMIZERS)
    gains = rotational - sgdm
    at_best = [
        scores_at_best(result, "accuracy", [_name(optimizer, lr) for lr in result.config.lrs])
        for optimizer in OPTIMIZERS
    ]
    judged = [
        at_least(f"lr {lr:g}: accuracy of RotationalSGD minus SGDM's", 0.0, gains[:, i])
        for i, lr in enumerate(result.config.lrs)
    ]
    return [*judged, at_least("the same, each at its best lr", 0.0, at_best[1] - at_best[0])]
