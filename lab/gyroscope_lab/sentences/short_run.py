"""Weight decay has almost no effect in a run shorter than 0.05 memories (ours).

A memory is 1/(lr·weight decay) steps at the peak learning rate. The length of a run is the sum of lr·weight decay over
its schedule, in memories. Each network is trained without weight decay, and with the weight decays that give each run
length. Ratios of losses are taken seed by seed. "Almost no effect" means that the loss on held-out data changes by less
than 1 %. This margin was fixed before the run, and the learning rates were chosen on other seeds. Longer runs are the
contrast. From one memory on, the loss should change by more than 1 %, in either direction.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, of_arm
from gyroscope_lab.framework.arms import train_arm as measure
from gyroscope_lab.framework.claims import Claim, agrees, at_least, confidence_interval
from gyroscope_lab.framework.experiment import Result
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.sentences._networks import NETWORKS
from gyroscope_lab.training import TrainConfig

__all__ = ["measure"]

COST = {"quick": "10 min", "paper": "2 h"}
# Largest relative change of the loss that counts as almost no effect.
MARGIN = 0.01
# Run lengths in memories. Weight decay should matter from LONG on.
LENGTHS = (0.02, 0.05, 0.1, 0.3, 1.0, 3.0)
LONG = 1.0
WARMUP_SHARE = 0.05


@dataclass(frozen=True)
class Config(Arms):
    """Arms of a network and a run length in memories. 0 is without weight decay."""

    networks: tuple[str, ...] = ()
    lengths: tuple[float, ...] = ()


def _name(network: str, length: float) -> str:
    return f"{network}, {length:g} memories"


def weight_decay_for(settings: dict[str, Any], length: float) -> float:
    """Return the weight decay with which a run is `length` memories long: length/Σ lr."""
    schedule = TrainConfig.from_dict(settings).multiplier(1)
    total = sum(float(schedule(step)) for step in range(schedule.steps))
    return length / (float(settings["lr"]) * total)


def compared(
    networks: dict[str, dict[str, Any]], times: int = 1, lengths: tuple[float, ...] = LENGTHS, seeds: int = 6
) -> Config:
    """Return every network at every run length, and without weight decay, with `times` its steps."""
    arms: dict[str, dict[str, Any]] = {}
    for network, settings in networks.items():
        steps = times * settings["steps"]
        timed = {**settings, "steps": steps, "warmup": round(WARMUP_SHARE * steps)}
        for length in (0.0, *lengths):
            arms[_name(network, length)] = {**timed, "weight_decay": weight_decay_for(timed, length)}
    base = {"track": False, "optimizer": "adamw"}
    return Config(base, arms, seeds, tuple(networks), lengths)


QUICK = compared(NETWORKS)
PAPER = compared(NETWORKS, times=10)


def changes(result: Result[Config], network: str, length: float) -> Array:
    """Return the relative change of the loss by weight decay, one number for each seed."""
    without = of_arm(result, "loss", _name(network, 0.0))
    return np.asarray(of_arm(result, "loss", _name(network, length)) / without - 1)


def plot(result: Result[Config]) -> Figure:
    """Draw the change of the loss over the run length."""
    panels = Panels()
    lengths = result.config.lengths
    for network, colour in zip(result.config.networks, COLOURS, strict=False):
        of_lengths = np.stack([changes(result, network, length) for length in lengths], 1)
        panels.line(0, lengths, 100 * of_lengths.mean(0), network, colour)
        for of_seed in of_lengths:
            panels.dots(0, lengths, 100 * of_seed, colour=colour, size=6)
    for edge in (-MARGIN, MARGIN):
        panels.level(0, 100 * edge)
    panels.figure.update_xaxes(title_text="run length in memories", type="log", tickvals=lengths)
    panels.figure.update_yaxes(title_text="change of the loss by weight decay, %")
    return panels.titled("Effect of weight decay in runs of different lengths (dashed: 1 %)")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether weight decay leaves the loss of short runs as it is, and changes that of long ones."""
    judged = []
    for network in result.config.networks:
        for length in result.config.lengths:
            change = changes(result, network, length)
            if length < LONG:
                sentence = f"{_name(network, length)}: loss with weight decay over that without"
                judged.append(agrees(sentence, 1.0, 1 + change, within=MARGIN))
            else:
                sentence = f"{_name(network, length)}: weight decay changes the loss, as a share"
                direction = np.sign(confidence_interval(change).mean)
                judged.append(at_least(sentence, MARGIN, direction * change))
    return judged
