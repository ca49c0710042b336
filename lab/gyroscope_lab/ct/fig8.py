"""Under qk-norm query and key matrices stay orthogonal to their gradients, past ones nearly so (CT Figure 8).

At the same step they are exactly orthogonal. Earlier gradients are not. A few steps apart, their products with the
weights are as large as without qk-norm.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch.optim import AdamW

from gyroscope_lab.ct._text_training import PAPER_MODEL, TextTraining, query_and_key_rows, train_step
from gyroscope_lab.framework.claims import Claim, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, DECADES, Figure, Panels, shown_steps

COST = {"quick": "20 s", "paper": "a day"}
# With qk-norm and without.
KINDS = (True, False)
POINTS = 80


@dataclass(frozen=True, kw_only=True)
class Config(TextTraining):
    """A GPT with qk-norm and one without, under AdamW."""

    steps: int = 500
    lr: float = 1e-3
    weight_decay: float = 0.01
    parts: ClassVar = KINDS


# Sixteen matrices, five hundred steps.
QUICK = Config(seeds=5)
PAPER = Config(**PAPER_MODEL, steps=1000)


def measure(trial: Trial[Config]) -> Measurements:
    """Measure |⟨W(t_N), g(t_n)⟩| and the cosine of the last weights with every earlier gradient, for each matrix."""
    config = trial.config
    generator = trial.generator()
    model = config.model(trial.seed, qk_norm=trial.part)
    optimizer = AdamW(model.parameters(), config.lr, weight_decay=config.weight_decay, fused=True)
    gradients = []
    for _ in trial.steps(config.steps):
        W = query_and_key_rows(model).double()  # in the end, the weights at which the last g is taken
        train_step(model, config.random_batch(generator), optimizer)
        gradients.append(query_and_key_rows(model, gradient=True).double())
    g = torch.stack(gradients)
    inner = (g * W).sum(2).abs()
    cosine = inner / (g.norm(dim=2) * W.norm(dim=1))
    return {
        "inner": inner[shown_steps(config.steps, POINTS)].T.numpy(),
        "last": cosine[-1].max().item(),
        "cosine": cosine.square().mean().sqrt().item(),
        "mean": inner.mean().item(),
        "chance": g.shape[2] ** -0.5,
    }


def plot(result: Result[Config]) -> Figure:
    """Draw the inner products of every matrix of the first seed, with qk-norm and without."""
    n = shown_steps(result.config.steps, POINTS) + 1
    panels = Panels("with qk-norm", "without", shared_yaxes=True)
    for panel in range(len(KINDS)):
        for i, inner in enumerate(result["inner"][0, panel]):
            y = np.maximum(inner, 1e-12)  # below it is rounding
            panels.line(panel, n, y, colour=COLOURS[i % len(COLOURS)], width=1)
    panels.figure.update_yaxes(DECADES, dtick=2)
    panels.figure.update_yaxes(title_text="|⟨W(t_N), g(t_n)⟩|", col=1)
    panels.figure.update_xaxes(title_text="step n of the gradient")
    return panels.titled("The last query and key matrices and their past gradients, a line for each matrix")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether they are 0 at the last step, small before it, and smaller than without qk-norm."""
    last = result["last"]
    mean = result["mean"]
    past = result["cosine"][:, 0] / result["chance"][:, 0]
    return [
        at_most("with qk-norm: largest |cos(W, g)| of a matrix and its gradient of the same step", 1e-4, last[:, 0]),
        at_least("without qk-norm: the same", 1e-2, last[:, 1]),
        at_most(
            "with qk-norm: RMS cosine with past gradients, over that of random directions 1/sqrt(N) (ours)", 1.0, past
        ),
        at_most("mean |⟨W, g⟩| with qk-norm over that without", 1.0, mean[:, 0] / mean[:, 1]),
    ]
