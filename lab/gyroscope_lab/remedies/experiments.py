"""Trials of every remedy: networks that show a finding, and the same networks with the remedy applied as printed.

A part of an experiment is one task as it was or as advised. Each measures the loss on held-out data after a short
training, whether the finding was made, and the most severe finding of the run. The claim is that the remedy does not
raise the loss. If the interval of the difference contains 0, no harm was seen and the claim is undecided.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from plotly.graph_objects import Figure

from gyroscope.advice.findings import MARKS
from gyroscope.store import Run
from gyroscope_lab.framework.arms import train_and_read
from gyroscope_lab.framework.claims import Claim, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, styled
from gyroscope_lab.remedies._table import write_summary as write_summary  # the runner calls it

CLAIMS = {
    "start_at_equilibrium": "Vectors that begin at tiny norms: a start at equilibrium does not raise the loss",
    "warmup": "A start that is too fast: the warmup that is named does not raise the loss",
    "slower_rotation": "Rotation above 0.1 rad per step: a lower learning rate does not raise the loss",
    "decoupled_decay": "Layers unbalanced by Adam with L2: AdamW does not raise the loss",
    "dead_vectors": "Vectors without gradient: a lower learning rate does not raise the loss",
    "frozen_entries": "Weights in bfloat16 that rounding freezes: weights in float32 do not raise the loss",
    "stable_betas": "Betas outside the stable region: stable betas do not raise the loss",
    "divergence": "A run that diverged: a lower learning rate does not raise the loss",
}
COST = {
    "start_at_equilibrium": {"quick": "2 min", "paper": "15 min"},
    "warmup": {"quick": "1 min", "paper": "15 min"},
    "slower_rotation": {"quick": "2 min", "paper": "15 min"},
    "decoupled_decay": {"quick": "2 min", "paper": "15 min"},
    "dead_vectors": {"quick": "50 s", "paper": "15 min"},
    "frozen_entries": {"quick": "3 min", "paper": "15 min"},
    "stable_betas": {"quick": "2 min", "paper": "15 min"},
    "divergence": {"quick": "2 min", "paper": "15 min"},
}
SEVERITIES = list(MARKS)
# Steps of warmup that the finding recommends in the run as it was, seed 0. It recommends none for a GPT, because its
# residual projections start at norms too small for a warmup to help.
NAMED_WARMUPS = {"digits, CNN with BatchNorm": 8, "CIFAR-10 halved, MLP": 39, "digits, MLP": 7}


IMAGES: dict[str, dict[str, Any]] = {
    "digits, CNN with BatchNorm": {"task": "digits", "model": "cnn", "steps": 200},
    "CIFAR-10 halved, MLP": {"task": "cifar10", "shrink": 2, "model": "mlp", "norm": "none", "steps": 400},
}
TEXT: dict[str, dict[str, Any]] = {
    "source text, GPT": {"task": "stdlib", "model": "gpt:layers=2,width=64", "steps": 400, "batch_size": 16},
}
RELU: dict[str, dict[str, Any]] = {
    "digits, MLP": {"task": "digits", "model": "mlp", "norm": "none", "steps": 200},
}


@dataclass(frozen=True)
class Task:
    """A training that shows a finding: settings of `TrainConfig`, and the settings that the remedy changes."""

    name: str
    settings: dict[str, Any]
    remedy: dict[str, Any]


@dataclass(frozen=True)
class Config:
    """The finding that must be made, and the tasks of its trial."""

    finding: str
    tasks: tuple[Task, ...]
    seeds: int = 3

    @property
    def parts(self) -> tuple[tuple[int, bool], ...]:
        """Each task as it was, and as advised."""
        return tuple((number, advised) for number in range(len(self.tasks)) for advised in (False, True))


def _config(factor: int, finding: str, settings: dict[str, Any], **remedy: Any) -> Config:
    """Return the same settings and remedy on three kinds of networks, `factor` times as long."""
    # A GPT has GELU, which leaves no vector without a gradient.
    third = RELU if finding == "dead_vectors" or "warmup" in remedy else TEXT
    networks = {**IMAGES, **third}
    if "start" in remedy:
        # GPT-2's initial norms (0.16 for 64 entries) are already tiny. torch's own (0.58) are scaled down.
        networks = {name: {"init_scale": 1.0 if name in TEXT else 0.3, **network} for name, network in networks.items()}
    return Config(
        finding,
        tuple(
            Task(
                name,
                {**network, "steps": factor * network["steps"], **settings},
                {"warmup": NAMED_WARMUPS[name]} if "warmup" in remedy else remedy,
            )
            for name, network in networks.items()
        ),
    )


def _configs(factor: int) -> dict[str, Config]:
    def tried(finding: str, settings: dict[str, Any], **remedy: Any) -> Config:
        return _config(factor, finding, settings, **remedy)

    adamw = {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.1}
    adam = {"optimizer": "adam", "lr": 1e-2, "weight_decay": 0.03}
    sgd = {"optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-3}
    return {
        "start_at_equilibrium": tried("over_rotation", adamw, start="equilibrium"),
        "warmup": tried("over_rotation", adamw | {"weight_decay": 1.0}, warmup=NAMED_WARMUPS),
        "slower_rotation": tried("fast_rotation", adamw | {"lr": 0.1, "weight_decay": 2.0}, lr=0.01),
        "decoupled_decay": tried("layer_imbalance", adam, optimizer="adamw"),
        "dead_vectors": tried("dead_vectors", adamw | {"lr": 0.1}, lr=0.01),
        "frozen_entries": tried("frozen_entries", adamw | {"lr": 1e-4, "precision": "pure-bf16"}, precision="bf16"),
        "stable_betas": tried("unstable_betas", adamw | {"betas": (0.95, 0.5)}, betas=(0.95, 0.99)),
        "divergence": tried("diverged", sgd | {"lr": 1e3}, lr=0.1),
    }


QUICK = _configs(factor=1)
PAPER = _configs(factor=5)


def measure(trial: Trial[Config]) -> Measurements:
    """Train once, and return the held-out loss, whether the finding was made, and the severity (0 bad … 3 good)."""
    number, advised = trial.part
    task = trial.config.tasks[number]
    settings = {**task.settings, **(task.remedy if advised else {}), "seed": trial.seed, "evaluations": 1}
    # With the tracker's own choice of samples, as users have it.
    settings["sample_every"] = None

    def read(run: Run) -> Measurements:
        diagnosis = run.diagnose()
        return {
            "found": float(trial.config.finding in diagnosis.kinds),
            "severity": float(SEVERITIES.index(diagnosis[0].severity)),
        }

    measured = train_and_read(trial, settings, read)
    return {name: measured[name] for name in ("loss", "found", "severity")}


def differences(result: Result[Config]) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Return the loss as advised minus the loss as it was, by task, one for each seed."""
    loss = result["loss"]
    return {task.name: loss[:, 2 * i + 1] - loss[:, 2 * i] for i, task in enumerate(result.config.tasks)}


def plot(result: Result[Config]) -> Figure:
    """Draw the loss of each task, seed by seed, as it was and as advised."""
    figure = Figure()
    for i, task in enumerate(result.config.tasks):
        for seed, losses in enumerate(result["loss"][:, 2 * i : 2 * i + 2]):
            figure.add_scatter(
                x=["as it was", "as advised"],
                y=losses,
                mode="lines+markers",
                line={"color": COLOURS[i]},
                name=task.name,
                showlegend=seed == 0,
            )
    figure.update_yaxes(title_text="loss on data held out")
    return styled(figure, f"Finding {result.config.finding}: the loss before and after its remedy")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge that the finding is made on every task, and that the remedy raises no loss."""
    judged = []
    for i, (name, difference) in enumerate(differences(result).items()):
        judged.append(at_least(f"{name}: the finding is made", 1.0, result["found"][:, 2 * i]))
        judged.append(at_most(f"{name}: change of the loss by the remedy", 0.0, difference))
    return judged
