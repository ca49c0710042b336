"""At equal tuning the sphere family ends as low as AdamW, also at learning rates converted from AdamW's (ours).

AdamW, Muon, AdamH, MuonH and rotational AdamW without and with gains train GPTs and a CNN. Every optimizer has as
many learning rates as AdamW, each without warmup and with one of a tenth of the run. Those of AdamH and MuonH are
AdamW's, converted by the law of Hyperball to the same memory at the peak of the schedule. "Tuned" is the best of them,
chosen for each seed on the other seeds. "Converted" is the one at which AdamW itself is best on the other seeds.
torch's Muon takes no convolutions, so that the CNN has neither Muon nor MuonH.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gyroscope.theory import AdamW, Hyperball, match
from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, of_arm
from gyroscope_lab.framework.arms import train_arm as measure
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Result
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels

__all__ = ["measure"]

COST = {"quick": "10 min", "paper": "5 h"}
MUONS = ("Muon", "MuonH")
# Muon's correlation time at momentum 0.95 (docs/theory.md, "Hyperball").
MUON = {"momentum": 0.95, "correlation_time": 23.3}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "AdamW": {"optimizer": "adamw"},
    "Muon": {"optimizer": "muon"},
    "AdamH": {"optimizer": "adamh"},
    "MuonH": {"optimizer": "muonh"},
    "RotationalAdamW": {"optimizer": "rotational-adamw"},
    "RotationalAdamW with gains": {"optimizer": "rotational-adamw", "gain": True},
}


@dataclass(frozen=True)
class Config(Arms):
    """Arms are a network, an optimizer, one of AdamW's learning rates `lrs`, and a warmup as a share of the run."""

    networks: tuple[str, ...] = ()
    lrs: tuple[float, ...] = ()
    warmups: tuple[float, ...] = (0.0, 0.1)

    def optimizers(self, network: str) -> list[str]:
        """The optimizers that train a network."""
        return [name for name in OPTIMIZERS if _name(network, name, self.lrs[0], self.warmups[0]) in self.arms]


def _name(network: str, optimizer: str, lr: float, warmup: float) -> str:
    return f"{network}, {optimizer}, AdamW's lr {lr:g}, warmup {warmup:g}"


def converted(optimizer: str, lr: float, weight_decay: float) -> dict[str, Any]:
    """Return the settings with which hidden weights remember as long as under AdamW at these."""
    settings = dict(OPTIMIZERS[optimizer])
    if not optimizer.endswith("H"):
        # Muon's lr is adjusted to AdamW's updates, and rotational AdamW has AdamW's angle.
        return {**settings, "lr": lr}
    momentum: dict[str, Any] = MUON if optimizer == "MuonH" else {"betas": (0.9, 0.999)}
    matched = match(AdamW(lr, weight_decay), Hyperball, **momentum).rule.lr
    return {"optimizer": f"{settings['optimizer']}:plain_lr={lr}", "lr": matched}


def family(networks: dict[str, dict[str, Any]], lrs: tuple[float, ...], seeds: int = 3) -> Config:
    """Every optimizer at every learning rate and warmup, on every network with its own settings."""
    config = Config({"track": False}, {}, seeds, tuple(networks), lrs)
    arms = {
        _name(network, optimizer, lr, warmup): {
            **settings,
            **converted(optimizer, lr, settings["weight_decay"]),
            "warmup": round(warmup * settings["steps"]),
        }
        for network, settings in networks.items()
        for optimizer in OPTIMIZERS
        if not (network == "CNN" and optimizer in MUONS)
        for lr in lrs
        for warmup in config.warmups
    }
    return Config(config.base, arms, seeds, config.networks, lrs)


TEXT = {"task": "text:tinyshakespeare.txt", "batch_size": 16, "weight_decay": 0.3}
PICTURES = {"task": "cifar10", "shrink": 4, "batch_size": 32, "weight_decay": 0.3}
# At the middle one AdamW was best in `transfer/tuning`, on networks like the small ones.
LRS = (3e-3, 1e-2, 3e-2)
QUICK = family(
    {
        "GPT of width 32": {**TEXT, "model": "gpt:layers=2,width=32,context=32", "steps": 600},
        "CNN": {**PICTURES, "model": "cnn:width=16", "steps": 600},
    },
    LRS,
)
PAPER = family(
    {
        "GPT of width 128": {**TEXT, "model": "gpt:layers=4,width=128", "steps": 2000, "weight_decay": 0.3},
        "GPT of width 384": {**TEXT, "model": "gpt", "steps": 2000, "weight_decay": 0.3},
        "CNN": {"task": "cifar10", "model": "cnn", "batch_size": 128, "weight_decay": 0.3, "steps": 4000},
    },
    (1e-3, 3e-3, 1e-2),
)


def losses(result: Result[Config], network: str, optimizer: str) -> Array:
    """(seeds, warmups, learning rates)."""
    config = result.config
    of_warmups = [
        [of_arm(result, "loss", _name(network, optimizer, lr, warmup)) for lr in config.lrs]
        for warmup in config.warmups
    ]
    return np.moveaxis(np.array(of_warmups), -1, 0)


def chosen(judged: Array, by: Array) -> Array:
    """Return the loss of each seed at the setting with the lowest mean loss `by` over the other seeds."""
    flat = judged.reshape(len(judged), -1)
    choosing = by.reshape(len(by), -1)
    seeds = np.arange(len(flat))
    return np.array([flat[seed, choosing[seeds != seed].mean(0).argmin()] for seed in seeds])


def plot(result: Result[Config]) -> Figure:
    """The loss over AdamW's learning rate, without warmup."""
    config = result.config
    panels = Panels(*config.networks, horizontal_spacing=0.06)
    for panel, network in enumerate(config.networks):
        for optimizer, colour in zip(OPTIMIZERS, COLOURS, strict=False):
            if optimizer not in config.optimizers(network):
                continue
            of_rates = losses(result, network, optimizer)[:, 0]
            panels.line(panel, config.lrs, of_rates.mean(0), optimizer, colour)
            for of_seed in of_rates:
                panels.dots(panel, config.lrs, of_seed, colour=colour, size=5)
    panels.figure.update_xaxes(title_text="AdamW's lr", type="log", tickvals=config.lrs)
    panels.figure.update_yaxes(title_text="loss on data held out", col=1)
    return panels.titled("The sphere family at AdamW's learning rates, converted, without warmup")


def claims(result: Result[Config]) -> list[Claim]:
    """Tuned and converted losses over AdamW's tuned one, and means over the learning rates without warmup."""
    judged = []
    for network in result.config.networks:
        adamw = losses(result, network, "AdamW")
        best = chosen(adamw, adamw)
        for optimizer in result.config.optimizers(network)[1:]:
            own = losses(result, network, optimizer)
            over_grid = own[:, 0].mean(1) - adamw[:, 0].mean(1)
            warmup_gain = (own[:, 0] - own[:, 1]).mean(1) - (adamw[:, 0] - adamw[:, 1]).mean(1)
            name = f"{network}, {optimizer}"
            judged += [
                at_most(f"{name}: tuned loss over AdamW's", 1.0, chosen(own, own) / best),
                at_most(f"{name}: converted loss over AdamW's", 1.0, chosen(own, adamw) / best),
                at_most(f"{name}: mean over the lrs, no warmup, minus AdamW's, nats", 0.0, over_grid),
                at_most(f"{name}: what warmup gains, minus what it gains AdamW, nats", 0.0, warmup_gain),
            ]
    return judged
