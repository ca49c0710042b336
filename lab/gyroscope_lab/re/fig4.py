"""Adam with L2 rotates layers unequally and loses to AdamW, and balanced rotation closes the gap (RE Figure 4).

Learning rate and weight decay are swept for both optimizers. The special variant and rotational AdamW have settings
near AdamW's best. The special variant has the direction of Adam with L2, the angle of AdamW, and β = 0.9 as in Table 4
for a ResNet. Two seeds that are not judged choose the settings. Differences from the paper: ResNet-8 on a part of
CIFAR-10 of 8 × 8 pixels in 600 steps replaces ResNet-18 in 200 epochs. Each optimizer has two or three settings instead
of about forty.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gyroscope.store import Run
from gyroscope_lab.framework.arms import Arms, of_arm, train_arm
from gyroscope_lab.framework.choices import choose, of_chosen
from gyroscope_lab.framework.claims import Claim, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, DECADES, INK, Figure, Panels
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.re._networks import RESNET
from gyroscope_lab.re._tracked import course, course_axis, hidden_layers, mean_during, spread_over_layers

COST = {"quick": "12 min", "medium": "30 min", "paper": "a week of a GPU"}
SPECIAL = "special variant"
ROTATIONAL = "rotational AdamW"


@dataclass(frozen=True)
class Config(Arms):
    """Both optimizers at every pair of settings, and the two variants at one of AdamW's."""

    def of(self, name: str) -> list[str]:
        """Return the arms of an optimizer."""
        return [arm for arm in self.parts if arm.startswith(f"{name},")]

    @property
    def candidates(self) -> list[str]:
        """The arms to choose from."""
        return [*self.of("Adam+L2"), *self.of("AdamW")]


def _config(
    base: dict[str, Any], adam: tuple[tuple[float, float], ...], adamw: tuple[tuple[float, float], ...], **seeds: int
) -> Config:
    arms = {
        f"{name}, lr {lr:g}, {decay} {weight_decay:g}": {"optimizer": optimizer, "lr": lr, "weight_decay": weight_decay}
        for name, optimizer, decay, pairs in (("Adam+L2", "adam", "L2", adam), ("AdamW", "adamw", "wd", adamw))
        for lr, weight_decay in pairs
    }
    lr, weight_decay = adamw[0]
    for name, optimizer in ((ROTATIONAL, "rotational-adamw"), (SPECIAL, "rotational-adam-l2:beta=0.9")):
        arms[name] = {"optimizer": optimizer, "lr": lr, "weight_decay": weight_decay}
    return Config(base, arms, **seeds)


# The first pair of AdamW is that of the variants.
QUICK = _config(
    {**RESNET, "steps": 600},
    adam=((1e-2, 1e-3), (3e-3, 1e-2)),
    adamw=((1e-2, 0.3), (1e-2, 1.0), (3e-3, 1.0)),
    choosing_seeds=2,
)
MEDIUM = replace(QUICK, seeds=10)
PAPER = _config(
    preset("re/resnet18-adamw"),
    adam=tuple((lr, wd) for lr in (3.906e-4, 7.813e-4, 1.563e-3) for wd in (6.25e-5, 1.25e-4, 2.5e-4)),
    adamw=tuple((lr, wd) for lr in (1.25e-2, 6.25e-3, 2.5e-2) for wd in (8e-2, 4e-2, 0.16)),
    choosing_seeds=1,
)


def measure(trial: Trial[Config]) -> Measurements:
    """Return scores, rotation over time, (layers, points), and its spread over hidden layers in mid-run."""
    return train_arm(trial, _rotation)


def _rotation(run: Run) -> Measurements:
    series = {layer: run.series(layer, "angular_update") for layer in run.layers}
    hidden = np.array([mean_during(run, series[layer]) for layer in hidden_layers(run)])
    return {
        "angle": [course(run, values) for values in series.values()],
        "spread": spread_over_layers(hidden),
        "ratio": hidden.max() / hidden.min(),
    }


def plot(result: Result[Config]) -> Figure:
    """Draw the accuracy of every arm, and the rotation of layers at the best settings of both. The last is dotted."""
    config = result.config
    best = {name: choose(result, "accuracy", config.of(name)) for name in ("Adam+L2", "AdamW")}
    panels = Panels("accuracy on images held out", "angle per step of each layer, rad", horizontal_spacing=0.08)
    for i, arm in enumerate(config.parts):
        colour = COLOURS[0] if arm.startswith("AdamW") else COLOURS[1] if arm.startswith("Adam+") else COLOURS[2]
        accuracies = of_arm(result, "accuracy", arm)
        panels.dots(0, accuracies, np.full(len(accuracies), i), colour=colour, size=6)
        panels.dots(0, [accuracies.mean()], [i], colour=INK, size=8, symbol="line-ns-open")
    t, axis = course_axis(config.base)
    for (name, chosen), colour in zip(best.items(), (COLOURS[1], COLOURS[0]), strict=True):
        *hidden, last = of_chosen(result, "angle", chosen).mean(0)
        for values in hidden:
            panels.line(1, t, values, f"{name} at its best", colour, width=1.2)
        panels.line(1, t, last, f"last layer, {name}", colour, width=1.5, dash="dot")
    panels.figure.update_yaxes(tickvals=np.arange(len(config.parts)), ticktext=config.parts, row=1, col=1)
    panels.figure.update_xaxes(title_text=axis, row=1, col=2)
    panels.figure.update_yaxes(DECADES, row=1, col=2)
    figure = panels.titled("Adam with L2, AdamW, and variants with balanced rotation")
    return figure.update_layout(margin={"l": 210})


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether AdamW alone is balanced, and whether AdamW and the special variant are better than Adam+L2."""
    config = result.config
    adam, adamw = (choose(result, "accuracy", config.of(name)) for name in ("Adam+L2", "AdamW"))
    gain = of_chosen(result, "accuracy", adamw) - of_chosen(result, "accuracy", adam)
    special = of_arm(result, "accuracy", SPECIAL)
    rotational = of_arm(result, "accuracy", ROTATIONAL)
    spreads = [of_chosen(result, "spread", chosen) for chosen in (adam, adamw)]
    sentence = "spread of rotation over the layers in mid-run"
    return [
        at_most(f"{sentence}, AdamW at its best", 0.1, spreads[1]),
        at_least(f"{sentence}, Adam+L2 at its best over AdamW", 2.0, spreads[0] / spreads[1]),
        at_least("fastest over slowest layer, Adam+L2 at its best", 1.5, of_chosen(result, "ratio", adam)),
        at_least("accuracy of AdamW less Adam+L2's (paper: 0.0066)", 0.0, gain),
        at_least(
            "accuracy of the special variant less Adam+L2's (0.0047)",
            0.0,
            special - of_chosen(result, "accuracy", adam),
        ),
        at_least("accuracy of the special variant less rotational AdamW's", -0.01, special - rotational),
        at_most(f"{sentence}, special variant", 0.1, of_arm(result, "spread", SPECIAL)),
    ]
