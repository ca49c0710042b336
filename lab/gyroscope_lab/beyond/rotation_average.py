"""Rotational AdamW keeps its angle with a shorter average of update lengths, and ends no higher (ours).

Each step is divided by an average of squared update lengths, and β sets the memory of that average. Adam's first
updates are longer than later ones, and gradients shrink while a network learns. A long average remembers longer
updates, so that vectors rotate by less than the angle of equilibrium. RE's β = 0.99 is compared with β = 0.9 and with
`update_average="noise"`, which also divides by the length that noise would give. Three networks with gains are trained
at three learning rates. All settings were fixed before the run, and seeds 200 to 202 are judged. Differences are of the
loss on data held out, seed by seed. Rotation is that of the median layer over its target, in the middle third of a run.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from gyroscope.store import Run
from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, of_arm, train_and_read
from gyroscope_lab.framework.claims import Claim, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels

COST = {"quick": "5 min", "paper": "2 h"}
# Options of the optimizer by the name of the average. The first is RE's.
AVERAGES = {"β 0.99": "beta=0.99", "β 0.9": "beta=0.9", "noise": "update_average=noise"}
DEFAULT, *OTHERS = AVERAGES
# Share of its target by which a layer should rotate at least.
KEPT = 0.9
LRS = (3e-3, 1e-2, 3e-2)
NETWORKS: dict[str, dict[str, Any]] = {
    "CNN with GroupNorm": {"task": "cifar10", "shrink": 4, "model": "cnn:width=24", "norm": "group"},
    "MLP": {"task": "cifar10", "shrink": 2, "model": "mlp:width=128", "norm": "none"},
    "GPT": {
        "task": "stdlib",
        "model": "gpt:layers=2,width=64,context=32",
        "batch_size": 12,
        "decay_embeddings": True,
        "clip": 1.0,
    },
}


@dataclass(frozen=True)
class Config(Arms):
    """Arms are a network, a learning rate and an average."""

    networks: tuple[str, ...] = ()
    lrs: tuple[float, ...] = ()
    first_seed: int = 200


def _name(network: str, lr: float, average: str) -> str:
    return f"{network}, lr {lr:g}, {average}"


def compared(networks: dict[str, dict[str, Any]], steps: int, lrs: tuple[float, ...] = LRS, seeds: int = 3) -> Config:
    """Return every network at every learning rate with every average."""
    arms = {
        _name(network, lr, average): {**settings, "lr": lr, "optimizer": f"rotational-adamw:{option}"}
        for network, settings in networks.items()
        for lr in lrs
        for average, option in AVERAGES.items()
    }
    base = {"gain": True, "weight_decay": 0.5, "steps": steps, "evaluations": 1}
    return Config(base, arms, seeds, tuple(networks), lrs)


QUICK = compared(NETWORKS, steps=300)
PAPER = compared(NETWORKS, steps=6000)


def measure(trial: Trial[Config]) -> Measurements:
    """Train one arm: the loss on data held out, and rotation over its target."""
    config = trial.config
    settings = {**config.base, **config.arms[trial.part], "seed": config.first_seed + trial.seed}
    measured = train_and_read(trial, settings, lambda run: {"rotation": rotation_ratio(run)})
    return {name: measured[name] for name in ("loss", "rotation")}


def rotation_ratio(run: Run) -> float:
    """Return RMS rotation over its target in the middle third of a run, of the median layer."""
    middle = (run.steps >= run.steps[-1] / 3) & (run.steps <= 2 * run.steps[-1] / 3)
    ratios = []
    for layer in run.layers:
        ratio = (
            run.series(layer, "angular_update", "rms")[middle] / run.series(layer, "predicted_angular_update")[middle]
        )
        ratios.append(np.sqrt(np.nanmean(ratio**2)))
    return float(np.nanmedian(ratios))


def differences(result: Result[Config], network: str, lr: float, average: str) -> Array:
    """Return the loss with an average less that with the default one, one for each seed."""
    other, default = (of_arm(result, "loss", _name(network, lr, each)) for each in (average, DEFAULT))
    return np.asarray(other - default)


def plot(result: Result[Config]) -> Figure:
    """Draw the difference of the loss, and rotation over its target, over the learning rate."""
    panels = Panels(f"loss less that with {DEFAULT}", "rotation over its target")
    lrs = result.config.lrs
    for network, colour in zip(result.config.networks, COLOURS, strict=False):
        for average, dash in zip(AVERAGES, ("dot", "dash", "solid"), strict=True):
            change = [differences(result, network, lr, average).mean() for lr in lrs]
            kept = [of_arm(result, "rotation", _name(network, lr, average)).mean() for lr in lrs]
            panels.line(0, lrs, change, f"{network}, {average}", colour, dash=dash)
            panels.line(1, lrs, kept, "", colour, dash=dash)
    panels.level(0, 0.0)
    panels.level(1, 1.0)
    panels.figure.update_xaxes(title_text="lr", type="log", tickvals=lrs)
    return panels.titled("How long rotational AdamW remembers update lengths").update_layout(height=640)


def claims(result: Result[Config]) -> list[Claim]:
    """Judge for each network, learning rate and other average the loss and the rotation."""
    judged = []
    for network, lr, average in product(result.config.networks, result.config.lrs, OTHERS):
        where = f"{network}, lr {lr:g}, {average}"
        judged.append(
            at_most(f"{where}: loss less that with {DEFAULT}", 0.0, differences(result, network, lr, average))
        )
        rotation = of_arm(result, "rotation", _name(network, lr, average))
        judged.append(at_least(f"{where}: rotation over its target", KEPT, rotation))
    return judged
