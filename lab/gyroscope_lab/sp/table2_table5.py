"""How accurate seven methods are, each with the weight decay and β2 of Table 4 (SP Tables 2 and 5).

Each method has the best of three learning rates: 1, 3 and 10 times that of Table 3, chosen by seeds that are not
judged. Differences from the paper: ResNet-20 of half its width, a fifth of CIFAR-10 at 8 × 8 pixels without
augmentation, and 500 steps of 64 images instead of 405 epochs. The learning rate falls at the same shares of the run.
Such a short training shows which method learns fastest, not which ends best. The medium size has forty seeds of the
three methods that the paper ranks. The size of the paper has all columns except SVHN and ImageNet, which are not
available here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, train_arm
from gyroscope_lab.framework.choices import scores_at_best
from gyroscope_lab.framework.claims import Claim, agrees, at_least, confidence_interval
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.sp._presets import METHODS, SMALL, settings_of

CLAIMS = {
    "table2": "Adam-SRT is at least as accurate as Adam-S, and Adam-S as Adam (SP Table 2).",
    "table5": "SGD-MRT is on a par with SGD-M (SP Table 5).",
}
COST = {
    "table2": {"quick": "20 min", "medium": "20 min", "paper": "5 weeks"},
    "table5": {"quick": "6 min", "paper": "10 days"},
}
TABLE5 = ("SGD-M", "SGD-MRT")
TABLE2 = tuple(method for method in METHODS if method != "SGD-MRT")
# Accuracy in percent (Tables 2 and 5), in the order of METHODS.
_PAPERS_ACCURACY = {
    ("cifar10", "resnet20"): (92.39, 90.98, 90.19, 91.64, 92.25, 91.15, 91.81),
    ("cifar10", "resnet18"): (95.10, 93.77, 93.61, 94.67, 94.93, 93.95, 94.92),
    ("cifar10", "vgg16"): (93.56, 92.83, 92.53, 93.41, 93.68, 92.92, 93.75),
    ("cifar100", "resnet18"): (77.08, 71.30, 67.39, 73.76, 77.09, 74.44, 75.28),
    ("cifar100", "vgg16"): (73.77, 68.43, 71.37, 70.17, 73.32, 68.73, 71.45),
}
# A column of the tables -> method -> the paper's accuracy.
COLUMNS = {
    f"{model} on {task}": dict(zip(METHODS, (score / 100 for score in scores), strict=True))
    for (task, model), scores in _PAPERS_ACCURACY.items()
}
# Of the learning rates of Table 3, for so short a training.
FACTORS = (1, 3, 10)
# Those of the medium size: the best of FACTORS by the mean accuracy of seeds 100,000 to 100,002, none of which is
# judged. Adam has 0.392, 0.418 and 0.404, Adam-S 0.395, 0.408 and 0.414, Adam-SRT 0.395, 0.412 and 0.408.
CHOSEN_FACTORS = {"Adam": (3,), "Adam-S": (10,), "Adam-SRT": (3,)}
# Better first, as the paper orders them. Claims leave out a pair in a column where the paper has the other order.
ORDER = (("Adam-SRT", "Adam-S"), ("Adam-S", "Adam"), ("Adam-SRT", "Adam"), ("AdamG", "Adam"), ("SGD-M", "Adam-SRT"))


@dataclass(frozen=True, kw_only=True)
class Config(Arms):
    """Methods in columns of the tables. An arm is one of them at a learning rate."""

    methods: tuple[str, ...]
    columns: tuple[str, ...]

    def rates(self, column: str, method: str) -> list[str]:
        """Return the arms of a method in a column."""
        return [arm for arm in self.parts if arm.startswith(f"{column}: {method}, lr")]


def _config(
    methods: tuple[str, ...],
    factors: Mapping[str, tuple[int, ...]],
    *,
    columns: int = 1,
    seeds: int = 5,
    **changes: Any,
) -> Config:
    """Return a config with the first columns of the tables and multiples of the learning rates of Table 3."""
    arms = {}
    for column, (task, model) in list(zip(COLUMNS, _PAPERS_ACCURACY, strict=True))[:columns]:
        for method in methods:
            settings = settings_of(task, model, method) | changes
            for factor in factors[method]:
                lr = factor * settings["lr"]
                arms[f"{column}: {method}, lr {lr:g}"] = {**settings, "lr": lr}
    choosing_seeds = 2 if max(map(len, factors.values())) > 1 else 0
    names = tuple(COLUMNS)[:columns]
    return Config({"track": False}, arms, seeds, choosing_seeds=choosing_seeds, methods=methods, columns=names)


_ALL = dict.fromkeys(METHODS, FACTORS)
_AS_PRINTED = dict.fromkeys(METHODS, (1,))
QUICK = {"table2": _config(TABLE2, _ALL, **SMALL), "table5": _config(TABLE5, _ALL, **SMALL)}
MEDIUM = {"table2": _config(tuple(CHOSEN_FACTORS), CHOSEN_FACTORS, seeds=40, **SMALL)}
PAPER = {
    "table2": _config(TABLE2, _AS_PRINTED, columns=len(COLUMNS)),
    "table5": _config(TABLE5, _AS_PRINTED, columns=len(COLUMNS)),
}


def measure(trial: Trial[Config]) -> Measurements:
    """Train once, and return loss and accuracy on data held out."""
    return train_arm(trial)


def accuracies(result: Result[Config], column: str) -> dict[str, Array]:
    """Return the accuracy of each method at its best learning rate, one for each seed."""
    config = result.config
    return {method: scores_at_best(result, "accuracy", config.rates(column, method)) for method in config.methods}


def pairs(config: Config) -> list[tuple[str, str]]:
    """Return the pairs of methods that are compared, the better one first."""
    return [pair for pair in (*ORDER, TABLE5) if set(pair) <= set(config.methods)]


def papers_difference(column: str, better: str, worse: str) -> float:
    """Return the difference of two accuracies in a column of the paper.

    >>> f"{papers_difference('resnet20 on cifar10', 'Adam-SRT', 'Adam-S'):.4f}"
    '0.0066'
    """
    return COLUMNS[column][better] - COLUMNS[column][worse]


def plot(result: Result[Config]) -> Figure:
    """Draw the accuracy of every method, and differences of the same seeds beside the paper's."""
    config = result.config
    columns = config.columns
    titles = [f"accuracy on data held out, {column}" for column in columns] + ["difference of the same seeds"]
    titles += [""] * (len(columns) - 1)
    panels = Panels(*titles, rows=1 if len(columns) == 1 else 2, horizontal_spacing=0.08)
    for panel, column in enumerate(columns):
        accuracy = accuracies(result, column)
        for method, colour in zip(config.methods, COLOURS, strict=False):
            panels.dots(panel, [method] * config.seeds, accuracy[method], colour=colour, size=6, opacity=0.6)
            _interval(panels, panel, method, accuracy[method])
        for better, worse in pairs(config):
            name = f"{better}<br>less {worse}"  # in two lines, or neighbours would touch
            papers = papers_difference(column, better, worse)
            _interval(panels, len(columns) + panel, name, accuracy[better] - accuracy[worse])
            panels.dots(len(columns) + panel, [name], [papers], "the paper's", COLOURS[1], size=11, symbol="x")
        panels.level(len(columns) + panel, 0.0)
    return panels.titled("Accuracy by method, mean and 95 % interval")


def _interval(panels: Panels, panel: int, name: str, values: Array) -> None:
    """Draw a mean with its 95 % interval."""
    interval = confidence_interval(values)
    panels.line(panel, [name, name], [interval.low, interval.high], "mean and 95 % interval", width=2.5)
    panels.dots(panel, [name], [interval.mean], symbol="line-ew-open", size=16)


def claims(result: Result[Config]) -> list[Claim]:
    """Return the order of the methods, by differences of the same seeds, and the ratio of the two of Table 5."""
    config = result.config
    judged = []
    for column in config.columns:
        accuracy = accuracies(result, column)
        where = f", {column}" if len(config.columns) > 1 else ""
        for better, worse in pairs(config):
            papers = papers_difference(column, better, worse)
            if (better, worse) == TABLE5:
                ratio = accuracy["SGD-MRT"] / accuracy["SGD-M"]
                expected = COLUMNS[column]["SGD-MRT"] / COLUMNS[column]["SGD-M"]
                judged.append(agrees(f"accuracy of SGD-MRT over SGD-M's{where}", expected, ratio, within=0.02))
            elif papers > 0:
                sentence = f"accuracy of {better} less {worse}'s{where} (paper: {papers:.4f})"
                judged.append(at_least(sentence, 0.0, accuracy[better] - accuracy[worse]))
    return judged
