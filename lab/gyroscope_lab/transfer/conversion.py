"""Conversion from tuned AdamW to another optimizer, without tuning, beside half and twice the learning rate."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

import gyroscope as gyro
from gyroscope import theory
from gyroscope.theory.scaling import TransferSettings
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import Figure
from gyroscope_lab.transfer._networks import Tuned, make_problem
from gyroscope_lab.transfer._rules_trial import FACTORS, MARGIN, losses_of, plot_rules
from gyroscope_lab.transfer._table import write_summary as write_summary  # the runner calls it
from gyroscope_lab.transfer._training import FIRST_TUNING_SEED, Group, adamw, groups_of, train
from gyroscope_lab.transfer.tuning import TUNED

CLAIMS = {
    "conversion_gpt": "GPT: settings converted from AdamW are within 0.01 nats of half and twice their lr",
    "conversion_mlp": "MLP: settings converted from AdamW are within 0.01 nats of half and twice their lr",
    "conversion_cnn": "CNN: settings converted from AdamW are within 0.01 nats of half and twice their lr",
}
COST = {
    "conversion_gpt": {"quick": "6 min", "paper": "12 min"},
    "conversion_mlp": {"quick": "2 min", "paper": "4 min"},
    "conversion_cnn": {"quick": "4 min", "paper": "8 min"},
}
OPTIMIZERS = ("AdamW", "NAdam", "Lion", "SGDM", "Muon", "RotationalAdamW", "Hyperball")
# The tracker's samples in the run that measures gradients.
SAMPLES = 50
MOMENTUM = 0.9


@dataclass(frozen=True)
class Config:
    """A tuned run and the optimizers that it is converted to."""

    tuned: Tuned
    optimizers: tuple[str, ...] = OPTIMIZERS
    seeds: int = 3

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """Optimizer and factor of its learning rate, for each training."""
        return tuple((name, factor) for name in self.optimizers for factor in FACTORS)


# Muon steps matrices, and the CNN's hidden layers are convolutions.
WITHOUT_MUON = tuple(name for name in OPTIMIZERS if name != "Muon")
QUICK = {
    "conversion_gpt": Config(TUNED["gpt"], seeds=3),
    "conversion_mlp": Config(TUNED["mlp"], seeds=3),
    "conversion_cnn": Config(TUNED["cnn"], WITHOUT_MUON, seeds=3),
}
PAPER = {
    "conversion_gpt": Config(TUNED["gpt"], seeds=6),
    "conversion_mlp": Config(TUNED["mlp"], seeds=6),
    "conversion_cnn": Config(TUNED["cnn"], WITHOUT_MUON, seeds=6),
}


def measure(trial: Trial[Config]) -> Measurements:
    """Train with one optimizer at a factor of the converted learning rate. Return the loss on data held out.

    Embeddings and gains keep AdamW at its tuned settings.
    """
    tuned = trial.config.tuned
    name, factor = trial.part
    problem = make_problem(tuned.network, tuned.width, trial.seed)
    groups = groups_of(problem.model, _settings(tuned))
    taken, left = _split(groups["hidden"], name)
    optimizer, power = _converted(tuned, name, taken)
    for group in optimizer.param_groups:
        group["lr"] *= factor
    optimizers = [optimizer]
    rest = {**groups, "hidden": left}
    if any(rest.values()):
        optimizers.append(adamw(rest, tuned.betas))
    sizes: dict[str, Any] = {"batch": tuned.batch, "steps": tuned.steps, "seed": trial.seed}
    return {"loss": train(trial, problem, optimizers, powers=(power, 1.0), **sizes)}


def _settings(tuned: Tuned) -> dict[str, TransferSettings]:
    weights = TransferSettings(tuned.lr, tuned.weight_decay)
    return {"hidden": weights, "embedding": weights, "gains": TransferSettings(tuned.lr, 0.0)}


def _split(groups: list[Group], optimizer: str) -> tuple[list[Group], list[Group]]:
    """Return a group for each weight that the optimizer takes, and for those left to AdamW: with Muon the head."""
    taken: list[Group] = []
    left: list[Group] = []
    for group in groups:
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            own = {**group, "params": [parameter], "param_names": [name]}
            (left if optimizer == "Muon" and name.startswith("head") else taken).append(own)
    return taken, left


def _converted(tuned: Tuned, name: str, groups: list[Group]) -> tuple[Optimizer, float]:
    """Return the optimizer with converted settings of each layer, and the power of its schedule."""
    if name in ("AdamW", "RotationalAdamW"):
        make = torch.optim.AdamW if name == "AdamW" else gyro.optim.RotationalAdamW
        return make(groups, lr=tuned.lr, weight_decay=tuned.weight_decay, betas=tuned.betas), 1.0
    if name == "Hyperball":
        match = theory.match(tuned.rule, theory.Hyperball, betas=tuned.betas)
        spheres = [{**group, "lr": match.rule.lr, "weight_decay": 0.0} for group in groups]
        inner = torch.optim.AdamW(spheres, betas=tuned.betas)
        return gyro.optim.Rotational(inner, mode="hyperball"), match.schedule_power
    converted = [{**group, **_layer_settings(tuned, name, group)} for group in groups]
    makers: dict[str, Any] = {
        "NAdam": lambda: torch.optim.NAdam(converted, betas=tuned.betas, decoupled_weight_decay=True),
        "Lion": lambda: gyro.optim.Lion(converted),
        "SGDM": lambda: torch.optim.SGD(converted, lr=0.1, momentum=MOMENTUM),
        "Muon": lambda: torch.optim.Muon(converted),
    }
    return makers[name](), 1.0


def _layer_settings(tuned: Tuned, name: str, group: Group) -> dict[str, float]:
    """Return lr and weight decay for one layer, by `theory.match`."""
    parameter = group["params"][0]
    rows = parameter.shape[0]
    fan_in = parameter.numel() // rows
    inputs: dict[str, Any] = {}
    fixed: dict[str, Any] = {"betas": tuned.betas} if name == "NAdam" else {}
    if name == "Muon":
        inputs = {"shape": (rows, fan_in), "fan_in": fan_in}
    if name == "SGDM":
        layer = group["param_names"][0]
        inputs = {"fan_in": fan_in, "unit_grad_norm": _unit_grad_norms(tuned)[layer]}
        fixed = {"momentum": MOMENTUM}
    found = theory.match(tuned.rule, getattr(theory, name), **inputs, **fixed).rule
    return {"lr": found.lr, "weight_decay": found.weight_decay}


@cache
def _unit_grad_norms(tuned: Tuned) -> dict[str, float]:
    """Return ‖g‖·‖w‖ of each layer, RMS over a tuned run on a seed that is not judged."""
    problem = make_problem(tuned.network, tuned.width, FIRST_TUNING_SEED)
    groups = groups_of(problem.model, _settings(tuned))
    optimizer = adamw(groups, tuned.betas)
    every = max(tuned.steps // SAMPLES, 1)
    weights = [
        (name, each)
        for group in groups["hidden"]
        for name, each in zip(group["param_names"], group["params"], strict=True)
    ]
    sums: dict[str, list[float]] = {name: [] for name, _ in weights}

    def after_step(step: int) -> None:
        if step % every:
            return
        for name, weight in weights:
            assert weight.grad is not None
            rows = weight.detach().flatten(1).norm(dim=1) * weight.grad.flatten(1).norm(dim=1)
            sums[name].append(float(rows.square().mean()))

    sizes: dict[str, Any] = {"batch": tuned.batch, "steps": tuned.steps, "seed": FIRST_TUNING_SEED}
    train(Trial(tuned, FIRST_TUNING_SEED), problem, [optimizer], after_step=after_step, **sizes)
    return {name: float(np.sqrt(np.mean(values))) for name, values in sums.items()}


def plot(result: Result[Config]) -> Figure:
    """Return the loss of each optimizer over the factor of its converted learning rate."""
    title = f"{result.config.tuned.network}: settings converted from AdamW, at three factors of lr"
    return plot_rules(result, str, title)


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether the converted lr is within the margin of the best factor, and the loss of that of AdamW."""
    judged = []
    tuned = losses_of(result, "AdamW")[1.0]
    for name in result.config.optimizers:
        losses = losses_of(result, name)
        nearest = min((factor for factor in FACTORS if factor != 1), key=lambda factor: losses[factor].mean())
        sentence = f"{name}: converted lr minus the better of half and twice (× {nearest:g}), nats"
        judged.append(at_most(sentence, MARGIN, losses[1.0] - losses[nearest]))
        if name != "AdamW":
            judged.append(at_most(f"{name}: converted settings minus tuned AdamW, nats", MARGIN, losses[1.0] - tuned))
    return judged
