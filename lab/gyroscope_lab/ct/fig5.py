"""‖W‖² of query and key matrices under qk-norm is the moving average of ‖u‖² that CT (8) says (CT Figure 5).

(8) drops ⟨W,u⟩. It is compared with the exact identity, which keeps the term, and with the recursion of `forecast`,
which uses only hyper-parameters and assumes that gradients are noise. With β1 = 0.9 successive updates point the same
way, and W contains those of the past. Nearly all growth of ‖W‖² then comes from ⟨W,u⟩, and (8) misses it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch.optim import AdamW

from gyroscope import theory
from gyroscope.tools import Array
from gyroscope_lab.ct._sphere_flow import norm_equation, norm_identity
from gyroscope_lab.ct._text_training import PAPER_MODEL, TextTraining, query_and_key_rows, train_step
from gyroscope_lab.framework.claims import Claim, agrees, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels, shown_steps

COST = {"quick": "40 s", "paper": "hours"}
RUNS = ("short", "long")
LABELS = ("paper's run", "long run")
POINTS = 50


@dataclass(frozen=True, kw_only=True)
class Config(TextTraining):
    """The paper's run, and a longer one with more decay, towards equilibrium: (lr, weight decay, steps)."""

    short: tuple[float, float, int] = (1e-3, 0.01, 100)
    long: tuple[float, float, int] = (3e-3, 1.0, 1000)
    betas: tuple[float, float] = (0.9, 0.999)

    def settings(self, name: str) -> tuple[float, float, int]:
        """Return lr, weight decay and steps of a run."""
        return self.short if name == "short" else self.long

    @property
    def fan_in(self) -> int:
        """Entries of one matrix."""
        return self.width * self.width // self.heads


# Two layers of four heads: sixteen matrices.
QUICK = Config(seeds=7)
PAPER = Config(**PAPER_MODEL)


def measure(trial: Trial[Config]) -> Measurements:
    """Train both runs one after the other."""
    return {f"{name}_{key}": value for name in RUNS for key, value in _train(trial, name).items()}


def _train(trial: Trial[Config], name: str) -> Measurements:
    """Return ‖W‖², ‖u‖² and ⟨W,u⟩ after each step for every matrix, with u = ((1-a)W - W')/lr."""
    config = trial.config
    lr, decay, count = config.settings(name)
    generator = trial.generator()
    model = config.model(trial.seed).double()  # u is a difference of weights: float32 would lose half its digits
    optimizer = AdamW(model.parameters(), lr, config.betas, weight_decay=decay, fused=True)
    rows = np.zeros((3, count, 2 * config.layers * config.heads))
    W = query_and_key_rows(model)
    first2 = W.square().sum(1).numpy()
    for n in trial.steps(count):
        train_step(model, config.random_batch(generator), optimizer)
        after = query_and_key_rows(model)
        u = ((1 - lr * decay) * W - after) / lr
        rows[:, n] = torch.stack([after.square().sum(1), u.square().sum(1), (W * u).sum(1)]).numpy()
        W = after
    norm2, update2, overlap = rows
    shown = shown_steps(count, POINTS)
    equation = norm_equation(update2, lr=lr, weight_decay=decay, norm2=first2)
    identity = norm_identity(update2, overlap, lr=lr, weight_decay=decay, norm2=first2)
    return {
        "first2": first2,
        "norm2": norm2[shown].T,
        "equation": equation[shown].T,
        "identity": identity[shown].T,
        "identity_error": np.abs(identity / norm2 - 1).max(),
    }


def recursion(result: Result[Config], name: str) -> Array:
    """Return ‖W‖² by `forecast`, (seeds, matrices, steps shown)."""
    lr, decay, steps = result.config.settings(name)
    first = np.sqrt(result[f"{name}_first2"])
    rule = theory.AdamW(lr, decay, result.config.betas)
    norms = theory.forecast(rule, steps=steps, norm=first.ravel(), fan_in=result.config.fan_in, unit_grad_norm=1.0).norm
    return np.asarray(norms[shown_steps(steps, POINTS)] ** 2).T.reshape(*first.shape, -1)


def plot(result: Result[Config]) -> Figure:
    """Draw ‖W‖² of four matrices of the first seed, and the three descriptions."""
    kinds = ("query", "query", "key", "key")
    titles = [f"{label}: {kind}, layer 1" for label in LABELS for kind in kinds]
    panels = Panels(*titles, rows=2, vertical_spacing=0.14, horizontal_spacing=0.05)
    heads = result.config.heads
    for row, name in enumerate(RUNS):
        t = shown_steps(result.config.settings(name)[2], POINTS) + 1
        predicted = recursion(result, name)
        for column, i in enumerate((0, 1, heads, heads + 1)):
            panel = row * len(kinds) + column
            panels.line(panel, t, result[f"{name}_norm2"][0, i], "measured", width=3)
            identity = result[f"{name}_identity"][0, i]
            panels.line(panel, t, identity, "identity with ⟨W,u⟩", COLOURS[5], dash="dot", width=2.5)
            panels.line(panel, t, result[f"{name}_equation"][0, i], "CT (8)", COLOURS[1], dash="dash")
            panels.line(panel, t, predicted[0, i], "recursion, hyper-parameters only", COLOURS[2], dash="dashdot")
    panels.figure.update_annotations(font_size=12)
    panels.figure.update_xaxes(title_text="step", row=2)
    return panels.titled("‖W‖² of query and key matrices: measured, and described in three ways")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge how far each description is from the weights at the end."""
    judged: list[Claim] = []
    for name, label in zip(RUNS, LABELS, strict=True):
        last = result[f"{name}_norm2"][:, :, -1]
        paper = result[f"{name}_equation"][:, :, -1] / last
        ours = recursion(result, name)[:, :, -1] / last
        closer = np.abs(np.log(paper)).mean(1) - np.abs(np.log(ours)).mean(1)
        error = result[f"{name}_identity_error"]
        sentence = f"{label}: ‖W‖² by the recursion (ours) over the measured, at the end"
        judged += [
            at_most(f"{label}: largest relative error of the identity with ⟨W,u⟩", 1e-9, error),
            agrees(f"{label}: ‖W‖² by (8) over the measured, at the end", 1.0, paper.mean(1), within=0.05),
            agrees(sentence, 1.0, ours.mean(1), within=0.05),
            at_least(f"{label}: the recursion is closer than (8): difference of mean |ln ratio|", 0.0, closer),
        ]
    return judged
