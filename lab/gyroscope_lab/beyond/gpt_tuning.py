"""On a GPT at equal tuning, rotational AdamW and Hyperball end as low as AdamW, need less of it, and no warmup (ours).

Every optimizer has the same four learning rates, each without warmup and with a warmup of a tenth of the run. All
optimizers with weight decay have the same one. Rotational AdamW keeps its initial norms, which are those of the
network's initialisation or of AdamW's equilibrium.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, of_arm
from gyroscope_lab.framework.arms import train_arm as measure
from gyroscope_lab.framework.choices import scores_at_best
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Result
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels

__all__ = ["measure"]

COST = {"quick": "4 min", "paper": "3 h"}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "AdamW": {"optimizer": "adamw"},
    "RotationalAdamW": {"optimizer": "rotational-adamw"},
    "RotationalAdamW from equilibrium": {
        "optimizer": "rotational-adamw",
        "start": "equilibrium+embeddings",
        "decay_embeddings": True,
    },
    "Hyperball": {"optimizer": "hyperball", "weight_decay": 0.0},
}


@dataclass(frozen=True)
class Config(Arms):
    """Arms are an optimizer, one of the learning rates `lrs` and one of the `warmups` in steps."""

    lrs: tuple[float, ...] = ()
    warmups: tuple[int, ...] = ()


def _name(optimizer: str, lr: float, warmup: int) -> str:
    return f"{optimizer}, lr {lr:g}, warmup {warmup}"


def tuned(base: dict[str, Any], lrs: tuple[float, ...], warmups: tuple[int, ...], seeds: int = 3) -> Config:
    """Return a config with every optimizer at every learning rate and warmup."""
    arms = {
        _name(optimizer, lr, warmup): {**settings, "lr": lr, "warmup": warmup}
        for optimizer, settings in OPTIMIZERS.items()
        for lr in lrs
        for warmup in warmups
    }
    return Config({"track": False, **base}, arms, seeds, lrs, warmups, choosing_seeds=2)


LRS = (1e-3, 3e-3, 1e-2, 3e-2)
# Weight decay 1 brings norms to equilibrium within a run of some hundred steps.
QUICK = tuned(
    {
        "task": "text:tinyshakespeare.txt",
        "model": "gpt:layers=2,width=32,context=32",
        "batch_size": 12,
        "steps": 150,
        "weight_decay": 1.0,
    },
    LRS,
    (0, 15),
    seeds=5,
)
PAPER = tuned(
    {
        "task": "text:tinyshakespeare.txt",
        "model": "gpt",
        "batch_size": 12,
        "steps": 2000,
        "weight_decay": 0.3,
    },
    LRS,
    (0, 200),
)


def losses(result: Result[Config], optimizer: str, warmup: int) -> Array:
    """Return the losses with one warmup, (seeds, learning rates)."""
    return np.stack([of_arm(result, "loss", _name(optimizer, lr, warmup)) for lr in result.config.lrs], 1)


def best_losses(result: Result[Config], optimizer: str) -> Array:
    """Return the loss of the best learning rate and warmup, one for each seed."""
    arms = [_name(optimizer, lr, warmup) for lr in result.config.lrs for warmup in result.config.warmups]
    return scores_at_best(result, "loss", arms)


def regret(result: Result[Config], optimizer: str, warmup: int) -> Array:
    """Return how far the loss is above the best one, as a mean over the learning rates."""
    of_rates = losses(result, optimizer, warmup)
    return np.asarray(of_rates.mean(1) - of_rates[:, of_rates.mean(0).argmin()])


def plot(result: Result[Config]) -> Figure:
    """Draw the loss over the learning rate, without warmup and with it."""
    config = result.config
    titles = [f"warmup of {warmup} steps" if warmup else "no warmup" for warmup in config.warmups]
    panels = Panels(*titles, shared_yaxes=True, horizontal_spacing=0.05)
    for panel, warmup in enumerate(config.warmups):
        for optimizer, colour in zip(OPTIMIZERS, COLOURS, strict=False):
            of_rates = losses(result, optimizer, warmup)
            panels.line(panel, config.lrs, of_rates.mean(0), optimizer, colour)
            for of_seed in of_rates:
                panels.dots(panel, config.lrs, of_seed, colour=colour, size=6)
    panels.figure.update_xaxes(title_text="lr", type="log", tickvals=config.lrs)
    panels.figure.update_yaxes(title_text="loss on data held out", col=1)
    return panels.titled("A GPT at four learning rates, without warmup and with it")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the best loss, the cost of a wrong learning rate without warmup, and the gain of warmup at the largest."""
    without, warmup = result.config.warmups[0], result.config.warmups[-1]
    best = best_losses(result, "AdamW")

    def gain(optimizer: str) -> Array:
        return np.asarray((losses(result, optimizer, without) - losses(result, optimizer, warmup))[:, -1])

    judged = []
    for name in list(OPTIMIZERS)[1:]:
        ratio = best_losses(result, name) / best
        sensitivity = regret(result, name, without) - regret(result, "AdamW", without)
        needs = gain(name) - gain("AdamW")
        judged += [
            at_most(f"{name}: best loss over AdamW's", 1.01, ratio),
            at_most(f"{name}: mean distance from the best lr, no warmup, minus AdamW's, nats", 0.0, sensitivity),
            at_most(f"{name}: what warmup gains at the largest lr, minus what it gains AdamW, nats", 0.0, needs),
        ]
    return judged
