"""Adam-SRT is at least as accurate as Adam-S, and that as Adam; SGD-MRT is on a par with SGD-M (SP Tables 2 and 5).

Each method has the weight decay and β2 of Table 4, and the better of two learning rates, that of Table 3 and three
times it, by seeds that are not judged. Changed against the paper: ResNet-20 of half its width, a fifth of CIFAR-10 at 8
× 8 pixels without augmentation, 500 steps of 64 images in place of 405 epochs; the schedule falls at the same shares of
the run. So short a training asks which method learns fastest, not which ends best.
"""

from dataclasses import dataclass
from typing import Any

from gyroscope_lab.framework.arms import Arms, plot_arms, train_arm
from gyroscope_lab.framework.choices import scores_at_best
from gyroscope_lab.framework.claims import Claim, agrees, at_least
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import Figure
from gyroscope_lab.sp._presets import METHODS, SMALL, settings_of

COST = {"quick": "20 min", "paper": "7 days"}
COVERS = ("sp/table5",)
# Of the learning rates of Table 3, for so short a training.
FACTORS = (1, 3)
# Accuracy on CIFAR-10 with ResNet20, in percent (Tables 2 and 5).
PAPERS_ACCURACY = {"SGD-M": 92.39, "SGD-MRT": 92.25}
# Better first, as Table 2 orders them.
ORDER = (("Adam-SRT", "Adam-S"), ("Adam-S", "Adam"), ("Adam-SRT", "Adam"), ("AdamG", "Adam"), ("SGD-M", "Adam-SRT"))


@dataclass(frozen=True)
class Config(Arms):
    """Each method at each learning rate."""

    def rates(self, method: str) -> list[str]:
        """Return the arms of a method."""
        return [arm for arm in self.parts if arm == method or arm.startswith(f"{method}, lr")]


def _arms(factors: tuple[int, ...], **changes: Any) -> dict[str, dict[str, Any]]:
    arms = {}
    for method in METHODS:
        settings = settings_of("cifar10", "resnet20", method) | changes
        for factor in factors:
            name = method if len(factors) == 1 else f"{method}, lr {factor * settings['lr']:g}"
            arms[name] = {**settings, "lr": factor * settings["lr"]}
    return arms


QUICK = Config(base={"track": False}, arms=_arms(FACTORS, **SMALL), seeds=5, choosing_seeds=2)
PAPER = Config(base={"track": False}, arms=_arms((1,)), seeds=5)


def measure(trial: Trial[Config]) -> Measurements:
    """Train once; loss and accuracy on data held out."""
    return train_arm(trial)


def plot(result: Result[Config]) -> Figure:
    """The accuracy of every method."""
    return plot_arms(result, "accuracy", "Seven methods, ResNet-20", "accuracy on data held out")


def claims(result: Result[Config]) -> list[Claim]:
    """The order of the methods, by differences of the same seeds."""
    accuracy = {method: scores_at_best(result, "accuracy", result.config.rates(method)) for method in METHODS}
    judged = [
        at_least(f"accuracy of {better} less that of {worse}", 0.0, accuracy[better] - accuracy[worse])
        for better, worse in ORDER
    ]
    ratio = accuracy["SGD-MRT"] / accuracy["SGD-M"]
    expected = PAPERS_ACCURACY["SGD-MRT"] / PAPERS_ACCURACY["SGD-M"]
    return [*judged, agrees("accuracy of SGD-MRT over SGD-M, their ratio", expected, ratio, within=0.02)]
