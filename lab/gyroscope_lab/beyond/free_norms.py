"""A rotational optimizer whose norms move never costs loss, if each optimizer is tuned on its own (ours).

RotationalAdamW keeps the norms of weight vectors ("fixed"), lets them follow the loss ("free"), or also lets them
settle at AdamW's equilibrium ("settling"). Each form and AdamW are trained on nine networks. Learning rate, weight
decay and the rate of the other parameters (embeddings, gains and biases, as a multiple) are tuned for each arm alike on
two seeds: six points first, then neighbour by neighbour until none is better by 0.003 nats. So an arm whose best is at
the edge of the first points is extended. Other seeds judge: twelve the best settings, and five their neighbours.

These rules were fixed before any seed was judged. A form never costs loss if the upper end of the 95 % interval of the
paired difference to AdamW, each at its own best settings, is below 0.01 nats on every network. The default is the form
with the lowest pooled mean among those. If no form is among them, "fixed" stays. `free_norms_decision` applies the
rule, and `free_norms_near` has the neighbours, runs without warmup and runs of equal process time.

Trimmed for about six hours of one core: the grid is searched coarse to fine instead of completely, networks have at
most 0.25 M weights, byte pairs and a run of ten times the length have the candidate form only, and no GPT has 10 M
weights.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.beyond._free_norms_arms import CONTROLS, DECIDING, FEW, LION, MAIN, NETWORKS, SGD
from gyroscope_lab.beyond._free_norms_cells import FIRST_JUDGED_SEED, Cell, Config, trainings_of
from gyroscope_lab.beyond._free_norms_search import ADAMW_SEARCH, LION_SEARCH, LONG_SEARCH, SGD_SEARCH
from gyroscope_lab.beyond._free_norms_table import MARGIN, PREFIX, write_table
from gyroscope_lab.framework.arms import of_arm
from gyroscope_lab.framework.claims import Claim, at_most, confidence_interval
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, INK, Figure, Panels

CLAIMS = {
    "free_norms_gpt": "GPT from std 0.02: rotational AdamW with moving norms never costs loss",
    "free_norms_gpt_fan_in": "GPT from 1/√fan_in: rotational AdamW with moving norms never costs loss",
    "free_norms_vit": "ViT from std 0.02: rotational AdamW with moving norms never costs loss",
    "free_norms_vit_fan_in": "ViT from 1/√fan_in: rotational AdamW with moving norms never costs loss",
    "free_norms_resnet": "ResNet-8 with batch norm: rotational AdamW with moving norms never costs loss",
    "free_norms_mlp": "MLP without norms: rotational AdamW with moving norms never costs loss",
    "free_norms_wide_gpt": "GPT of width 96 from std 0.02: rotational AdamW with moving norms never costs loss",
    "free_norms_wide_gpt_fan_in": "GPT of width 96 from 1/√fan_in: rotational AdamW with moving norms never costs loss",
    "free_norms_resnet_layer_norm": "ResNet-8 with layer norm: rotational AdamW with moving norms never costs loss",
    "free_norms_gpt_byte_pairs": "GPT on byte pairs, 2,000 steps: settling norms never cost loss",
    "free_norms_gpt_long": "GPT, ten times as long: settling norms never cost loss",
    "free_norms_controls_gpt": "GPT from std 0.02: gains, equilibrium starts, warmups and Muon beside moving norms",
    "free_norms_controls_vit": "ViT from std 0.02: gains, equilibrium starts, warmups and Muon beside moving norms",
    "free_norms_sgd_gpt": "GPT from std 0.02: rotational SGD with moving norms never costs loss",
    "free_norms_sgd_resnet": "ResNet-8 with batch norm: rotational SGD with moving norms never costs loss",
    "free_norms_sgd_mlp": "MLP without norms: rotational SGD with moving norms never costs loss",
    "free_norms_lion_gpt": "GPT from std 0.02: rotational Lion with moving norms never costs loss",
    "free_norms_lion_resnet": "ResNet-8 with batch norm: rotational Lion with moving norms never costs loss",
    "free_norms_lion_mlp": "MLP without norms: rotational Lion with moving norms never costs loss",
}
COST = {
    "free_norms_gpt": {"quick": "2 min", "paper": "12 min"},
    "free_norms_gpt_fan_in": {"quick": "2 min", "paper": "12 min"},
    "free_norms_vit": {"quick": "3 min", "paper": "25 min"},
    "free_norms_vit_fan_in": {"quick": "3 min", "paper": "25 min"},
    "free_norms_resnet": {"quick": "3 min", "paper": "20 min"},
    "free_norms_mlp": {"quick": "1 min", "paper": "6 min"},
    "free_norms_wide_gpt": {"quick": "3 min", "paper": "18 min"},
    "free_norms_wide_gpt_fan_in": {"quick": "3 min", "paper": "18 min"},
    "free_norms_resnet_layer_norm": {"quick": "3 min", "paper": "20 min"},
    "free_norms_gpt_byte_pairs": {"quick": "2 min", "paper": "25 min"},
    "free_norms_gpt_long": {"quick": "2 min", "paper": "35 min"},
    "free_norms_controls_gpt": {"quick": "4 min", "paper": "35 min"},
    "free_norms_controls_vit": {"quick": "6 min", "paper": "60 min"},
    "free_norms_sgd_gpt": {"quick": "2 min", "paper": "6 min"},
    "free_norms_sgd_resnet": {"quick": "3 min", "paper": "12 min"},
    "free_norms_sgd_mlp": {"quick": "1 min", "paper": "3 min"},
    "free_norms_lion_gpt": {"quick": "2 min", "paper": "6 min"},
    "free_norms_lion_resnet": {"quick": "3 min", "paper": "12 min"},
    "free_norms_lion_mlp": {"quick": "1 min", "paper": "3 min"},
}
# Judged seeds of whatever does not decide.
FEW_SEEDS = 5


def _config(network: str, **changes: Any) -> Config:
    # One file for each network, so that controls use the trainings of the main arms.
    store = f"results/beyond/free_norms/{network}.jsonl"
    return replace(Config(NETWORKS[network], MAIN, ADAMW_SEARCH, store=store), **changes)


_MAIN = {f"{PREFIX}{network}": _config(network) for network in DECIDING}
_LONGER = {
    f"{PREFIX}{network}": _config(network, arms=FEW, search=LONG_SEARCH, seeds=FEW_SEEDS)
    for network in ("gpt_byte_pairs", "gpt_long")
}
_CONTROLS = {
    f"{PREFIX}controls_{network}": _config(network, arms=CONTROLS, seeds=FEW_SEEDS) for network in ("gpt", "vit")
}
_OTHER_RULES = {
    f"{PREFIX}{name}_{network}": _config(network, arms=arms, search=search, seeds=FEW_SEEDS)
    for name, arms, search in (("sgd", SGD, SGD_SEARCH), ("lion", LION, LION_SEARCH))
    for network in ("gpt", "resnet", "mlp")
}
PAPER = _MAIN | _LONGER | _CONTROLS | _OTHER_RULES


def _quick(config: Config) -> Config:
    """Return a short version: two learning rates, one weight decay, and 150 steps."""
    search = replace(config.search, lrs=config.search.lrs[:2], weight_decays=config.search.weight_decays[1:2], moves=0)
    settings = {**config.settings, "steps": 150}
    assert config.store is not None
    store = config.store.replace("results/beyond", "results/.parts")  # the runner's files of unfinished experiments
    return replace(config, settings=settings, search=search, seeds=3, store=store)


QUICK = {name: _quick(config) for name, config in PAPER.items()}


def measure(trial: Trial[Config]) -> Measurements:
    """Return the loss of one arm at its best settings, and these. The first trial of an arm also chooses them."""
    config = trial.config
    cell = Cell(config, trial.part, trainings_of(config), trial.report)
    best = cell.best()
    return {"loss": cell.loss(best, FIRST_JUDGED_SEED + trial.seed), "settings": list(best)}


def differences(result: Result[Config], arm: str) -> Array:
    """Return the loss of an arm minus the reference's, each at its best settings, one for each seed."""
    return np.asarray(of_arm(result, "loss", arm) - of_arm(result, "loss", result.config.reference))


def plot(result: Result[Config]) -> Figure:
    """Draw each arm's loss minus the reference's: a dot for each seed, and the mean with its 95 % interval."""
    panels = Panels()
    config = result.config
    for i, arm in enumerate(config.parts[1:]):
        gaps = differences(result, arm)
        interval = confidence_interval(gaps)
        panels.dots(0, np.full(len(gaps), arm), gaps, colour=COLOURS[i % len(COLOURS)], size=7)
        half = {"array": [interval.high - interval.mean], "color": INK}
        panels.figure.add_scatter(x=[arm], y=[interval.mean], error_y=half, mode="markers", marker={"color": INK})
    panels.level(0, MARGIN)
    panels.figure.update_layout(showlegend=False)
    panels.figure.update_yaxes(title_text=f"loss minus that of {config.reference}, nats")
    return panels.titled(f"{config.settings['model'].partition(':')[0]}: each arm at its best settings")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge each arm against the reference, each at its best settings."""
    reference = result.config.reference
    return [
        at_most(f"{arm} minus {reference}, each at its best settings, nats", MARGIN, differences(result, arm))
        for arm in result.config.parts[1:]
    ]


def write_summary(out: Path) -> None:
    """Write the table of all networks and the decision. The runner calls it."""
    write_table(out / "free_norms.md", PAPER)
