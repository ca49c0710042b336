"""Imbalanced rotation costs accuracy: a share p of the neurons rotates f times slower or faster (RE Figure 12).

Rotational AdamW rotates some neurons of each layer by scaled angles. Each share and factor has its best learning rate,
chosen on seeds that are not judged. In the second kind of imbalance, half of the share rotates slower and half faster.
Differences from the paper: ResNet-8 on a part of CIFAR-10 of 8 × 8 pixels in 120 steps (medium: 600) replaces ResNet-18
in 200 epochs. There are two learning rates (medium: four) instead of eight.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, train_arm
from gyroscope_lab.framework.choices import best_part, scores_at_best
from gyroscope_lab.framework.claims import Claim, at_least, confidence_interval
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.framework.named_options import split_options
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.re._networks import RESNET

COST = {"quick": "3 min", "medium": "15 min", "paper": "months of a GPU"}
BALANCED = "balanced"
# Of all neurons, as the paper varies one with the other fixed.
SHARE = 0.5
FACTOR = 10.0


@dataclass(frozen=True)
class Imbalance:
    """Shares of the neurons that rotate slower and faster, and the factor between them and the others."""

    slower: float = 0.0
    faster: float = 0.0
    factor: float = FACTOR

    @property
    def share(self) -> float:
        """The share p of all neurons that rotate slower or faster."""
        return self.slower + self.faster

    def __str__(self) -> str:
        if not self.share:
            return BALANCED
        faster = f", {100 * self.faster:g} % faster" if self.faster else ""
        return f"{100 * self.slower:g} % {self.factor:g} × slower{faster}"


@dataclass(frozen=True)
class Config(Arms):
    """Every imbalance at every learning rate."""

    imbalances: tuple[str, ...] = ()

    def of(self, imbalance: str) -> list[str]:
        """Return the arms of an imbalance."""
        return [arm for arm in self.parts if arm.startswith(f"{imbalance}, lr")]

    def imbalance(self, name: str) -> Imbalance:
        """Return an imbalance by its name, from the options of its optimizer."""
        _, options = split_options(self.arms[self.of(name)[0]]["optimizer"])
        return Imbalance(**{key: float(value) for key, value in options.items()})

    def judged_parts(self, choosing: Mapping[str, Array]) -> list[str]:
        """Return each imbalance at its best learning rate."""
        return [best_part(self, choosing, "accuracy", self.of(imbalance)) for imbalance in self.imbalances]


def _config(base: dict[str, Any], lrs: tuple[float, ...], imbalances: list[Imbalance], seeds: int = 3) -> Config:
    arms = {
        f"{each}, lr {lr:g}": {
            "optimizer": f"imbalanced-adamw:slower={each.slower},faster={each.faster},factor={each.factor}",
            "lr": lr,
        }
        for each in imbalances
        for lr in lrs
    }
    return Config(base, arms, seeds, choosing_seeds=2, imbalances=tuple(map(str, imbalances)))


def _slower(share: float, factor: float) -> Imbalance:
    return Imbalance(slower=share, factor=factor)


def _both(share: float, factor: float) -> Imbalance:
    return Imbalance(share / 2, share / 2, factor)


def _on_axes(shares: tuple[float, ...], factors: tuple[float, ...]) -> list[Imbalance]:
    """Return both kinds of imbalance with p varied at f = 10 and f varied at p = 50 %. The balanced one comes first."""
    places = [*((share, FACTOR) for share in shares), *((SHARE, factor) for factor in factors)]
    return [Imbalance(), *(kind(*place) for kind in (_slower, _both) for place in places)]


QUICK = _config(
    {**RESNET, "steps": 120, "weight_decay": 1.0, "track": False},
    (1e-2, 6e-2),
    [Imbalance(), _slower(0.5, 10), _both(0.5, 10)],
    seeds=16,  # six left one of the claims undecided
)
MEDIUM = _config(
    {**RESNET, "augment": True, "steps": 600, "warmup": 30, "weight_decay": 0.5, "track": False},
    (5e-3, 2e-2, 8e-2, 0.32),
    _on_axes((0.1, 0.5, 0.9), (2,)),
    seeds=16,
)
PAPER = _config(
    {**preset("re/resnet18-adamw"), "warmup": 5, "weight_decay": 0.01, "track": False},
    (2.7e-3, 8.3e-3, 2.5e-2, 5e-2, 0.1, 0.3, 0.9, 4.5),
    _on_axes((0.1, 0.3, 0.5, 0.7, 0.9), (1.5, 2, 4, 7)),
)


def measure(trial: Trial[Config]) -> Measurements:
    """Train one imbalance at one learning rate and return its scores."""
    return train_arm(trial)


def _best(result: Result[Config], imbalance: str) -> Array:
    return scores_at_best(result, "accuracy", result.config.of(imbalance))


def plot(result: Result[Config]) -> Figure:
    """Draw how fast neurons rotate, and accuracy over the share and over the factor, as means with intervals."""
    accuracies = (f"accuracy, f = {FACTOR:g}", f"accuracy, p = {100 * SHARE:g} %")
    panels = Panels("rotation over balanced", *accuracies, horizontal_spacing=0.08)
    neurons = np.linspace(0, 1, 201)
    for kind, name, colour in ((_slower, "slower", COLOURS[0]), (_both, "slower and faster", COLOURS[1])):
        shape = kind(SHARE, FACTOR)
        speed = np.select([neurons < shape.slower, neurons > 1 - shape.faster], [1 / FACTOR, FACTOR], 1.0)
        panels.line(0, neurons, speed, name, colour)
        for panel, axis in ((1, "share"), (2, "factor")):
            places = _on_axis(result.config, kind, axis)
            intervals = [confidence_interval(_best(result, each)) for each in places.values()]
            means = [interval.mean for interval in intervals]
            bars = {"array": [interval.high - interval.mean for interval in intervals]}
            panels.line(panel, list(places), means, name, colour)
            panels.figure.add_scatter(
                x=list(places), y=means, error_y=bars, mode="markers", marker={"color": colour}, showlegend=False,
                **panels.place(panel),
            )  # fmt: skip
    panels.figure.update_yaxes(type="log", dtick=1, row=1, col=1)
    for column, title in enumerate(("neurons of a layer", "share p of the neurons", "factor f"), 1):
        panels.figure.update_xaxes(title_text=title, row=1, col=column)
    return panels.titled("Rotation that differs from neuron to neuron, at the best learning rate of each")


def _on_axis(config: Config, kind: Callable[[float, float], Imbalance], axis: str) -> dict[float, str]:
    """Return the imbalances of a kind on an axis of the figure by position, including the balanced one."""
    places = {0.0 if axis == "share" else 1.0: BALANCED}
    for name in config.imbalances:
        each = config.imbalance(name)
        is_fixed = each.factor == FACTOR if axis == "share" else each.share == SHARE
        if each.share and is_fixed and each == kind(each.share, each.factor):
            places[getattr(each, axis)] = name
    return dict(sorted(places.items()))


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether balanced rotation is better than every imbalance, each at its best learning rate."""
    balanced = _best(result, BALANCED)
    return [
        at_least(f"accuracy of balanced rotation less that of {imbalance}", 0.0, balanced - _best(result, imbalance))
        for imbalance in result.config.imbalances
        if imbalance != BALANCED
    ]
