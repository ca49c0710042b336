"""Adam-SRT is at least as accurate as Adam-S, and that as Adam; SGD-MRT is on a par with SGD-M (SP Tables 2 and 5).

Each method has the weight decay and β2 of Table 4, and the better of two learning rates, that of Table 3 and three
times it, judged by the mean accuracy of all seeds. Changed against the paper: ResNet-20 of half its width, a fifth of
CIFAR-10 at 8 × 8 pixels without augmentation, 120 steps of 64 images in place of 405 epochs; the schedule falls at the
same shares of the run. So short a training asks which method learns fastest, not which ends best.
"""

from dataclasses import dataclass, replace
from typing import Any

from gyroscope._types import Array
from gyroscope.lab.arms import Arms, best_arm, of_arm, plot_arms, train_arm
from gyroscope.lab.claims import Claim, agrees, at_least
from gyroscope.lab.experiment import Measurements, Result, Trial
from gyroscope.lab.figures import Figure
from gyroscope.lab.sp._presets import METHODS, SMALL, settings_of

COST = {"quick": "3 min", "paper": "7 days"}
COVERS = ("sp/table5",)
# Learning rates on trial over that of Table 3: so few steps ask for larger ones.
FACTORS = (1, 3)
# Accuracy on CIFAR-10 with ResNet20, in percent (Tables 2 and 5).
PAPERS_ACCURACY = {"SGD-M": 92.39, "SGD-MRT": 92.25}
# Better first, as Table 2 orders them.
ORDER = (("Adam-SRT", "Adam-S"), ("Adam-S", "Adam"), ("Adam-SRT", "Adam"), ("AdamG", "Adam"), ("SGD-M", "Adam-SRT"))


@dataclass(frozen=True)
class Config(Arms):
    """Arms are named by their method and learning rate."""

    def arms_of(self, method: str) -> list[str]:
        """The arms of a method."""
        return [arm for arm in self.arms if arm.split(" at ")[0] == method]


def _arms(factors: tuple[float, ...], **changes: Any) -> dict[str, dict[str, Any]]:
    arms = {}
    for method in METHODS:
        settings = settings_of("cifar10", "resnet20", method) | changes
        for factor in factors:
            lr = factor * settings["lr"]
            arms[f"{method} at {lr:.1g}"] = {**settings, "lr": lr}
    return arms


QUICK = Config(base={"track": False}, arms=_arms(FACTORS, **SMALL))
PAPER = Config(base={"track": False}, arms=_arms((1,)), seeds=5)


def measure(trial: Trial[Config]) -> Measurements:
    """Train once; loss and accuracy on data held out."""
    return train_arm(trial)


def best_of(result: Result[Config], method: str) -> Array:
    """The accuracy of a method at its best learning rate, by seed."""
    return of_arm(result, "accuracy", best_arm(result, "accuracy", result.config.arms_of(method)))


def plot(result: Result[Config]) -> Figure:
    """The accuracy of every method at its best learning rate."""
    config = result.config
    best = [best_arm(result, "accuracy", config.arms_of(method)) for method in METHODS]
    places = [config.parts.index(arm) for arm in best]
    chosen = Result(
        replace(config, arms={arm: config.arms[arm] for arm in best}), {"accuracy": result["accuracy"][:, places]}
    )
    title = "Seven methods at their best learning rate, ResNet-20"
    return plot_arms(chosen, "accuracy", title, "accuracy on data held out")


def claims(result: Result[Config]) -> list[Claim]:
    """The order of the methods, by differences of the same seeds."""
    judged = [
        at_least(f"accuracy of {better} less that of {worse}", 0.0, best_of(result, better) - best_of(result, worse))
        for better, worse in ORDER
    ]
    ratio = best_of(result, "SGD-MRT") / best_of(result, "SGD-M")
    expected = PAPERS_ACCURACY["SGD-MRT"] / PAPERS_ACCURACY["SGD-M"]
    return [*judged, agrees("accuracy of SGD-MRT over SGD-M, their ratio", expected, ratio, within=0.02)]
