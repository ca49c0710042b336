"""In a GPT, rotation, norm and run length at transferred settings are within 10 % of the map of transfer (ours).

The matrices of the GPT are scale-invariant. Their gradients are not only noise, least of all in large batches. Norms
start at equilibrium, and the learning rate is constant. Rotation and norm are the RMS over matrices in the second half
of the run. The run length is measured by how fast directions are forgotten after the first tenth. It is not measured in
runs shorter than two memories. Rules that give the same settings are tried once. The width is changed in `width_check`.
"""

import tempfile
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

import gyroscope as gyro
from gyroscope.theory import AdamW, Scale, transfer
from gyroscope.theory.transfer_rows import TransferRow
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.tasks.text import standard_library
from gyroscope_lab.transfer._forgetting import forgetting_rate
from gyroscope_lab.transfer._normalised_gpt import NormalisedGPT

COST = {"quick": "5 min", "paper": "40 min"}
WITHIN = 0.1
SAMPLE_EVERY = 10
QUANTITIES = ("rotation", "norm", "run length")
# Memories of the shortest run whose run length is measured.
LEAST_MEMORIES = 2.0
# On a batch, completed gives the settings of tau, and power-lines those of tau-wd. On tokens, tau-wd gives those of
# tau.
RULES_BY_AXIS = {
    "batch": ("copy", "sqrt-batch", "sde", "tau", "tau-wd"),
    "tokens": ("copy", "tau", "power-lines", "completed", "horizon"),
}


@dataclass(frozen=True)
class Config:
    """A small GPT, and the changes of scale on which rules are tried."""

    steps: int
    lr: float = 1e-2
    weight_decay: float = 0.5
    betas: tuple[float, float] = (0.9, 0.95)
    batch: int = 4
    width: int = 32
    context: int = 32
    heads: int = 2
    seeds: int = 3
    parts: tuple[tuple[str, float, str], ...] = tuple(
        (axis, factor, name) for axis, names in RULES_BY_AXIS.items() for factor in (0.25, 4.0) for name in names
    )

    def promised(self, axis: str, factor: float, name: str) -> tuple[TransferRow, Scale]:
        """Return the prediction of a rule, and the new size."""
        sizes = {"batch": self.batch, "tokens": self.batch * self.steps, "width": self.width}
        to = Scale(**{**sizes, axis: sizes[axis] * factor})
        moved = transfer(AdamW(self.lr, self.weight_decay, self.betas), base=Scale(**sizes), to=to)
        return next(row for row in moved.rows if row.name == name), to


QUICK = Config(steps=600)
PAPER = Config(steps=4000)


def measure(trial: Trial[Config]) -> Measurements:
    """Train at the new size with the settings of a rule. Return rotation, norm and run length over predictions."""
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
    optimizer = torch.optim.AdamW(groups, betas=row.betas or config.betas)
    generator = trial.generator()
    directions: dict[str, list[Tensor]] = {name: [] for name in matrices}
    with tempfile.TemporaryDirectory() as folder:
        with gyro.Tracker(model, optimizer, folder, every=SAMPLE_EVERY) as tracker:
            for step in trial.steps(round(to.steps)):
                model.zero_grad()
                torch.autograd.backward(model.loss(*text.batch(round(to.batch), config.context, generator)))
                optimizer.step()
                if step % SAMPLE_EVERY == 0:
                    for name, matrix in matrices.items():
                        directions[name].append(normalize(matrix.detach(), dim=1))
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
            _run_length_over_promise(row, to, [torch.stack(each) for each in directions.values()]),
        ]
    }


def _run_length_over_promise(row: TransferRow, to: Scale, directions: list[Tensor]) -> float:
    """Return the run length measured by forgetting over the predicted one, as a mean over matrices."""
    assert row.memory
    assert row.run_length
    if row.run_length < LEAST_MEMORIES:
        return float("nan")
    memory = row.memory / to.batch / SAMPLE_EVERY
    rates = [forgetting_rate(each[len(each) // 10 :], memory) for each in directions]
    return float(np.mean(rates)) * memory


def plot(result: Result[Config]) -> Figure:
    """Draw each quantity over its prediction, by rule and change."""
    panels = Panels(*QUANTITIES, rows=3, shared_xaxes=True, vertical_spacing=0.06)
    labels = [f"{name}, {axis} × {factor:g}" for axis, factor, name in result.config.parts]
    for panel in range(len(QUANTITIES)):
        for of_seed in result["over_promise"][..., panel]:
            panels.dots(panel, labels, of_seed, colour=COLOURS[panel], size=7)
        panels.level(panel, 1.0)
    panels.figure.update_yaxes(title_text="over promise")
    return panels.titled("A GPT at transferred settings: measured over what the map promises").update_layout(height=760)


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the distance from the map of each rule and change."""
    off = np.abs(result["over_promise"] - 1)
    return [
        at_most(f"{axis} × {factor:g}, {name}: {quantity}, distance from the map", WITHIN, off[:, i, number])
        for i, (axis, factor, name) in enumerate(result.config.parts)
        for number, quantity in enumerate(QUANTITIES)
        if np.isfinite(off[:, i, number]).all()
    ]
