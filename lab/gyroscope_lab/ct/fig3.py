"""Adam's largest update stays under its bound, and where C < 0 grows with the exponent |C|/2 (CT Figures 3 and 11).

The entries that grow belong to rare characters. Their gradients vanish, m falls as β1^n and √v as β2^(n/2). The
quotient grows with the exact exponent ½ln(β1²/β2) once the bias correction 1/(1-β1^n) is constant.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim import Adam

from gyroscope.theory.stability import growth_rate, margin, normal_curve, update_bound
from gyroscope.tools import Array
from gyroscope_lab.ct._text_training import PAPER_MODEL, TextTraining, train_step
from gyroscope_lab.framework.claims import Claim, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, DECADES, Figure, Panels

COST = {"quick": "1 min", "paper": "days"}
COVERS = ("ct/fig11",)
POINTS = 120
# The slope at step n is taken between n-5 and n+5, as in the paper.
WINDOW = 5


@dataclass(frozen=True, kw_only=True)
class BetasConfig(TextTraining):
    """Adam without weight decay at `points` pairs of betas, between two beta2.

    `double` trains in float64, where v does not underflow.
    """

    steps: int
    points: int
    lowest: float
    highest: float
    lr: float = 1e-3
    double: bool = False

    @property
    def parts(self) -> list[tuple[float, float]]:
        """The pairs (beta1, beta2), uniform in beta2."""
        return [(self.beta1(b), float(b)) for b in np.linspace(self.lowest, self.highest, self.points)]

    def beta1(self, beta2: float) -> float:
        """Return beta1 at beta2 on the curve of all pairs."""
        raise NotImplementedError

    @property
    def shown(self) -> NDArray[np.intp]:
        """The steps that are kept for the figure, closer together at the beginning."""
        return np.unique(np.geomspace(1, self.steps, POINTS).astype(np.intp)) - 1

    def bound(self, betas: tuple[float, float], exact: bool) -> Array:
        """Return the bound (5), or the exact one, at every step."""
        return np.asarray(update_bound(np.arange(self.steps), *betas, exact=exact))


@dataclass(frozen=True, kw_only=True)
class Config(BetasConfig):
    """Pairs of betas along the normal curve through (0.9, 0.999), which is nearly straight between these beta2."""

    points: int = 64
    lowest: float = 0.9525
    highest: float = 0.9685

    def beta1(self, beta2: float) -> float:
        """Return beta1 on the normal curve."""
        return float(normal_curve(0.9, 0.999, beta2))

    @property
    def unstable(self) -> NDArray[np.bool_]:
        """At which points C < 0."""
        return np.array([margin(*betas) < 0 for betas in self.parts], dtype=np.bool_)

    def exponents(self, exact: bool) -> Array:
        """Return the predicted exponent at each point."""
        return np.array([growth_rate(*betas, exact=exact) for betas in self.parts], dtype=np.float64)


# One layer, nine points.
QUICK = Config(layers=1, steps=1010, points=9)
PAPER = Config(**PAPER_MODEL, steps=1100)


def measure(trial: Trial[BetasConfig]) -> Measurements:
    """Measure the largest entry of u_n = (θ_n - θ_{n+1})/lr, and how often it is in one character's weights."""
    config = trial.config
    betas: tuple[float, float] = trial.part
    generator = trial.generator()
    model = config.model(trial.seed).to(torch.float64 if config.double else torch.float32)
    # eps so small that it never bounds an update: the bound under test is that of Adam without eps.
    optimizer = Adam(model.parameters(), config.lr, betas, eps=1e-30, fused=True)
    largest = np.zeros(config.steps)
    where = np.zeros(config.steps, dtype=int)
    for n in trial.steps(config.steps):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        train_step(model, config.random_batch(generator), optimizer)
        moves = [(old - new.detach()).abs().max() for old, new in zip(before, model.parameters(), strict=True)]
        largest[n] = torch.stack(moves).max() / config.lr
        where[n] = torch.stack(moves).argmax()
    # One row of these two matrices belongs to one character. A rare one has no gradient for many steps.
    rows = [i for i, (name, _) in enumerate(model.named_parameters()) if name in ("token.weight", "head.weight")]
    return {
        "update": largest[config.shown],
        "slope": slope(largest),
        "of_a_character": np.isin(where[config.steps // 2 :], rows).mean(),
        # (5) is zero at n = 0, where C = 0.
        "over_bound": (largest[1:] / config.bound(betas, exact=False)[1:]).max(),
        "over_exact": (largest / config.bound(betas, exact=True)).max(),
    }


def slope(largest: Array) -> float:
    """Return d ln u/dn: the median slope of the second half, each slope over ten steps as in the paper.

    The median is used because the largest entry falls whenever its gradient returns, and then grows again.
    """
    log = np.log(largest[len(largest) // 2 - WINDOW :])
    return float(np.median((log[2 * WINDOW :] - log[: -2 * WINDOW]) / (2 * WINDOW)))


def r2(measured: Array, predicted: Array) -> float:
    """Return the share of the variance of the measured slopes that a prediction explains, without any fit."""
    return float(1 - ((measured - predicted) ** 2).sum() / ((measured - measured.mean()) ** 2).sum())


def plot(result: Result[Config]) -> Figure:
    """Draw (a) the largest update over time under its bounds, (b) the slopes, (c) the points in the plane."""
    config = result.config
    titles = ("largest update ‖u_n‖_∞, bounds (5) dotted", "slope of ln‖u_n‖_∞", "points on the normal curve")
    panels = Panels(*titles, column_widths=[0.4, 0.35, 0.25], horizontal_spacing=0.1)
    n = config.shown
    betas = config.parts
    c = np.array([margin(*pair) for pair in betas])
    drawn = np.linspace(0, config.points - 1, min(config.points, 6)).astype(int)
    for colour, i in zip(COLOURS, drawn, strict=False):
        panels.line(0, n + 1, result["update"][0, i], f"C = {c[i]:.3f}", colour, width=1.5)
        panels.line(0, n + 1, config.bound(betas[i], False)[n], colour=colour, width=1.5, dash="dot")
    for slopes in result["slope"]:
        panels.dots(1, c, slopes, "measured", size=7)
    for exact, name, colour in ((False, "|C|/2", COLOURS[1]), (True, "½ln(β1²/β2)", COLOURS[0])):
        panels.predicted(1, c, config.exponents(exact), name, colour)
    panels.dots(2, [b for _, b in betas], [a for a, _ in betas], color=c, colorscale="Viridis_r", size=7)
    panels.figure.update_yaxes(DECADES, dtick=2, col=1)
    for column, name in enumerate(("step", "C", "beta2"), 1):
        panels.figure.update_xaxes(title_text=name, col=column)
    panels.figure.update_yaxes(title_text="beta1", col=3)
    return panels.titled("Adam outside its stable region: the largest update grows as predicted")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the bounds, the exponents, and which exponent is nearer."""
    config = result.config
    low = config.unstable
    points = f"over the {low.sum()} points with C < 0"
    paper, exact = (
        [r2(slopes, config.exponents(kind)[low]) for slopes in result["slope"][:, low]] for kind in (False, True)
    )
    over = result["over_bound"]
    over_exact = result["over_exact"].max(1)
    rare = result["of_a_character"][:, low].mean(1)
    return [
        at_most("largest update over the bound (5), all steps n ≥ 1 where C > 0", 1.0, over[:, ~low].max(1)),
        at_most("largest update over the bound (5), all steps n ≥ 1 where C < 0", 1.0, over[:, low].max(1)),
        at_most("largest update over the exact bound (ours), up to rounding of float32", 1.001, over_exact),
        at_least(f"R² of the exponent |C|/2 {points}", 0.9, paper),
        at_least(f"R² of the exact exponent ½ln(β1²/β2) (ours) {points}", 0.9, exact),
        at_least("the data prefer the exact exponent: its R² minus that of |C|/2", 0.0, np.subtract(exact, paper)),
        at_least("share of late steps whose largest update is in one character's weights (ours), C < 0", 0.9, rare),
    ]
