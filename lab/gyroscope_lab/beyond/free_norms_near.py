"""A rotational optimizer whose norms move is less sensitive to its settings, and needs no warmup (ours).

Every arm of `free_norms` next to its best settings: at half and twice the learning rate, at neighbouring weight decays,
and at neighbouring rates of the other parameters. Also at the best settings without warmup, and with as many steps as
fit into the process time of AdamW's run, where rotational arms step eagerly and AdamW by torch's fused kernel. Five
seeds are judged.
"""

from dataclasses import replace
from math import nan
from pathlib import Path

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.beyond._free_norms_arms import DECIDING
from gyroscope_lab.beyond._free_norms_cells import FIRST_JUDGED_SEED, Cell, Config, trainings_of
from gyroscope_lab.beyond._free_norms_table import MARGIN, PREFIX, write_table
from gyroscope_lab.beyond.free_norms import FEW_SEEDS
from gyroscope_lab.beyond.free_norms import PAPER as CONFIGS
from gyroscope_lab.beyond.free_norms import QUICK as QUICK_CONFIGS
from gyroscope_lab.framework.arms import of_arm, plot_arms
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import Figure

CLAIMS = {
    "free_norms_near_gpt": "GPT from std 0.02: moving norms are less sensitive to settings and need no warmup",
    "free_norms_near_gpt_fan_in": "GPT from 1/√fan_in: moving norms are less sensitive to settings and need no warmup",
    "free_norms_near_vit": "ViT from std 0.02: moving norms are less sensitive to settings and need no warmup",
    "free_norms_near_vit_fan_in": "ViT from 1/√fan_in: moving norms are less sensitive to settings and need no warmup",
    "free_norms_near_resnet": "ResNet-8: moving norms are less sensitive to settings and need no warmup",
    "free_norms_near_mlp": "MLP without norms: moving norms are less sensitive to settings and need no warmup",
}
COST = {
    "free_norms_near_gpt": {"quick": "3 min", "paper": "10 min"},
    "free_norms_near_gpt_fan_in": {"quick": "3 min", "paper": "10 min"},
    "free_norms_near_vit": {"quick": "4 min", "paper": "20 min"},
    "free_norms_near_vit_fan_in": {"quick": "4 min", "paper": "20 min"},
    "free_norms_near_resnet": {"quick": "4 min", "paper": "18 min"},
    "free_norms_near_mlp": {"quick": "1 min", "paper": "5 min"},
}
_NETWORKS = DECIDING[:6]
PAPER = {f"{PREFIX}near_{network}": replace(CONFIGS[PREFIX + network], seeds=FEW_SEEDS) for network in _NETWORKS}
QUICK = {f"{PREFIX}near_{network}": replace(QUICK_CONFIGS[PREFIX + network], seeds=2) for network in _NETWORKS}


def measure(trial: Trial[Config]) -> Measurements:
    """Return the losses of one arm at its best settings, next to them, without warmup, and in equal process time.

    A neighbour beyond the limits of the search has NaN.
    """
    cell = Cell(trial.config, trial.part, trainings_of(trial.config), trial.report)
    best = cell.best()
    seed = FIRST_JUDGED_SEED + trial.seed
    near = [nan if point is None else cell.loss(point, seed) for point in cell.search.neighbours(best)]
    return {
        "loss": cell.loss(best, seed),
        "neighbours": near,
        "without_warmup": cell.loss(best._replace(warmup=0.0), seed),
        "equal_time": cell.equal_time_loss(best, seed),
        "time_ratio": cell.time_ratio(),
    }


def near_costs(result: Result[Config], arm: str) -> Array:
    """Return what a neighbouring setting costs on average, one for each seed."""
    near = np.nanmean(of_arm(result, "neighbours", arm), axis=1)
    return np.asarray(near - of_arm(result, "loss", arm))


def lr_costs(result: Result[Config], arm: str) -> Array:
    """Return what half and twice the best learning rate cost on average, one for each seed."""
    near = np.nanmean(of_arm(result, "neighbours", arm)[:, :2], axis=1)
    return np.asarray(near - of_arm(result, "loss", arm))


def plot(result: Result[Config]) -> Figure:
    """Draw the loss of each arm in the process time of the reference."""
    title = f"{result.config.settings['model'].partition(':')[0]}: in the process time of {result.config.reference}"
    return plot_arms(result, "equal_time", title, "loss on data held out")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge each arm against the reference next to the best settings and in equal time, and its need of a warmup."""
    judged = []
    reference = result.config.reference
    for arm in result.config.parts:
        without = of_arm(result, "without_warmup", arm) - of_arm(result, "loss", arm)
        judged.append(at_most(f"{arm}: cost of no warmup, nats", MARGIN, without))
    for arm in result.config.parts[1:]:
        equal = of_arm(result, "equal_time", arm) - of_arm(result, "loss", reference)
        judged.append(at_most(f"{arm} minus {reference}, in the process time of {reference}, nats", MARGIN, equal))
        for words, costs in (("half and twice the best lr", lr_costs), ("a neighbouring setting", near_costs)):
            gap = costs(result, arm) - costs(result, reference)
            judged.append(at_most(f"cost of {words}: {arm} minus {reference}, nats", 0.0, gap))
    return judged


def write_summary(out: Path) -> None:
    """Write the table of all networks and the decision. The runner calls it."""
    write_table(out / "free_norms.md", CONFIGS)
