"""Where C < 0, annealing lr by exp(-n|C|/2) bounds the updates and does not repair training (CT Figure 14).

The rate of (19) cancels the growth of the bound (5), but only weights with vanishing gradients grow like that. All
others soon stop moving. The same happens with the exact exponent ½ln(β1²/β2), which is smaller than |C|/2 (ours).
Differences from the paper: a GPT of one layer and width 32 on characters of the standard library, and no warmup.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch.optim import Adam

from gyroscope.theory.stability import margin, normal_curve
from gyroscope.tools import Array
from gyroscope_lab.ct._annealing import annealed_lr
from gyroscope_lab.ct._text_training import PAPER_MODEL, TextTraining, train_step
from gyroscope_lab.framework.arms import capped_loss
from gyroscope_lab.framework.claims import Claim, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, DECADES, Figure, Panels, shown_steps
from gyroscope_lab.tasks.text import standard_library

COST = {"quick": "50 s", "paper": "days"}
POINTS = 80
TEST_WINDOWS = 500
STABLE = (0.9, 0.999)
CONSTANT = "constant"
ANNEALED = "annealed by (19)"
EXACT = "annealed by the exact exponent"


@dataclass(frozen=True, kw_only=True)
class Config(TextTraining):
    """Adam at (0.9, 0.999), and at betas with C < 0 on the normal curve through it, with three schedules of lr."""

    steps: int
    beta2: tuple[float, ...]
    lr: float = 1e-3

    @property
    def betas(self) -> list[tuple[float, float]]:
        """The pairs (beta1, beta2) with C < 0."""
        return [(float(normal_curve(*STABLE, beta2)), beta2) for beta2 in self.beta2]

    @property
    def parts(self) -> list[tuple[str, tuple[float, float]]]:
        """A schedule of lr and a pair of betas. The last pair is stable and needs no annealing."""
        return [(rate, betas) for rate in (CONSTANT, ANNEALED, EXACT) for betas in self.betas] + [(CONSTANT, STABLE)]

    def places(self, rate: str) -> list[int]:
        """Return the positions of the parts with a schedule of lr and C < 0."""
        return [i for i, (name, betas) in enumerate(self.parts) if name == rate and betas != STABLE]

    def rates(self, rate: str, betas: tuple[float, float]) -> Array:
        """Return lr at every step."""
        if rate == CONSTANT:
            return np.full(self.steps, self.lr)
        return np.asarray(annealed_lr(np.arange(self.steps), self.lr, *betas, exact=rate == EXACT))


# Two pairs with C < 0, the second nearer to the edge.
QUICK = Config(layers=1, context=32, batch=12, steps=500, beta2=(0.953, 0.958))
PAPER = Config(**PAPER_MODEL, steps=3000, beta2=tuple(np.linspace(0.9525, 0.9615, 32).tolist()))


def measure(trial: Trial[Config]) -> Measurements:
    """Measure the largest change of a weight at a step, in units of the first lr, and the loss on data held out."""
    config = trial.config
    rate, betas = trial.part
    rates = config.rates(rate, betas)
    generator = trial.generator()
    model = config.model(trial.seed)
    training, test = standard_library().split()
    optimizer = Adam(model.parameters(), config.lr, betas, eps=1e-30, fused=True)
    largest = np.zeros(config.steps)
    for n in trial.steps(config.steps):
        optimizer.param_groups[0]["lr"] = float(rates[n])
        before = [parameter.detach().clone() for parameter in model.parameters()]
        train_step(model, training.batch(config.batch, config.context, generator), optimizer)
        moves = [(old - new.detach()).abs().max() for old, new in zip(before, model.parameters(), strict=True)]
        largest[n] = torch.stack(moves).max() / config.lr
    with torch.no_grad():
        loss = model.loss(*test.batch(TEST_WINDOWS, config.context, trial.generator())).item()
    return {
        "update": largest[shown_steps(config.steps, POINTS)],
        "last": largest[-config.steps // 10 :].max(),
        "loss": capped_loss(loss),
    }


def plot(result: Result[Config]) -> Figure:
    """Draw (a) the largest change of a weight over time, (b) the loss at the end."""
    config = result.config
    titles = ("largest change of a weight at a step, in lr", "loss on data held out, at the end")
    panels = Panels(*titles, horizontal_spacing=0.1)
    n = shown_steps(config.steps, POINTS) + 1
    c = np.array([margin(*betas) for betas in config.betas])
    for rate, colour in zip((CONSTANT, ANNEALED, EXACT), COLOURS, strict=False):
        for place in config.places(rate):
            panels.line(0, n, np.maximum(result["update"][0, place], 1e-12), rate, colour, width=1.5)
        losses = result["loss"][:, config.places(rate)]
        panels.line(1, c, losses.mean(0), rate, colour)
        for of_seed in losses:
            panels.dots(1, c, of_seed, colour=colour, size=7)
    panels.level(1, float(result["loss"][:, -1].mean()), dash="dot")
    panels.figure.add_annotation(
        text="betas (0.9, 0.999), constant", x=1, y=result["loss"][:, -1].mean(), xref="x2 domain", yref="y2",
        showarrow=False, xanchor="right", yanchor="bottom",
    )  # fmt: skip
    panels.figure.update_yaxes(DECADES, dtick=2, col=1)
    panels.figure.update_xaxes(title_text="step", col=1)
    panels.figure.update_xaxes(title_text="C", col=2)
    return panels.titled("Annealing bounds the updates where C < 0, and does not repair training")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether changes become small, and whether the loss stays above that of stable betas."""
    annealed, exact = (result.config.places(rate) for rate in (ANNEALED, EXACT))
    stable = result["loss"][:, -1]
    late = "largest change of a weight in the last tenth of the run, in lr, mean over C < 0"
    over = "loss over that of betas (0.9, 0.999), mean over C < 0"
    return [
        at_most(f"{late}: annealed by (19)", 0.1, result["last"][:, annealed].mean(1)),
        at_least(f"{over}: annealed by (19)", 1.1, result["loss"][:, annealed].mean(1) / stable),
        at_least(f"{over}: annealed by the exact exponent (ours)", 1.1, result["loss"][:, exact].mean(1) / stable),
    ]
