"""Rotational variants tolerate other choices of β, centring and granularity (RE Figure 15).

Three choices are varied. β is the memory of the average of update sizes. Centring applies to the updates (the default),
to the weights after each step (as printed in the paper), or not at all. Vectors are neurons or whole layers.
Differences from the paper: ResNet-8 with rotational SGDM on a part of CIFAR-10 of 8 × 8 pixels replaces ResNet-18. The
GPT has two narrow layers, rotational AdamW and gains, and learns characters. Runs have hundreds of steps.
"""

from dataclasses import dataclass
from typing import Any

from gyroscope_lab.framework.arms import Arms, of_arm, train_arm
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.re._drawing import draw_scores
from gyroscope_lab.re._networks import GPT, RESNET

COST = {"quick": "2 min", "paper": "days of a GPU"}
NETWORKS = ("ResNet", "GPT")
DEFAULT = "default"
CHOICES = {
    DEFAULT: "",
    "β = 0": ":beta=0",
    "weights centred": ":centre=weights",
    "not centred": ":centre=false",
    "per layer": ":granularity=tensor",
}
MORE_CHOICES = {**CHOICES, "β = 0.9": ":beta=0.9", "β = 0.999": ":beta=0.999"}


@dataclass(frozen=True)
class Config(Arms):
    """Both networks with every choice."""

    choices: tuple[str, ...] = ()


def _arm(network: str, choice: str) -> str:
    return f"{network}, {choice}"


def _config(resnet: dict[str, Any], gpt: dict[str, Any], choices: dict[str, str]) -> Config:
    arms = {
        _arm(network, choice): {**settings, "optimizer": settings["optimizer"] + options}
        for network, settings in zip(NETWORKS, (resnet, gpt), strict=True)
        for choice, options in choices.items()
    }
    return Config({"track": False}, arms, choices=tuple(choices))


_SGD = {"optimizer": "rotational-sgd"}
_ADAMW = {"optimizer": "rotational-adamw", "gain": True}
QUICK = _config(
    {**RESNET, **_SGD, "lr": 0.1, "weight_decay": 5e-3, "steps": 300},
    {**GPT, **_ADAMW, "lr": 4e-3, "weight_decay": 1.25, "steps": 300},
    CHOICES,
)
PAPER = _config({**preset("re/resnet18-sgd"), **_SGD}, {**preset("re/gpt-sensitivity"), **_ADAMW}, MORE_CHOICES)


def measure(trial: Trial[Config]) -> Measurements:
    """Return the loss on data held out."""
    return {"loss": train_arm(trial)["loss"]}


def plot(result: Result[Config]) -> Figure:
    """Draw the loss of each choice: seeds as dots, the mean with its interval."""
    panels = Panels(*NETWORKS, horizontal_spacing=0.08)
    for panel, network in enumerate(NETWORKS):
        for choice, colour in zip(result.config.choices, COLOURS * 2, strict=False):
            draw_scores(panels, panel, choice, of_arm(result, "loss", _arm(network, choice)), colour)
    panels.figure.update_yaxes(title_text="loss on data held out", col=1)
    return panels.titled("Choices of the rotational variants")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether a choice raises the loss by more than 5 % of the default's."""
    judged = []
    for network in NETWORKS:
        default = of_arm(result, "loss", _arm(network, DEFAULT))
        for choice in result.config.choices[1:]:
            ratio = of_arm(result, "loss", _arm(network, choice)) / default
            judged.append(at_most(f"loss over the default's, {network}, {choice}", 1.05, ratio))
    return judged
