"""A larger batch lowers the loss at equal steps if the batch is below the noise scale that the tracker measures (ours).

The noise scale is B/κ² examples, with the signal over noise κ² of a batch of B examples (McCandlish et al. 2018). It
should not depend on B. The tracker takes κ² from Adam's moments. Here it is the median over layers, averaged over the
middle half of a run. Each network is trained with batches that grow by a factor of four, for the same number of steps
at the same learning rate. Margins were fixed before the run. A batch helps if it lowers the loss on held-out data by
1 %. The noise scale is a property of the task if it changes by less than a factor of two when the batch grows by four.
A κ² below 0.001 has no noise scale. The run showed that such values are common, so this is judged too.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gyroscope.store import Run
from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, of_arm, train_and_read
from gyroscope_lab.framework.claims import Claim, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.sentences._networks import NETWORKS

COST = {"quick": "3 min", "paper": "2 h"}
# Smallest relative change of the loss with which a larger batch counts as helpful.
MARGIN = 0.01
# Powers of two by which the noise scale may differ from one batch to the next.
OCTAVES = 1.0
FACTOR = 4
# Smallest κ² that gives a noise scale, as in the findings of a checkpoint.
LEAST_SIGNAL = 1e-3
BATCHES = {"GPT": (4, 16, 64), "ResNet-8": (8, 32, 128), "MLP": (8, 32, 128, 512)}


@dataclass(frozen=True)
class Config(Arms):
    """Arms of a network and a batch. `batches` lists the batches of each network."""

    batches: dict[str, tuple[int, ...]] | None = None


def _name(network: str, batch: int) -> str:
    return f"{network}, batch {batch}"


def compared(networks: dict[str, dict[str, Any]], batches: dict[str, tuple[int, ...]], seeds: int = 3) -> Config:
    """Return every network with each of its batches."""
    arms = {
        _name(network, batch): {**settings, "batch_size": batch}
        for network, settings in networks.items()
        for batch in batches[network]
    }
    return Config({"optimizer": "adamw", "weight_decay": 0.1, "evaluations": 1}, arms, seeds, batches)


def _lasting(steps: int) -> dict[str, dict[str, Any]]:
    return {name: {**settings, "steps": steps, "warmup": steps // 20} for name, settings in NETWORKS.items()}


QUICK = compared(_lasting(300), BATCHES)
PAPER = compared(_lasting(3000), BATCHES)


def measure(trial: Trial[Config]) -> Measurements:
    """Train one arm, and return the loss on held-out data and κ² of its batches."""
    settings = {**trial.config.base, **trial.config.arms[trial.part], "seed": trial.seed}
    measured = train_and_read(trial, settings, lambda run: {"signal_ratio": mean_signal_ratio(run)})
    return {name: measured[name] for name in ("loss", "signal_ratio")}


def mean_signal_ratio(run: Run) -> float:
    """Return κ² of the median layer, averaged over the middle half of the run."""
    middle = (run.steps >= 0.25 * run.steps[-1]) & (run.steps <= 0.75 * run.steps[-1])
    of_layers = np.stack([run.series(layer, "signal_ratio")[middle] for layer in run.layers])
    return float(np.mean(np.nanmedian(of_layers, axis=0)))


def noise_scale(result: Result[Config], network: str, batch: int) -> Array:
    """Return the noise scale in examples for each seed, or NaN if κ² is too small."""
    ratio = of_arm(result, "signal_ratio", _name(network, batch))
    return np.asarray(batch / np.where(ratio > LEAST_SIGNAL, ratio, np.nan))


def plot(result: Result[Config]) -> Figure:
    """Draw the loss and the noise scale over the batch."""
    panels = Panels("loss at equal steps", "noise scale, examples")
    batches = result.config.batches or {}
    for (network, sizes), colour in zip(batches.items(), COLOURS, strict=False):
        of_sizes = np.stack([of_arm(result, "loss", _name(network, batch)) for batch in sizes], 1)
        scales = np.stack([noise_scale(result, network, batch) for batch in sizes], 1)
        for panel, values in enumerate((of_sizes, scales)):
            panels.line(panel, sizes, values.mean(0), network, colour)  # a gap if a seed has no value
            for of_seed in values:
                panels.dots(panel, sizes, of_seed, colour=colour, size=6)
    all_sizes = sorted({batch for sizes in batches.values() for batch in sizes})
    panels.predicted(1, all_sizes, all_sizes, "the batch itself")
    panels.figure.update_xaxes(title_text="batch", type="log", tickvals=all_sizes)
    panels.figure.update_yaxes(type="log", row=1, col=2)
    return panels.titled("Batches that grow by a factor of four")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether each batch has a noise scale, whether it stays the same, and whether the next batch helps."""
    judged = []
    for network, sizes in (result.config.batches or {}).items():
        for batch in sizes:
            ratio = of_arm(result, "signal_ratio", _name(network, batch))
            judged.append(
                at_least(f"{_name(network, batch)}: κ² is large enough for a noise scale", LEAST_SIGNAL, ratio)
            )
        for batch in sizes[:-1]:
            larger = FACTOR * batch
            before = of_arm(result, "loss", _name(network, batch))
            change = of_arm(result, "loss", _name(network, larger)) / before - 1
            judged.append(at_most(f"{network}: change of the loss from batch {batch} to {larger}", -MARGIN, change))
            octaves = np.log2(noise_scale(result, network, larger) / noise_scale(result, network, batch))
            if np.isfinite(octaves).all():
                sentence = f"{network}: powers of two by which the noise scale differs at batch {batch} and {larger}"
                judged.append(at_most(sentence, OCTAVES, np.abs(octaves)))
    return judged
