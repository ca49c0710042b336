"""Imbalanced rotation costs accuracy: a share p of the neurons turns f times slower or faster (RE Figure 12).

Rotational AdamW with the angles of some neurons of each layer scaled, at the best of the learning rates for each share
and factor. Changed against the paper: ResNet-8 on a part of CIFAR-10 of 8 × 8 pixels in 120 steps, for ResNet-18 in 200
epochs; two learning rates instead of eight.
"""

from dataclasses import dataclass
from typing import Any

from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, train_arm
from gyroscope_lab.framework.choices import scores_at_best
from gyroscope_lab.framework.claims import Claim, at_least
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.re._drawing import draw_scores
from gyroscope_lab.re._networks import RESNET

COST = {"quick": "3 min", "paper": "months of a GPU"}
BALANCED = "balanced"


@dataclass(frozen=True)
class Config(Arms):
    """Every imbalance at every learning rate."""

    imbalances: tuple[str, ...] = ()

    def of(self, imbalance: str) -> list[str]:
        """The arms of an imbalance."""
        return [arm for arm in self.parts if arm.startswith(f"{imbalance}, lr")]


def _config(base: dict[str, Any], lrs: tuple[float, ...], imbalances: dict[str, str], seeds: int = 3) -> Config:
    arms = {
        f"{name}, lr {lr:g}": {"optimizer": f"imbalanced-adamw:{options}", "lr": lr}
        for name, options in imbalances.items()
        for lr in lrs
    }
    return Config(base, arms, seeds, choosing_seeds=2, imbalances=tuple(imbalances))


def _slower(share: float, factor: float) -> dict[str, str]:
    return {f"{100 * share:g} % {factor:g} × slower": f"slower={share},factor={factor}"}


_BALANCED = {BALANCED: ""}
_BOTH = {"25 % 10 × slower, 25 % faster": "slower=0.25,faster=0.25,factor=10"}
QUICK = _config(
    {**RESNET, "steps": 120, "weight_decay": 1.0, "track": False},
    (1e-2, 6e-2),
    {**_BALANCED, **_slower(0.5, 10), **_BOTH},
    seeds=16,  # six left one of the claims undecided
)
_SHARES = {key: value for p in (0.1, 0.3, 0.5, 0.7, 0.9) for key, value in _slower(p, 10).items()}
_FACTORS = {key: value for f in (1.5, 2, 4, 7) for key, value in _slower(0.5, f).items()}
PAPER = _config(
    {**preset("re/resnet18-adamw"), "warmup": 5, "weight_decay": 0.01, "track": False},
    (2.7e-3, 8.3e-3, 2.5e-2, 5e-2, 0.1, 0.3, 0.9, 4.5),
    {**_BALANCED, **_SHARES, **_FACTORS, **_BOTH},
)


def measure(trial: Trial[Config]) -> Measurements:
    """Scores of one imbalance at one learning rate."""
    return train_arm(trial)


def _best(result: Result[Config], imbalance: str) -> Array:
    return scores_at_best(result, "accuracy", result.config.of(imbalance))


def plot(result: Result[Config]) -> Figure:
    """Accuracy of each imbalance at its best learning rate: seeds as dots, the mean with its interval."""
    panels = Panels()
    for imbalance, colour in zip(result.config.imbalances, COLOURS * 3, strict=False):
        draw_scores(panels, 0, imbalance, _best(result, imbalance), colour)
    panels.figure.update_yaxes(title_text="accuracy on images held out")
    return panels.titled("Rotation that differs from neuron to neuron, at the best learning rate of each")


def claims(result: Result[Config]) -> list[Claim]:
    """Balanced rotation is better than every imbalance, each at its best learning rate."""
    balanced = _best(result, BALANCED)
    return [
        at_least(f"accuracy of balanced rotation less that of {imbalance}", 0.0, balanced - _best(result, imbalance))
        for imbalance in result.config.imbalances
        if imbalance != BALANCED
    ]
