"""In a GPT, rotation and norm at transferred settings are within 10 % of what the map of transfer says (ours).

The matrices of the GPT are scale-invariant. Gradients are not only noise there, more so in large batches. Norms start
at equilibrium, and the learning rate is constant. What is measured is the RMS over matrices in the second half.
"""

import tempfile
from dataclasses import dataclass

import numpy as np
import torch

import gyroscope as gyro
from gyroscope.theory import AdamW, Scale, transfer
from gyroscope.theory.scaling import TransferRow
from gyroscope_lab.beyond._normalised_gpt import NormalisedGPT
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.tasks.text import standard_library

COST = {"quick": "3 min", "paper": "30 min"}
WITHIN = 0.1
SAMPLE_EVERY = 10
QUANTITIES = ("rotation", "norm")


@dataclass(frozen=True)
class Config:
    """A small GPT and the changes that rules are tried on."""

    steps: int
    lr: float = 1e-2
    weight_decay: float = 0.5
    betas: tuple[float, float] = (0.9, 0.95)
    batch: int = 4
    width: int = 32
    context: int = 32
    heads: int = 2
    seeds: int = 3
    parts: tuple[tuple[str, float, str], ...] = (
        ("batch", 0.5, "copy"),
        ("batch", 0.5, "tau"),
        ("batch", 4.0, "tau"),
        ("tokens", 2.0, "tau"),
        ("width", 2.0, "copy"),
        ("width", 2.0, "independent"),
        ("width", 2.0, "mup"),
        ("width", 2.0, "fan"),
    )

    def promised(self, axis: str, factor: float, name: str) -> tuple[TransferRow, Scale]:
        """Return what the map says of a rule, and the new size."""
        sizes = {"batch": self.batch, "tokens": self.batch * self.steps, "width": self.width}
        to = Scale(**{**sizes, axis: sizes[axis] * factor})
        moved = transfer(AdamW(self.lr, self.weight_decay, self.betas), base=Scale(**sizes), to=to)
        return next(row for row in moved.rows if row.name == name), to


QUICK = Config(steps=500)
PAPER = Config(steps=4000)


def measure(trial: Trial[Config]) -> Measurements:
    """Train at the new size with the settings of a rule. Return rotation and norm over those promised."""
    config = trial.config
    row, to = config.promised(*trial.part)
    assert row.rotation
    assert row.rms_entry
    text, _ = standard_library().split()
    width = round(to.width or 0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.seed)
        model = NormalisedGPT(text.alphabet, blocks=1, width=width, heads=config.heads, context=config.context)
    matrices = {f"blocks.{name}": each for name, each in model.blocks.named_parameters()}
    for matrix in matrices.values():
        matrix.data *= row.rms_entry * matrix.shape[1] ** 0.5 / matrix.detach().norm(dim=1, keepdim=True)
    rest = [each for name, each in model.named_parameters() if name not in matrices]
    hidden = row.groups["hidden"]
    groups = [
        {"params": list(matrices.values()), "lr": hidden.lr, "weight_decay": hidden.weight_decay},
        {"params": rest, "lr": 1e-3, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=config.betas)
    generator = trial.generator()
    with tempfile.TemporaryDirectory() as folder:
        with gyro.Tracker(model, optimizer, folder, every=SAMPLE_EVERY) as tracker:
            for _ in trial.steps(round(to.steps)):
                model.zero_grad()
                torch.autograd.backward(model.loss(*text.batch(round(to.batch), config.context, generator)))
                optimizer.step()
        with tracker.run as run:
            late = run.steps >= run.steps[-1] / 2
            angles = [run.series(name, "angular_update", "rms")[late] for name in matrices]
            norms = [
                run.series(name, "norm", "rms")[late] / matrix.shape[1] ** 0.5 for name, matrix in matrices.items()
            ]
    return {
        "over_promise": [
            np.sqrt(np.mean(np.square(angles))) / row.rotation,
            np.sqrt(np.mean(np.square(norms))) / row.rms_entry,
        ]
    }


def plot(result: Result[Config]) -> Figure:
    """Return rotation and norm over their promises, by rule and change."""
    panels = Panels(*QUANTITIES, rows=2, shared_xaxes=True, vertical_spacing=0.08)
    labels = [f"{name}, {axis} × {factor:g}" for axis, factor, name in result.config.parts]
    for panel in range(len(QUANTITIES)):
        for of_seed in result["over_promise"][..., panel]:
            panels.dots(panel, labels, of_seed, colour=COLOURS[panel], size=7)
        panels.level(panel, 1.0)
    panels.figure.update_yaxes(title_text="over promise")
    return panels.titled("A GPT at transferred settings: measured over what the map promises")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the distance from the map of each rule and change."""
    off = np.abs(result["over_promise"] - 1)
    return [
        at_most(f"{axis} × {factor:g}, {name}: {quantity}, distance from the map", WITHIN, off[:, i, number])
        for i, (axis, factor, name) in enumerate(result.config.parts)
        for number, quantity in enumerate(QUANTITIES)
    ]
