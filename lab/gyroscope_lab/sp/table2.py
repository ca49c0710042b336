"""Adam-SRT is at least as accurate as Adam-S, and that as Adam; SGD-MRT is on a par with SGD-M (SP Tables 2 and 5).

Each method has the weight decay and β2 of Table 4, and the better of two learning rates at one seed, that of Table 3
and three times it. Changed against the paper: ResNet-20 of half its width, a fifth of CIFAR-10 at 8 × 8 pixels without
augmentation, 500 steps of 64 images in place of 405 epochs; the schedule falls at the same shares of the run. So short
a training asks which method learns fastest, not which ends best.
"""

from dataclasses import dataclass
from typing import Any

from gyroscope_lab.framework.arms import Arms, of_arm, plot_arms, train_arm
from gyroscope_lab.framework.claims import Claim, agrees, at_least
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import Figure
from gyroscope_lab.sp._presets import METHODS, SMALL, settings_of

COST = {"quick": "7 min", "paper": "7 days"}
COVERS = ("sp/table5",)
# The better of 1 and 3 times the learning rate of Table 3, by the accuracy of seed 0 after 120 steps: SGD-M .280 and
# .152, Adam .295 and .324, AdamW .309 and .339, AdamG .282 and .289, SGD-MRT .263 and .243, Adam-S .282 and .333,
# Adam-SRT .288 and .313.
FACTORS = {"SGD-M": 1, "Adam": 3, "AdamW": 3, "AdamG": 3, "SGD-MRT": 1, "Adam-S": 3, "Adam-SRT": 3}
# Accuracy on CIFAR-10 with ResNet20, in percent (Tables 2 and 5).
PAPERS_ACCURACY = {"SGD-M": 92.39, "SGD-MRT": 92.25}
# Better first, as Table 2 orders them.
ORDER = (("Adam-SRT", "Adam-S"), ("Adam-S", "Adam"), ("Adam-SRT", "Adam"), ("AdamG", "Adam"), ("SGD-M", "Adam-SRT"))


@dataclass(frozen=True)
class Config(Arms):
    """One arm for each method."""


def _arms(factors: dict[str, int], **changes: Any) -> dict[str, dict[str, Any]]:
    arms = {}
    for method in METHODS:
        settings = settings_of("cifar10", "resnet20", method) | changes
        arms[method] = {**settings, "lr": factors.get(method, 1) * settings["lr"]}
    return arms


QUICK = Config(base={"track": False}, arms=_arms(FACTORS, **SMALL), seeds=5)
PAPER = Config(base={"track": False}, arms=_arms({}), seeds=5)


def measure(trial: Trial[Config]) -> Measurements:
    """Train once; loss and accuracy on data held out."""
    return train_arm(trial)


def plot(result: Result[Config]) -> Figure:
    """The accuracy of every method."""
    return plot_arms(result, "accuracy", "Seven methods, ResNet-20", "accuracy on data held out")


def claims(result: Result[Config]) -> list[Claim]:
    """The order of the methods, by differences of the same seeds."""
    accuracy = {method: of_arm(result, "accuracy", method) for method in METHODS}
    judged = [
        at_least(f"accuracy of {better} less that of {worse}", 0.0, accuracy[better] - accuracy[worse])
        for better, worse in ORDER
    ]
    ratio = accuracy["SGD-MRT"] / accuracy["SGD-M"]
    expected = PAPERS_ACCURACY["SGD-MRT"] / PAPERS_ACCURACY["SGD-M"]
    return [*judged, agrees("accuracy of SGD-MRT over SGD-M, their ratio", expected, ratio, within=0.02)]
