"""Conversion from tuned AdamW to optimizers that keep norms, from initial norms and from those of equilibrium (ours).

These optimizers keep the norms that they start with. The converted angle is that of AdamW in equilibrium, so the
conversion assumes weights of about that size. A GPT of this trial starts 4.6 times below it.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

import gyroscope as gyro
from gyroscope import theory
from gyroscope.theory.transfer_rows import TransferSettings
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import Figure
from gyroscope_lab.training.optimizers import ALGORITHM_1
from gyroscope_lab.transfer._networks import TUNED, Tuned, make_problem
from gyroscope_lab.transfer._rules_trial import MARGIN, losses_of, plot_rules
from gyroscope_lab.transfer._training import Group, adamw, groups_of, train

CLAIMS = {
    "conversion_start_gpt": "GPT: from AdamW's equilibrium norms, optimizers that keep norms lose less than from 0.02",
    "conversion_start_mlp": "MLP: from AdamW's equilibrium norms, optimizers that keep norms lose no more",
}
COST = {
    "conversion_start_gpt": {"quick": "3 min", "paper": "6 min"},
    "conversion_start_mlp": {"quick": "2 min", "paper": "4 min"},
}
# What weights start at, beside AdamW from its own start.
INITIAL = "initial norms"
EQUILIBRIUM = "equilibrium norms"
KEEP_NORMS = ("Hyperball", "RotationalAdamW")


@dataclass(frozen=True)
class Config:
    """A tuned run."""

    tuned: Tuned
    seeds: int = 5

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """Start and optimizer of each training."""
        return ((INITIAL, "AdamW"), *((start, name) for start in (INITIAL, EQUILIBRIUM) for name in KEEP_NORMS))


QUICK = {f"conversion_start_{network}": Config(TUNED[network]) for network in ("gpt", "mlp")}
PAPER = {f"conversion_start_{network}": Config(TUNED[network], 10) for network in ("gpt", "mlp")}


def measure(trial: Trial[Config]) -> Measurements:
    """Train one optimizer from one start, at converted settings. Return the loss on data held out.

    Embeddings and gains keep AdamW at its tuned settings.
    """
    start, name = trial.part
    tuned = trial.config.tuned
    problem = make_problem(tuned.network, tuned.width, trial.seed)
    weights = TransferSettings(tuned.lr, tuned.weight_decay)
    settings = {"hidden": weights, "embedding": weights, "gains": TransferSettings(tuned.lr, 0.0)}
    groups = groups_of(problem.model, settings)
    hidden = groups.pop("hidden")
    if start == EQUILIBRIUM:
        gyro.optim.to_equilibrium_(problem.model, adamw({"hidden": hidden}, tuned.betas))
    optimizer, power = converted(tuned, name, hidden)
    optimizers = [optimizer, adamw(groups, tuned.betas)]
    sizes: dict[str, Any] = {"batch": tuned.batch, "steps": tuned.steps, "seed": trial.seed}
    return {"loss": train(trial, problem, optimizers, powers=(power, 1.0), **sizes)}


def converted(tuned: Tuned, name: str, groups: list[Group]) -> tuple[Optimizer, float]:
    """Return the optimizer of hidden weights and the head with converted settings, and the power of its schedule."""
    if name != "Hyperball":
        make: Any = torch.optim.AdamW if name == "AdamW" else partial(gyro.optim.RotationalAdamW, **ALGORITHM_1)
        return make(groups, lr=tuned.lr, weight_decay=tuned.weight_decay, betas=tuned.betas), 1.0
    match = theory.match(tuned.rule, theory.Hyperball, betas=tuned.betas)
    # "tensor" on request, so that the head rotates too, as it does under the other optimizers.
    sphere = {"lr": match.rule.lr, "weight_decay": 0.0, "granularity": "tensor"}
    inner = torch.optim.AdamW([{**group, **sphere} for group in groups], betas=tuned.betas)
    return gyro.optim.Rotational(inner, mode="hyperball"), match.schedule_power


def plot(result: Result[Config]) -> Figure:
    """Return the loss of each optimizer, a panel for each start."""
    return plot_rules(result, str, f"{result.config.tuned.network}: converted to optimizers that keep norms")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the equilibrium start against the initial norms, and against tuned AdamW."""
    judged = []
    tuned = losses_of(result, INITIAL)["AdamW"]
    for name in KEEP_NORMS:
        at_start = losses_of(result, INITIAL)[name]
        settled = losses_of(result, EQUILIBRIUM)[name]
        judged.append(at_most(f"{name}: from equilibrium minus from the initial norms, nats", 0.0, settled - at_start))
        judged.append(at_most(f"{name}: from equilibrium minus tuned AdamW, nats", MARGIN, settled - tuned))
    return judged
