"""Rotational SGDM needs less tuning in a layer-normalised ResNet, and no warmup at large batches (RE Figure 5).

Differences from the paper: on the left, ResNet-8 on a part of CIFAR-10 of 8 × 8 pixels in 200 steps (medium: 600)
replaces ResNet-18 on CIFAR-100 in 200 epochs. On the right, the same network with batch norm replaces ResNet-50 on
ImageNet in 10 epochs of batches of 2,000 to 32,000 (6,400 to 400 steps). It trains for 2 epochs of batches of 512
(medium: 10 epochs of batches of 256 and 1,024, 390 and 97 steps). Weight decay is ten times as large because the runs
are short. Quick runs with large batches have two learning rates. SGDM is better at the lower one, and lower ones were
not tried.
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

COST = {"quick": "1 min", "medium": "12 min", "paper": "days of a GPU"}
OPTIMIZERS = {"SGDM": "sgd", "rotational SGDM": "rotational-sgd"}
LAYER_NORM = "layer norm"
DASHES = ("solid", "dash", "dot")


@dataclass(frozen=True)
class Config(Arms):
    """Both optimizers at several learning rates: with layer norm, and with large batches and no warmup."""

    lrs: tuple[tuple[float, ...], ...] = ()
    """Of each of `setups`."""
    setups: tuple[str, ...] = (LAYER_NORM, "large batch, no warmup")


def _arm(setting: str, name: str, lr: float) -> str:
    return f"{setting}, {name}, lr {lr:g}"


def _config(base: dict[str, Any], setups: dict[str, tuple[dict[str, Any], tuple[float, ...]]], **seeds: int) -> Config:
    """Return the config of these setups, each with its learning rates, by name."""
    arms = {
        _arm(setting, name, lr): {**own, "optimizer": optimizer, "lr": lr}
        for setting, (own, rates) in setups.items()
        for name, optimizer in OPTIMIZERS.items()
        for lr in rates
    }
    lrs = tuple(rates for _, rates in setups.values())
    return Config(base, arms, choosing_seeds=2, lrs=lrs, setups=tuple(setups), **seeds)


def _large_batch(size: int, lrs: tuple[float, ...], *, passes: int = 1, **length: Any) -> dict[str, Any]:
    """Return a setup of large batches, each accumulated in several passes."""
    batch = {"norm": "batch", "warmup": 0, "batch_size": size // passes, "accumulate": passes}
    return {f"batch {size:,}, no warmup": ({**batch, **length}, lrs)}


QUICK = _config(
    {**RESNET, "weight_decay": 5e-3},
    {
        LAYER_NORM: ({"norm": "layer", "steps": 200}, (0.01, 0.03, 0.3)),
        "large batch, no warmup": ({"batch_size": 512, "steps": 40}, (0.3, 3.0)),
    },
)
MEDIUM = _config(
    {**RESNET, "weight_decay": 5e-3, "augment": True},
    {LAYER_NORM: ({"norm": "layer", "steps": 600}, (0.01, 0.03, 0.1, 0.3))}
    | _large_batch(256, (0.1, 0.5, 2.5), steps=390)
    | _large_batch(1024, (0.1, 0.5, 2.5), steps=97),
    seeds=5,
)
_PAPER_LRS = (0.4, 1.6, 6.4, 25.6)
PAPER = _config(
    preset("re/resnet18-layer-norm"),
    {LAYER_NORM: ({}, (0.05, 0.2, 0.5, 1.0, 2.0, 4.0))}
    | _large_batch(2048, _PAPER_LRS, passes=8, epochs=10)
    | _large_batch(8192, _PAPER_LRS, passes=32, epochs=10)
    | _large_batch(32_768, _PAPER_LRS, passes=128, epochs=10),
)


def measure(trial: Trial[Config]) -> Measurements:
    """Return scores, and the 95 % over the 5 % quantile of the neurons' rotation, as a mean over layers."""
    return train_arm(trial, _spread)


def _spread(run: Run) -> Measurements:
    with np.errstate(all="ignore"):
        ratios = [
            run.series(layer, "angular_update", "q95") / run.series(layer, "angular_update", "q05")
            for layer in hidden_layers(run)
        ]
    return {"spread": np.mean([mean_during(run, ratio) for ratio in ratios])}


def _accuracies(result: Result[Config], setting: str, name: str) -> Array:
    """Return accuracies, (learning rates, seeds)."""
    rates = result.config.lrs[result.config.setups.index(setting)]
    return np.array([of_arm(result, "accuracy", _arm(setting, name, lr)) for lr in rates])


def plot(result: Result[Config]) -> Figure:
    """Draw accuracy over the learning rate: mean of the seeds as a line, each seed as a dot."""
    panels = Panels(LAYER_NORM, "large batches, no warmup", horizontal_spacing=0.09)
    rates_shown: tuple[set[float], set[float]] = (set(), set())
    for number, (setting, rates) in enumerate(zip(result.config.setups, result.config.lrs, strict=True)):
        panel = int(setting != LAYER_NORM)
        dash = DASHES[max(number - 1, 0)]
        suffix = f", {setting.removesuffix(', no warmup')}" if panel else ""
        for name, colour in zip(OPTIMIZERS, COLOURS, strict=False):
            accuracies = _accuracies(result, setting, name)
            panels.line(panel, rates, accuracies.mean(1), name + suffix, colour, dash=dash)
            for seed in accuracies.T:
                panels.dots(panel, rates, seed, colour=colour, size=5)
        rates_shown[panel].update(rates)
    for panel, shown in enumerate(rates_shown):
        panels.figure.update_xaxes(tickvals=sorted(shown), **panels.place(panel))
    panels.figure.update_xaxes(type="log", title_text="learning rate")
    panels.figure.update_yaxes(title_text="accuracy on images held out", col=1)
    return panels.titled("SGDM and its rotational variant")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether the variant is better at its best, on average over learning rates, and at the largest."""
    judged = []
    for setting, rates in zip(result.config.setups, result.config.lrs, strict=True):
        base, variant = (_accuracies(result, setting, name) for name in OPTIMIZERS)
        best = [scores_at_best(result, "accuracy", [_arm(setting, name, lr) for lr in rates]) for name in OPTIMIZERS]
        subject = f"accuracy of rotational SGDM less SGDM's, {setting}"
        judged += [
            at_least(f"{subject}, each at its best learning rate", 0.0, best[1] - best[0]),
            at_least(f"{subject}, mean over learning rates", 0.0, (variant - base).mean(0)),
            at_least(f"{subject}, the largest learning rate", 0.0, variant[-1] - base[-1]),
        ]
    middle = result.config.lrs[0][1]
    base, variant = (of_arm(result, "spread", _arm(LAYER_NORM, name, middle)) for name in OPTIMIZERS)
    sentence = "spread of rotation over the neurons of a layer, SGDM over its variant, layer norm"
    return [*judged, at_least(sentence, 1.5, base / variant)]
