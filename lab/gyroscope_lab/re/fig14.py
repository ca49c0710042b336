"""AdamW rotates a transformer faster than equilibrium at first, its rotational variant does not (RE Figure 14).

Differences from the paper: a vision transformer of two narrow layers on a part of CIFAR-10 replaces DeiT-tiny on
ImageNet. The paper shows the first 40 of 300 epochs, in which its learning rate hardly falls. Here the learning rate is
constant after a short warmup. The ratio of equilibrium norm to initial norm is 2 in quick runs and 3.3 in medium runs
(the paper's is about 3.5). Medium runs have 2,000 steps, five times 1/(lr·wd). The variant's first step centres its
weights and rotates them once by about 1/√fan-in, which is outside the figure.
"""

from dataclasses import dataclass

import numpy as np

from gyroscope.store import Run
from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, of_arm, train_arm
from gyroscope_lab.framework.claims import Claim, agrees, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, INK, Figure, Panels
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.re._networks import VIT
from gyroscope_lab.re._tracked import course, course_axis, hidden_layers

COST = {"quick": "2 min", "medium": "6 min", "paper": "16 h of a GPU"}
ARMS = {"AdamW": {"optimizer": "adamw"}, "rotational AdamW": {"optimizer": "rotational-adamw"}}
# Points of a course: the end of what is shown.
LATE = slice(40, None)


@dataclass(frozen=True)
class Config(Arms):
    """AdamW and its variant at the same settings."""

    early: tuple[int, int] = (5, 8)
    """Points of a course just after the warmup."""


# So many steps that the variant's mean of updates, over some 100 steps, has forgotten the first of them: with a mean
# over 10 steps, the angle after 100 was 0.9 of the predicted one instead of 0.6 (one seed).
QUICK = Config(
    {**VIT, "steps": 600, "schedule": "constant", "warmup": 15, "lr": 6e-3, "weight_decay": 1.67},
    ARMS,
    seeds=5,
    early=(2, 4),
)
MEDIUM = Config(
    {**VIT, "augment": True, "steps": 2000, "schedule": "constant", "warmup": 100, "lr": 5e-3, "weight_decay": 0.5},
    ARMS,
    seeds=10,
    early=(3, 6),
)
# DeiT-tiny on CIFAR-10, up to the epoch at which the paper's figure ends.
PAPER = Config({**preset("re/deit-tiny"), "epochs": 40, "schedule": "constant"}, ARMS)


def measure(trial: Trial[Config]) -> Measurements:
    """Return courses of rotation, of its prediction in equilibrium and of its forecast, means over hidden layers."""
    return train_arm(trial, _courses)


def _courses(run: Run) -> Measurements:
    def mean(quantity: str, stat: str = "mean") -> Array:
        courses = [course(run, run.series(layer, quantity, stat)) for layer in hidden_layers(run)]
        return np.asarray(np.mean(courses, axis=0))

    return {
        "angle": mean("angular_update", "rms"),
        "predicted": mean("predicted_angular_update"),
        "forecast": mean("forecast_angular_update"),
    }


def plot(result: Result[Config]) -> Figure:
    """Draw rotation over time, mean of seeds and hidden layers."""
    config = result.config
    panels = Panels()
    t, axis = course_axis(config.base)
    for arm, colour in zip(config.parts, COLOURS, strict=False):
        panels.line(0, t, of_arm(result, "angle", arm).mean(0), arm, colour, width=2)
    panels.predicted(0, t, of_arm(result, "forecast", "AdamW").mean(0), "forecast for AdamW", COLOURS[0])
    panels.predicted(0, t, of_arm(result, "predicted", "AdamW").mean(0), "predicted in equilibrium", INK)
    panels.figure.update_xaxes(title_text=axis)
    highest = 1.2 * float(of_arm(result, "angle", "AdamW").mean(0).max())
    panels.figure.update_yaxes(title_text="angle per step, rad", range=[0, highest])
    return panels.titled("Rotation of a vision transformer before equilibrium")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether AdamW is faster at first and equal later, and whether variant and forecast keep their angles."""
    adamw = of_arm(result, "angle", "AdamW")
    rotational = of_arm(result, "angle", "rotational AdamW")
    forecast = of_arm(result, "forecast", "AdamW")
    predicted = of_arm(result, "predicted", "rotational AdamW")
    early = slice(*result.config.early)
    return [
        at_least("AdamW over its variant early (paper: about 2)", 1.5, _ratio(adamw, rotational, early)),
        agrees("AdamW over its variant late (ours)", 1.0, _ratio(adamw, rotational, LATE), within=0.1),
        agrees("AdamW over its forecast early (ours)", 1.0, _ratio(adamw, forecast, early), within=0.1),
        at_most("variant over its predicted angle early", 1.05, _ratio(rotational, predicted, early)),
        agrees("variant over its predicted angle late (ours)", 1.0, _ratio(rotational, predicted, LATE), within=0.05),
    ]


def _ratio(of: Array, over: Array, part: slice) -> Array:
    return np.asarray(of[:, part].mean(1) / over[:, part].mean(1))
