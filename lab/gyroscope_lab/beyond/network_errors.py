"""Rotation and norm of every tracked layer against the exact law, and against the law with what was measured.

The networks have settled (at least 3 memories, constant learning rate). Values are root mean squares over vectors and
over the second half of the run. The law is corrected twice:

    rotation    by λ_e = λ + λ_u, the radial gradient (RE Appendix L)
    norm        by λ_e, and by the measured size of updates over that of white noise: signal, bursts of gradients and
                how well v follows them, all in one (docs/theory.md, "Signal")

Layers before a batch norm are scale-invariant, and are claimed to be within 5 %. The others are shown.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gyroscope.store import Run
from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, train_arm
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels

COST = {"quick": "8 min", "paper": "2 h"}
# Rows of the arrays, one for each layer. Networks with fewer layers leave NaN.
MOST_LAYERS = 24
COLUMNS = ("rotation", "rotation_corrected", "norm", "norm_corrected")


@dataclass(frozen=True)
class Config(Arms):
    """Networks, and by network a pattern of the names of layers that are scale-invariant."""

    invariant: dict[str, str] = field(default_factory=dict)


def _config(factor: int, seeds: int = 3) -> Config:
    adamw = {"optimizer": "adamw", "lr": 1e-2, "weight_decay": 0.5, "betas": (0.9, 0.99)}
    sgdm = {"optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-3}
    cifar: dict[str, Any] = {
        **{"task": "cifar10", "shrink": 2, "augment": True, "batch_size": 64, "steps": 1200 * factor},
        **adamw,
    }
    networks: dict[str, dict[str, Any]] = {
        "CNN, batch norm, AdamW": {**cifar, "model": "cnn:width=16"},
        "CNN, batch norm, SGDM": {**cifar, "model": "cnn:width=16", "betas": None, **sgdm},
        "MLP, batch norm, AdamW": {**cifar, "model": "mlp:width=64"},
        "ResNet-20, batch norm, AdamW": {**cifar, "model": "resnet20:width=8", "steps": 800 * factor},
        "ViT, AdamW": {
            **cifar,
            "model": "vit:layers=3,width=48",
            "lr": 3e-3,
            "weight_decay": 1.7,
            "steps": 800 * factor,
        },
        "GPT, AdamW": {
            **{"task": "stdlib", "model": "gpt:layers=2,width=64,context=32", "batch_size": 12, "steps": 1200 * factor},
            **adamw,
            **{"lr": 3e-3, "weight_decay": 1.7},
        },
    }
    invariant = {name: r"^(?!head)" for name in networks if "batch norm" in name}
    return Config({"schedule": "constant", "sample_every": 5}, networks, seeds, invariant)


QUICK = _config(factor=1, seeds=5)
PAPER = _config(factor=10)


def measure(trial: Trial[Config]) -> Measurements:
    """Measure the `COLUMNS` of each layer over their predictions, and which layers are scale-invariant."""
    pattern = trial.config.invariant.get(trial.part)

    def read(run: Run) -> Measurements:
        ratios = np.full((MOST_LAYERS, len(COLUMNS)), np.nan)
        invariant = np.zeros(MOST_LAYERS)
        for row, layer in enumerate(run.layers):
            ratios[row] = _ratios(run, layer)
            invariant[row] = pattern is not None and re.search(pattern, layer) is not None
        return {"ratios": ratios, "invariant": invariant}

    measured = train_arm(trial, read)
    return {name: measured[name] for name in ("loss", "ratios", "invariant")}  # texts have no accuracy


def _ratios(run: Run, layer: str) -> Array:
    """Return the ratios of one layer, in the order of `COLUMNS`."""
    late = run.steps >= run.steps[-1] / 2

    def mean(quantity: str) -> float:
        return float(np.nanmean(run.series(layer, quantity)[late]))

    def rms(quantity: str) -> float:
        return float(np.sqrt(np.nanmean(run.series(layer, quantity, "rms")[late] ** 2)))

    angle = mean("predicted_angular_update")
    norm = mean("predicted_norm")
    decay_error = mean("lambda_e") / mean("weight_decay")
    turned = rms("angular_update") / angle
    size = rms("norm") / norm
    # If the gradient pushes outwards faster than decay pulls in, there is no equilibrium to compare with.
    corrected_angle = np.sqrt(decay_error) if decay_error > 0 else np.nan
    # ‖ω‖² = E‖Δω‖²·τ/(2a), and in the law E‖Δω‖ is angle times norm.
    updates = rms("tangential_update") / (angle * norm)
    return np.array([turned, turned / corrected_angle, size, size * corrected_angle / updates])


def errors(result: Result[Config], column: str) -> dict[str, Array]:
    """Return distances from 1 of scale-invariant layers by network, seeds first. Other layers are NaN."""
    ratios = result["ratios"][..., COLUMNS.index(column)]
    distances = np.where(result["invariant"] > 0, np.abs(ratios - 1), np.nan)
    return {name: distances[:, i] for i, name in enumerate(result.config.parts) if name in result.config.invariant}


def plot(result: Result[Config]) -> Figure:
    """Draw measured over predicted of every layer by network. Scale-invariant layers are filled."""
    titles = ("rotation, exact law", "rotation, with λ_e", "norm, exact law", "norm, with λ_e and the size of updates")
    panels = Panels(*titles, rows=2, vertical_spacing=0.16, horizontal_spacing=0.07)
    for i, name in enumerate(result.config.parts):
        ratios = result["ratios"][:, i]
        invariant = np.broadcast_to(result["invariant"][:, i] > 0, ratios.shape[:2])
        for panel in range(len(COLUMNS)):
            for wanted, symbol in ((True, "circle"), (False, "circle-open")):
                shown = ratios[..., panel][(invariant == wanted) & np.isfinite(ratios[..., panel])]
                place = i + np.linspace(-0.3, 0.3, len(shown))
                label = name if wanted == bool(invariant.any()) else ""
                panels.dots(panel, place, shown, label, COLOURS[i % len(COLOURS)], symbol=symbol, size=6)
            panels.level(panel, 1.0)
    panels.figure.update_yaxes(type="log", range=[-0.6, 0.6], tickvals=[0.3, 0.5, 0.8, 1, 1.25, 2, 3])
    panels.figure.update_xaxes(showticklabels=False)
    title = "Measured over predicted, every layer of every network (filled: scale-invariant)"
    return panels.titled(title).update_layout(height=720)


def claims(result: Result[Config]) -> list[Claim]:
    """Claim that scale-invariant layers are within 5 %, the median and the worst, with corrections and without."""
    sentences = {
        "rotation": "rotation off the exact law",
        "rotation_corrected": "rotation off the law with λ_e",
        "norm": "norm off the exact law",
        "norm_corrected": "norm off the law with λ_e and the size of updates",
    }
    judged = []
    for column, sentence in sentences.items():
        for name, distances in errors(result, column).items():
            judged.append(at_most(f"{name}: {sentence}, median layer", 0.05, np.nanmedian(distances, axis=1)))
            judged.append(at_most(f"{name}: {sentence}, worst layer", 0.05, np.nanmax(distances, axis=1)))
    return judged
