"""Settings converted from tuned AdamW to another optimizer, and back, layer by layer, with the runs that use them."""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

import gyroscope as gyro
from gyroscope import theory
from gyroscope.theory import UpdateRule
from gyroscope.theory.transfer_rows import TransferSettings
from gyroscope_lab.framework.experiment import Trial
from gyroscope_lab.training.optimizers import ALGORITHM_1
from gyroscope_lab.transfer._networks import Problem, Tuned, make_problem
from gyroscope_lab.transfer._training import FIRST_TUNING_SEED, Group, adamw, groups_of, train

OPTIMIZERS = ("AdamW", "NAdam", "Lion", "SGDM", "Muon", "RotationalAdamW", "Hyperball")
# Muon steps matrices, and the CNN's hidden layers are convolutions.
WITHOUT_MUON = tuple(name for name in OPTIMIZERS if name != "Muon")
# Samples of the gradients in the run that measures them.
SAMPLES = 50
MOMENTUM = 0.9


@dataclass(frozen=True)
class Factors:
    """Factors of a converted learning rate and weight decay."""

    lr: float = 1.0
    weight_decay: float = 1.0


AS_CONVERTED = Factors()


@dataclass(frozen=True, eq=False)
class ConvertedRun:
    """A run that is ready to train. `powers` are the powers of the schedule, one for each optimizer."""

    problem: Problem
    optimizers: list[Optimizer]
    powers: tuple[float, ...]
    hidden: dict[str, nn.Parameter]


def converted_run(
    tuned: Tuned, name: str, seed: int, factors: Factors = AS_CONVERTED, *, from_equilibrium: bool = False
) -> ConvertedRun:
    """Return a run at settings that are converted from AdamW. Embeddings and gains keep AdamW at its tuned settings.

    from_equilibrium  whether weights start at the norms at which tuned AdamW settles
    """
    problem = make_problem(tuned.network, tuned.width, seed)
    groups = groups_of(problem.model, _settings(tuned))
    taken, left = _split(groups["hidden"], name)
    if from_equilibrium:
        gyro.optim.to_equilibrium_(problem.model, adamw({"hidden": taken}, tuned.betas))
    optimizer, power = _converted(tuned, name, taken)
    for group in optimizer.param_groups:
        group["lr"] *= factors.lr
        group["weight_decay"] *= factors.weight_decay
    return _run(tuned, problem, optimizer, power, taken, {**groups, "hidden": left})


def run_back(tuned: Tuned, name: str, seed: int, factors: Factors) -> ConvertedRun:
    """Return a run of AdamW at settings converted back from an optimizer at these factors."""
    problem = make_problem(tuned.network, tuned.width, seed)
    groups = groups_of(problem.model, _settings(tuned))
    taken, left = _split(groups["hidden"], name)
    back = [{**group, **_settings_back(tuned, name, group, factors)} for group in taken]
    optimizer = torch.optim.AdamW(back, betas=tuned.betas)
    return _run(tuned, problem, optimizer, 1.0, taken, {**groups, "hidden": left})


def loss_of(trial: Trial[Any], tuned: Tuned, run: ConvertedRun, seed: int, **options: Any) -> float:
    """Train, and return the loss on data held out."""
    sizes: dict[str, Any] = {"batch": tuned.batch, "steps": tuned.steps, "seed": seed}
    return train(trial, run.problem, run.optimizers, powers=run.powers, **sizes, **options)


def _run(
    tuned: Tuned,
    problem: Problem,
    optimizer: Optimizer,
    power: float,
    taken: list[Group],
    rest: dict[str, list[Group]],
) -> ConvertedRun:
    optimizers = [optimizer]
    if any(rest.values()):
        optimizers.append(adamw(rest, tuned.betas))
    hidden = {group["param_names"][0]: group["params"][0] for group in taken}
    return ConvertedRun(problem, optimizers, (power, 1.0), hidden)


def _settings(tuned: Tuned) -> dict[str, TransferSettings]:
    weights = TransferSettings(tuned.lr, tuned.weight_decay)
    return {"hidden": weights, "embedding": weights, "gains": TransferSettings(tuned.lr, 0.0)}


def _split(groups: list[Group], optimizer: str) -> tuple[list[Group], list[Group]]:
    """Return a group for each weight of the optimizer, and for each one left to AdamW (with Muon, the head)."""
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
        make: Any = torch.optim.AdamW if name == "AdamW" else partial(gyro.optim.RotationalAdamW, **ALGORITHM_1)
        return make(groups, lr=tuned.lr, weight_decay=tuned.weight_decay, betas=tuned.betas), 1.0
    if name == "Hyperball":
        match = theory.match(tuned.rule, theory.Hyperball, betas=tuned.betas)
        # "tensor" on request, so that the head rotates too, as it does under the other optimizers.
        sphere = {"lr": match.rule.lr, "weight_decay": 0.0, "granularity": "tensor"}
        spheres = [{**group, **sphere} for group in groups]
        inner = torch.optim.AdamW(spheres, betas=tuned.betas)
        return gyro.optim.Rotational(inner, mode="hyperball"), match.schedule_power
    converted = []
    for group in groups:
        rule = layer_rule(tuned, name, group)
        converted.append({**group, "lr": rule.lr, "weight_decay": rule.weight_decay})
    makers: dict[str, Any] = {
        "NAdam": lambda: torch.optim.NAdam(converted, betas=tuned.betas, decoupled_weight_decay=True),
        "Lion": lambda: gyro.optim.Lion(converted),
        "SGDM": lambda: torch.optim.SGD(converted, lr=0.1, momentum=MOMENTUM),
        "Muon": lambda: torch.optim.Muon(converted),
    }
    return makers[name](), 1.0


def layer_rule(tuned: Tuned, name: str, group: Group) -> UpdateRule:
    """Return the settings for one layer, by `theory.match`."""
    inputs = _inputs(name, group, lambda: unit_grad_norms(tuned))
    fixed: dict[str, dict[str, Any]] = {"NAdam": {"betas": tuned.betas}, "SGDM": {"momentum": MOMENTUM}}
    return theory.match(tuned.rule, getattr(theory, name), **inputs, **fixed.get(name, {})).rule


def _inputs(name: str, group: Group, grad_norms: Any) -> dict[str, Any]:
    """Return the inputs of a conversion for one layer."""
    parameter = group["params"][0]
    rows = parameter.shape[0]
    fan_in = parameter.numel() // rows
    if name == "Muon":
        return {"shape": (rows, fan_in), "fan_in": fan_in}
    if name == "SGDM":
        return {"fan_in": fan_in, "unit_grad_norm": grad_norms()[group["param_names"][0]]}
    return {}


def _settings_back(tuned: Tuned, name: str, group: Group, factors: Factors) -> dict[str, float]:
    """Return AdamW's settings for one layer, from the other optimizer's settings and the gradients of its run."""
    fixed: dict[str, Any] = {"betas": tuned.betas}
    if name == "RotationalAdamW":  # it has AdamW's settings
        return {"lr": tuned.lr * factors.lr, "weight_decay": tuned.weight_decay * factors.weight_decay}
    if name == "Hyperball":  # it has no weight decay, so AdamW's must be given
        rule: UpdateRule = theory.match(tuned.rule, theory.Hyperball, betas=tuned.betas).rule
        rule = rule.replace(lr=rule.lr * factors.lr)
        fixed["weight_decay"] = tuned.weight_decay
    else:
        rule = layer_rule(tuned, name, group)
        rule = rule.replace(lr=rule.lr * factors.lr, weight_decay=rule.weight_decay * factors.weight_decay)
    inputs = _inputs(name, group, lambda: unit_grad_norms(tuned, name, factors))
    found = theory.match(rule, theory.AdamW, **inputs, **fixed).rule
    return {"lr": found.lr, "weight_decay": found.weight_decay}


@cache
def unit_grad_norms(tuned: Tuned, name: str = "AdamW", factors: Factors = AS_CONVERTED) -> dict[str, float]:
    """Return ‖g‖·‖w‖ of each layer, RMS over a run on a seed that is not judged."""
    run = converted_run(tuned, name, FIRST_TUNING_SEED, factors)
    every = max(tuned.steps // SAMPLES, 1)
    squares: dict[str, list[float]] = {layer: [] for layer in run.hidden}

    def after_step(step: int) -> None:
        if step % every:
            return
        for layer, weight in run.hidden.items():
            assert weight.grad is not None
            rows = weight.detach().flatten(1).norm(dim=1) * weight.grad.flatten(1).norm(dim=1)
            squares[layer].append(float(rows.square().mean()))

    loss_of(Trial(tuned, FIRST_TUNING_SEED), tuned, run, FIRST_TUNING_SEED, after_step=after_step)
    return {layer: float(np.sqrt(np.mean(values))) for layer, values in squares.items()}
