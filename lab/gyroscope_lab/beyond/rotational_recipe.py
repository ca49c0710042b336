"""Rotational AdamW wants a learnable gain, and a start at equilibrium if the initial scale is small (ours).

A rotational optimizer keeps the initial norms. A gain per neuron lets the network choose its scale anyway. A
transformer is trained from two initial scales of its matrices: 1/√fan_in, and 0.02 as in GPT-2 and DeiT, which is a
fifth to a seventh of that. It is trained with AdamW, with rotational AdamW and a gain, and with both a gain and a start
at equilibrium, at three learning rates. The weight decay is 0.1 or 1, whichever was better for AdamW on seed 1000.
Seeds 100 to 102 are judged. Differences are of the loss on data held out, in nats, seed by seed. The best learning rate
of a seed is the one that is best on the other seeds.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, of_arm, train_and_read
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels

CLAIMS = {
    "recipe_gpt": "Rotational AdamW on a GPT wants a gain, and an equilibrium start from small weights (ours)",
    "recipe_vit": "Rotational AdamW on a ViT wants a gain, and an equilibrium start from small weights (ours)",
}
COST = {"recipe_gpt": {"quick": "4 min", "paper": "4 h"}, "recipe_vit": {"quick": "3 min", "paper": "4 h"}}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "AdamW": {"optimizer": "adamw"},
    "gain": {"optimizer": "rotational-adamw", "gain": True},
    "gain and start": {"optimizer": "rotational-adamw", "gain": True, "start": "equilibrium"},
}
INITIAL_SCALES = {"1/√fan_in": ",fan_in_init=true", "0.02": ""}
GPT: dict[str, Any] = {
    "task": "stdlib",
    "model": "gpt:layers=2,width=96,context=32",
    "batch_size": 12,
    "decay_embeddings": True,
    "clip": 1.0,
    "steps": 300,
}
VIT: dict[str, Any] = {
    "task": "cifar10",
    "shrink": 4,
    "model": "vit:patch=2,width=48,layers=3,heads=3",
    "batch_size": 64,
    "steps": 300,
}
LRS = (1e-3, 3e-3, 1e-2)


@dataclass(frozen=True)
class Config(Arms):
    """Arms are an initial scale, an optimizer and a learning rate."""

    lrs: tuple[float, ...] = ()
    first_seed: int = 100


def _name(scale: str, optimizer: str, lr: float) -> str:
    return f"{scale}, {optimizer}, lr {lr:g}"


def compared(settings: dict[str, Any], lrs: tuple[float, ...] = LRS, seeds: int = 3) -> Config:
    """Return a network at every initial scale with every optimizer at every learning rate."""
    arms: dict[str, dict[str, Any]] = {}
    for scale, option in INITIAL_SCALES.items():
        for optimizer, changes in OPTIMIZERS.items():
            arm = {**settings, **changes, "model": settings["model"] + option}
            if "start" in changes and settings.get("decay_embeddings"):
                arm["start"] = "equilibrium+embeddings"
            arms |= {_name(scale, optimizer, lr): {**arm, "lr": lr} for lr in lrs}
    return Config({"track": False, "evaluations": 1}, arms, seeds, lrs)


QUICK = {
    "recipe_gpt": compared({**GPT, "weight_decay": 1.0}),
    "recipe_vit": compared({**VIT, "weight_decay": 1.0}),
}
PAPER = {
    "recipe_gpt": compared({**GPT, "model": "gpt:layers=4", "steps": 2000, "weight_decay": 0.1}),
    "recipe_vit": compared({**VIT, "model": "vit:layers=6", "shrink": 1, "steps": 4000, "weight_decay": 0.1}),
}


def measure(trial: Trial[Config]) -> Measurements:
    """Train one arm: the loss on data held out."""
    config = trial.config
    settings = {**config.base, **config.arms[trial.part], "seed": config.first_seed + trial.seed}
    return {"loss": train_and_read(trial, settings, lambda run: {})["loss"]}


def losses(result: Result[Config], scale: str, optimizer: str) -> Array:
    """Return the losses, (seeds, learning rates)."""
    arms = [_name(scale, optimizer, lr) for lr in result.config.lrs]
    return np.stack([of_arm(result, "loss", arm) for arm in arms], 1)


def at_best_rate(of_rates: Array) -> Array:
    """Return the loss of each seed at the learning rate that is best on the other seeds.

    >>> at_best_rate(np.array([[1.0, 2.0], [2.0, 3.0], [3.0, 2.5]])).tolist()
    [1.0, 2.0, 3.0]
    """
    others = of_rates.sum(0) - of_rates
    return np.asarray(np.take_along_axis(of_rates, others.argmin(1)[:, None], 1)[:, 0])


def plot(result: Result[Config]) -> Figure:
    """Draw the loss over the learning rate, for each initial scale."""
    lrs = result.config.lrs
    titles = [f"initial scale {scale}" for scale in INITIAL_SCALES]
    panels = Panels(*titles, shared_yaxes=True, horizontal_spacing=0.05)
    for panel, scale in enumerate(INITIAL_SCALES):
        for optimizer, colour in zip(OPTIMIZERS, COLOURS, strict=False):
            of_rates = losses(result, scale, optimizer)
            panels.line(panel, lrs, of_rates.mean(0), optimizer, colour)
            for of_seed in of_rates:
                panels.dots(panel, lrs, of_seed, colour=colour, size=6)
    panels.figure.update_xaxes(title_text="lr", type="log", tickvals=lrs)
    panels.figure.update_yaxes(title_text="loss on data held out", col=1)
    return panels.titled("AdamW and rotational AdamW from two initial scales")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge each recipe against AdamW, and the start at equilibrium where it is recommended and where it is not."""
    judged = []
    for scale in INITIAL_SCALES:
        adamw, gain, start = (losses(result, scale, optimizer) for optimizer in OPTIMIZERS)
        small = scale == "0.02"
        better, worse = (start, gain) if small else (gain, start)
        pairs = {
            "gain less AdamW": (gain, adamw),
            "gain and start less AdamW": (start, adamw),
            "with the start less without" if small else "without the start less with it": (better, worse),
        }
        for words, (first, second) in pairs.items():
            mean = first.mean(1) - second.mean(1)
            best = at_best_rate(first) - at_best_rate(second)
            judged.append(at_most(f"from {scale}: {words}, mean over the learning rates", 0.0, mean))
            judged.append(at_most(f"from {scale}: {words}, each at its best learning rate", 0.0, best))
    return judged
