"""Which rule for a change of batch, tokens and width at once: the product of single answers, or another (ours).

This protocol was fixed before any training. Two networks of the earlier trials and two new ones are tuned, and moved by
three joint changes: batch × 4 with tokens × 4 and width × 2, batch ÷ 4 with tokens × 4, and batch × 2 with width × 4.
Their runs are of about one memory. One change is repeated from tuned runs of three memories or more. Five candidates
and copied settings train from the same seeds, eight for each network, none of which chose anything:

- product: tau for the batch, horizon for the tokens, mup for the width. It is the chain of our single answers.
- completed: completed for batch and tokens, mup for the width.
- power-lines: the learning rate of the product with the weight decay of power-lines.
- keep-rotation: the tuned weight decay, at the learning rate that keeps the mean rotation over the run.
- product over the run: the weight decay of the product, at the learning rate at which the mean rotation over the run
  changes as the product promises in equilibrium.

The last two forecast both runs with the schedule and the real initial norms. They are also tried on single axes, where
the others have stored losses.

Decision: the product is the answer, unless the 95 % interval of another candidate's loss minus the product's, averaged
over all networks and joint changes, is below 0. Then the one with the lowest mean is the answer. The runs of three
memories do not decide, and are printed beside. The answer is printed with its mean loss above the best candidate of
each network and change.

Settings of the GPT are those of the earlier trials, 0.9 memories. The others are the best of a grid on two other seeds:
three learning rates, each with the weight decays at which the run has half a memory, one and two, or three and six.
Each finished training is a line of results/transfer/joint.jsonl, so that an interrupted run loses at most one.
"""

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from gyroscope.theory import cosine
from gyroscope.theory.transfer_rows import TransferSettings
from gyroscope.tools import Array
from gyroscope_lab.beyond._free_norms_store import Trainings
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import Figure
from gyroscope_lab.transfer._joint_candidates import BASELINE, OURS, PRODUCT, Change, Settings, settings_of
from gyroscope_lab.transfer._joint_candidates import candidate_rules as candidates
from gyroscope_lab.transfer._joint_table import write_joint
from gyroscope_lab.transfer._networks import TUNED, Tuned, make_problem
from gyroscope_lab.transfer._rules_trial import MARGIN, losses_of, plot_rules
from gyroscope_lab.transfer._training import FIRST_TUNING_SEED, WARMUP, adamw, groups_of, train

CLAIMS = {
    "joint_gpt": "GPT, several axes at once: the product of single answers is within 0.01 nats of each candidate",
    "joint_mlp": "MLP, several axes at once: the product of single answers is within 0.01 nats of each candidate",
    "joint_code": "GPT on code, several axes at once: the product is within 0.01 nats of each candidate",
    "joint_vit": "ViT, several axes at once: the product of single answers is within 0.01 nats of each candidate",
    "joint_long_gpt": "GPT in runs of 3 memories: the product of single answers is within 0.01 nats of each candidate",
    "joint_long_mlp": "MLP in runs of 3 memories: the product of single answers is within 0.01 nats of each candidate",
    "joint_axes_gpt": "GPT, one axis: rules that forecast the mean rotation over the run, beside the stored ones",
    "joint_axes_mlp": "MLP, one axis: rules that forecast the mean rotation over the run, beside the stored ones",
}
COST = {
    "joint_gpt": {"quick": "3 min", "paper": "90 min"},
    "joint_mlp": {"quick": "1 min", "paper": "20 min"},
    "joint_code": {"quick": "4 min", "paper": "2 h"},
    "joint_vit": {"quick": "5 min", "paper": "2 h"},
    "joint_long_gpt": {"quick": "4 min", "paper": "90 min"},
    "joint_long_mlp": {"quick": "1 min", "paper": "20 min"},
    "joint_axes_gpt": {"quick": "2 min", "paper": "20 min"},
    "joint_axes_mlp": {"quick": "1 min", "paper": "5 min"},
}
JOINT = (Change(4, 4, 2), Change(0.25, 4, 1), Change(2, 1, 4))
SINGLE = (Change(batch=0.25), Change(batch=4), Change(tokens=0.25), Change(tokens=4), Change(width=2))
TUNING_SEEDS = (FIRST_TUNING_SEED, FIRST_TUNING_SEED + 1)
# Memories of the tuned runs. Weight decays of a grid follow from them and the learning rate.
USUAL = (0.5, 1.0, 2.0)
LONG = (3.0, 6.0)
STORE = "results/transfer/joint.jsonl"
QUICK_STORE = "results/.parts/joint.jsonl"  # the runner's files of unfinished experiments


@dataclass(frozen=True)
class Config:
    """A network at the size of its tuned run, and the changes.

    tuned    the tuned run. Its learning rate and weight decay count if there is no grid
    grid     learning rates and weight decays of which the best is tuned
    changes  what changes at once
    names    the candidates
    store    file of the finished trainings, or None for memory
    """

    tuned: Tuned
    grid: tuple[tuple[float, float], ...] = ()
    changes: tuple[Change, ...] = JOINT
    names: tuple[str, ...] = tuple(candidates())
    seeds: int = 8
    store: str | None = STORE

    @property
    def parts(self) -> tuple[tuple[Change, str], ...]:
        """Change and candidate of each training."""
        return tuple(product(self.changes, self.names))


def _grid(lrs: tuple[float, ...], steps: int, memories: tuple[float, ...]) -> tuple[tuple[float, float], ...]:
    """Return learning rates with the weight decays at which a run has so many memories."""
    multipliers = float(np.sum(cosine(steps, round(WARMUP * steps))(np.arange(steps))))
    return tuple((lr, float(f"{each / (lr * multipliers):.3g}")) for lr, each in product(lrs, memories))


def _untuned(network: str, batch: int, steps: int, width: int) -> Tuned:
    return Tuned(network, width=width, batch=batch, steps=steps, lr=0.0, weight_decay=0.0)


PAPER = {
    "joint_gpt": Config(TUNED["gpt"]),
    "joint_mlp": Config(_untuned("mlp", 32, 1000, 64), _grid((1e-3, 3e-3, 1e-2), 1000, USUAL)),
    "joint_code": Config(_untuned("code", 16, 600, 32), _grid((3e-3, 1e-2, 3e-2), 600, USUAL)),
    "joint_vit": Config(_untuned("vit", 32, 600, 32), _grid((1e-3, 3e-3, 1e-2), 600, USUAL)),
    "joint_long_gpt": Config(_untuned("gpt", 16, 1500, 32), _grid((5e-3, 1e-2, 2e-2), 1500, LONG), JOINT[:1]),
    "joint_long_mlp": Config(_untuned("mlp", 32, 3000, 64), _grid((1e-3, 3e-3, 1e-2), 3000, LONG), JOINT[:1]),
    # One seed more than the record of the GPT has could not be compared. Only the GPT has a record of its width.
    "joint_axes_gpt": Config(TUNED["gpt"], changes=SINGLE, names=OURS, seeds=5),
    "joint_axes_mlp": Config(TUNED["mlp"], changes=SINGLE[:-1], names=OURS, seeds=8),
}


def _quick(config: Config) -> Config:
    """Return a short version: a tenth of the steps, two points of the grid, one change and two seeds."""
    tuned = replace(config.tuned, steps=config.tuned.steps // 10)
    return replace(config, tuned=tuned, grid=config.grid[:2], changes=config.changes[:1], seeds=2, store=QUICK_STORE)


QUICK = {name: _quick(config) for name, config in PAPER.items()}


def measure(trial: Trial[Config]) -> Measurements:
    """Train at the new scale with the settings of a candidate. The first trial of a config also tunes."""
    config = trial.config
    change, name = trial.part
    trainings = Trainings(None if config.store is None else Path(config.store))
    tuned = best_of_grid(trial, trainings)
    settings = settings_of(tuned, change, name)
    _, to = change.scales(tuned)
    size = {"network": tuned.network, "batch": round(to.batch), "steps": round(to.steps), "width": round(to.width or 0)}
    loss = loss_of(trial, trainings, size, settings, tuned.betas, trial.seed)
    return {"loss": loss, "tuned": [tuned.lr, tuned.weight_decay]}


def best_of_grid(trial: Trial[Config], trainings: Trainings) -> Tuned:
    """Return the tuned run at the point of the grid with the lowest mean loss over the tuning seeds."""
    config = trial.config
    if not config.grid:
        return config.tuned
    size = {name: getattr(config.tuned, name) for name in ("network", "batch", "steps", "width")}
    losses = {}
    for lr, decay in config.grid:
        weights = TransferSettings(lr, decay)
        settings = {"hidden": weights, "head": weights, "embedding": weights, "gains": TransferSettings(lr, 0.0)}
        each = [loss_of(trial, trainings, size, settings, config.tuned.betas, seed) for seed in TUNING_SEEDS]
        losses[lr, decay] = float(np.mean(each))
    lr, decay = min(losses, key=lambda point: losses[point])
    return replace(config.tuned, lr=lr, weight_decay=decay)


def loss_of(
    trial: Trial[Config],
    trainings: Trainings,
    size: dict[str, Any],
    settings: Settings,
    betas: tuple[float, float],
    seed: int,
) -> float:
    """Return the loss on data held out of one training, from the store if it is finished."""
    # Rounded, so that the last digit of a forecast does not make another training.
    numbers = {name: [float(f"{each.lr:.6g}"), float(f"{each.weight_decay:.6g}")] for name, each in settings.items()}
    key = {**size, "settings": numbers, "betas": list(betas), "seed": seed}

    def measured() -> dict[str, float]:
        problem = make_problem(size["network"], size["width"], seed)
        optimizer = adamw(groups_of(problem.model, settings), betas)
        return {"loss": train(trial, problem, [optimizer], batch=size["batch"], steps=size["steps"], seed=seed)}

    return trainings.measure(key, measured)["loss"]


def differences(result: Result[Config], change: Change) -> dict[str, Array]:
    """Return the loss of each other arm minus the product's, one value for each seed."""
    losses = losses_of(result, change)
    return {name: losses[name] - losses[PRODUCT] for name in losses if name != PRODUCT}


def plot(result: Result[Config]) -> Figure:
    """Return the loss of each arm, a panel for each change."""
    return plot_rules(result, str, f"{result.config.tuned.network}: several axes at once, settings by candidate")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the product against each candidate, and against copied settings."""
    judged = []
    if PRODUCT not in result.config.names:
        for change in result.config.changes:
            losses = losses_of(result, change)
            gap = losses[OURS[1]] - losses[OURS[0]]
            judged.append(at_most(f"{change}: {OURS[1]} minus {OURS[0]}, nats", MARGIN, gap))
        return judged
    for change in result.config.changes:
        for name, gap in differences(result, change).items():
            margin = 0.0 if name == BASELINE else MARGIN
            judged.append(at_most(f"{change}: product minus {name}, nats", margin, -gap))
    return judged


def write_summary(out: Path) -> None:
    """Write the table of the joint trial, from the records that exist."""
    write_joint(out)
