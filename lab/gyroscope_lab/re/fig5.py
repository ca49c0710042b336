"""Rotational SGDM needs less tuning in a layer-normalised ResNet, and no warmup at large batches (RE Figure 5).

Changed against the paper: ResNet-8 on a part of CIFAR-10 of 8 × 8 pixels in 200 steps, for ResNet-18 on CIFAR-100 in
200 epochs (left), and the same network with batch norm in 2 epochs of batches of 512, for ResNet-50 on ImageNet in 10
epochs of batches of 2,000 to 32,000 (right). Weight decay is ten times as large, since the runs are short.
Large batches have two learning rates: SGDM is better at the lower, and what it would reach below that is not known.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gyroscope.store import Run
from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, of_arm, train_arm
from gyroscope_lab.framework.choices import scores_at_best
from gyroscope_lab.framework.claims import Claim, at_least
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.re._networks import RESNET
from gyroscope_lab.re._tracked import hidden_layers, mean_during

COST = {"quick": "1 min", "paper": "days of a GPU"}
OPTIMIZERS = {"SGDM": "sgd", "rotational SGDM": "rotational-sgd"}
SETTINGS = ("layer norm", "large batch, no warmup")


@dataclass(frozen=True)
class Config(Arms):
    """Both optimizers at several learning rates: with layer norm, and with large batches and no warmup."""

    lrs: tuple[tuple[float, ...], ...] = ()
    """Of each of `SETTINGS`."""


def _arm(setting: str, name: str, lr: float) -> str:
    return f"{setting}, {name}, lr {lr:g}"


def _config(base: dict[str, Any], lrs: tuple[tuple[float, ...], ...], *settings: dict[str, Any]) -> Config:
    arms = {
        _arm(setting, name, lr): {**own, "optimizer": optimizer, "lr": lr}
        for setting, own, rates in zip(SETTINGS, settings, lrs, strict=True)
        for name, optimizer in OPTIMIZERS.items()
        for lr in rates
    }
    return Config(base, arms, choosing_seeds=2, lrs=lrs)


QUICK = _config(
    {**RESNET, "weight_decay": 5e-3},
    ((0.01, 0.03, 0.3), (0.3, 3.0)),
    {"norm": "layer", "steps": 200},
    {"batch_size": 512, "steps": 40},
)
PAPER = _config(
    preset("re/resnet18-layer-norm"),
    ((0.05, 0.2, 0.5, 1.0, 2.0, 4.0), (0.4, 1.6, 6.4, 25.6)),
    {},
    {"norm": "batch", "batch_size": 256, "accumulate": 8, "epochs": 10, "warmup": 0},
)


def measure(trial: Trial[Config]) -> Measurements:
    """Scores, and how unequally the neurons of a layer turn: the 95 % over the 5 % quantile, mean of the layers."""
    return train_arm(trial, _spread)


def _spread(run: Run) -> Measurements:
    with np.errstate(all="ignore"):
        ratios = [
            run.series(layer, "angular_update", "q95") / run.series(layer, "angular_update", "q05")
            for layer in hidden_layers(run)
        ]
    return {"spread": np.mean([mean_during(run, ratio) for ratio in ratios])}


def _accuracies(result: Result[Config], setting: str, name: str) -> Array:
    """(learning rates, seeds)."""
    rates = result.config.lrs[SETTINGS.index(setting)]
    return np.array([of_arm(result, "accuracy", _arm(setting, name, lr)) for lr in rates])


def plot(result: Result[Config]) -> Figure:
    """Accuracy over the learning rate: mean of the seeds as a line, each seed as a dot."""
    panels = Panels(*SETTINGS, horizontal_spacing=0.09)
    for panel, (setting, rates) in enumerate(zip(SETTINGS, result.config.lrs, strict=True)):
        for name, colour in zip(OPTIMIZERS, COLOURS, strict=False):
            accuracies = _accuracies(result, setting, name)
            panels.line(panel, rates, accuracies.mean(1), name, colour)
            for seed in accuracies.T:
                panels.dots(panel, rates, seed, colour=colour, size=5)
    panels.figure.update_xaxes(type="log", title_text="learning rate")
    panels.figure.update_yaxes(title_text="accuracy on images held out", col=1)
    return panels.titled("SGDM and its rotational variant")


def claims(result: Result[Config]) -> list[Claim]:
    """The variant is better at its best, on average over learning rates, and at the largest."""
    judged = []
    for setting, rates in zip(SETTINGS, result.config.lrs, strict=True):
        base, variant = (_accuracies(result, setting, name) for name in OPTIMIZERS)
        best = [scores_at_best(result, "accuracy", [_arm(setting, name, lr) for lr in rates]) for name in OPTIMIZERS]
        subject = f"accuracy of rotational SGDM less SGDM's, {setting}"
        judged += [
            at_least(f"{subject}, each at its best learning rate", 0.0, best[1] - best[0]),
            at_least(f"{subject}, mean over learning rates", 0.0, (variant - base).mean(0)),
            at_least(f"{subject}, the largest learning rate", 0.0, variant[-1] - base[-1]),
        ]
    middle = result.config.lrs[0][1]
    base, variant = (of_arm(result, "spread", _arm("layer norm", name, middle)) for name in OPTIMIZERS)
    sentence = "spread of rotation over the neurons of a layer, SGDM over its variant, layer norm"
    return [*judged, at_least(sentence, 1.5, base / variant)]
