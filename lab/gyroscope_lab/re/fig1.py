"""Neurons that rotate at different speeds at first come to rotate at the same speed (RE Figure 1).

The experiment follows one neuron of each convolution of a ResNet-8. It trains with AdamW at a constant learning rate on
a part of CIFAR-10 of 8 × 8 pixels. Initial norms are the same in all layers, but equilibrium norms are not, so the
first angles differ. The paper's figure is a sketch without numbers, so the bounds are ours. The angle of a single
neuron is noisy, so each point is a mean over 2 % of the run (10 % in the figure).
"""

from dataclasses import dataclass
from typing import Any

from gyroscope.store import Run
from gyroscope_lab.framework.arms import train_and_read
from gyroscope_lab.framework.claims import Claim, agrees, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, INK, Figure, Panels
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.re._networks import RESNET
from gyroscope_lab.re._tracked import course, course_axis, hidden_layers, neuron_course, smoothed

COST = {"quick": "30 s", "paper": "5 h of a GPU"}
# Points of a course: the second to tenth percent of the run, after Adam's large first updates, and the last 40 %.
START = slice(1, 5)
SETTLED = slice(30, None)
# Points over which a curve is averaged.
SMOOTHING = 5
LAYERS = "conv|shortcut"


@dataclass(frozen=True)
class Config:
    """A training at a constant learning rate."""

    settings: dict[str, Any]
    seeds: int = 3


QUICK = Config(
    {
        **RESNET,
        "schedule": "constant",
        "steps": 3000,
        "optimizer": "adamw",
        "lr": 3e-3,
        "weight_decay": 1 / 3,
        "sample_every": 2,
        "neurons": LAYERS,
    }
)
PAPER = Config({**preset("re/resnet20-constant"), "sample_every": 10, "neurons": LAYERS})


def measure(trial: Trial[Config]) -> Measurements:
    """Return the rotation of a neuron of each convolution over time, (neurons, points), and its prediction."""
    settings = {**trial.config.settings, "seed": trial.seed, "evaluations": 1}
    return train_and_read(trial, settings, _neurons)


def _neurons(run: Run) -> Measurements:
    layers = hidden_layers(run)
    return {
        "angle": [neuron_course(run, layer, "angular_update") for layer in layers],
        "predicted": course(run, run.series(layers[0], "predicted_angular_update")),
    }


def plot(result: Result[Config]) -> Figure:
    """Draw the rotation of each neuron of the first seed over time."""
    panels = Panels()
    t, axis = course_axis(result.config.settings)
    for angle, colour in zip(smoothed(result["angle"][0], SMOOTHING), COLOURS * 4, strict=False):
        panels.line(0, t, angle, "a neuron of each convolution", colour, width=1.5)
    panels.predicted(0, t, result["predicted"][0], "predicted in equilibrium", INK)
    panels.figure.update_xaxes(title_text=axis)
    panels.figure.update_yaxes(title_text="angle per step, rad", rangemode="tozero")
    return panels.titled("Neurons of different layers come to rotate at one speed")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether speeds differ at first and agree in equilibrium."""
    angle = result["angle"]
    start, settled = (angle[:, :, part].mean(2) for part in (START, SETTLED))
    spreads = [each.std(1) / each.mean(1) for each in (start, settled)]
    ratio = settled.mean(1) / result["predicted"][:, SETTLED].mean(1)
    return [
        at_least("fastest over slowest neuron at 2 to 10 % of the run", 1.3, start.max(1) / start.min(1)),
        at_most("fastest over slowest neuron, last two fifths of the run", 1.25, settled.max(1) / settled.min(1)),
        at_most("spread over the neurons, last two fifths over that at 2 to 10 %", 0.5, spreads[1] / spreads[0]),
        agrees("rotation over prediction, mean of the neurons, last two fifths", 1.0, ratio, within=0.1),
    ]
