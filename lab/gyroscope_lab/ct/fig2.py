"""Level curves of C, and the curves normal to them: Adam's updates are bounded where C > 0 (CT Figure 2).

The experiment measures how fast updates of torch's Adam grow under its worst gradients, g_i ∝ (β1/β2)^(n-i). They
become unbounded not at C = 0 but at β1² = β2, a little further out. So C > 0 is sufficient, but not necessary.
"""

from dataclasses import dataclass

import numpy as np
import torch
from plotly.graph_objects import Contour, Heatmap
from torch.optim import Adam

from gyroscope.theory.stability import growth_rate, level_curve, margin, normal_curve, update_bound
from gyroscope.tools import Array
from gyroscope_lab.framework.claims import Claim, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels

COST = {"quick": "30 s", "paper": "2 min"}
# A slope of ln‖u_n‖_∞ that counts as growth.
GROWS = 1e-3


@dataclass(frozen=True)
class Config:
    """A grid of betas, and two run lengths between which growth is measured. Nothing here is random."""

    points: int = 15
    lowest: float = 0.5
    highest: float = 0.99
    lengths: tuple[int, int] = (200, 400)
    seeds: int = 1

    @property
    def grid(self) -> Array:
        """The values of each beta."""
        return np.linspace(self.lowest, self.highest, self.points)

    # Row by row of the grid: all beta1 at one beta2.
    parts = grid


# A coarse grid.
QUICK = Config()
# A fine grid.
PAPER = Config(points=40)


def measure(trial: Trial[Config]) -> Measurements:
    """Measure d ln‖u_n‖_∞/dn at each beta1."""
    short, long = trial.config.lengths
    after_short, after_long = (last_update(trial.config.grid, float(trial.part), n) for n in (short, long))
    return {"growth": (np.log(after_long) - np.log(after_short)) / (long - short), "update": after_long}


def last_update(beta1: Array, beta2: float, n: int) -> Array:
    """Return u_n of torch's Adam for each beta1, under its worst gradients of n+1 steps, in float64."""
    weights = [torch.zeros(1, dtype=torch.float64, requires_grad=True) for _ in beta1]
    groups = [{"params": [w], "betas": (float(b), beta2)} for w, b in zip(weights, beta1, strict=True)]
    adam = Adam(groups, lr=1.0, eps=0.0)  # with lr = 1 the update is the difference of weights
    for i in range(n + 1):
        before = torch.stack([w.detach().clone() for w in weights])
        for w, b in zip(weights, beta1, strict=True):
            w.grad = torch.tensor([(b / beta2) ** (n - i)], dtype=torch.float64)
        adam.step()
    after = torch.stack([w.detach() for w in weights])
    return np.asarray((before - after).abs().flatten().numpy())


def plot(result: Result[Config]) -> Figure:
    """Draw measured growth as colour, level curves of C in grey, normal curves dashed, and both boundaries in black."""
    config = result.config
    grid = config.grid
    panels = Panels()
    bar = {"title": "growth<br>per step", "len": 0.8}
    growth = result["growth"][0].T
    panels.figure.add_trace(
        Heatmap(x=grid, y=grid, z=growth, colorscale="YlGnBu", zmin=0, colorbar=bar, name="measured")
    )
    fine = np.linspace(config.lowest, config.highest, 60)
    c = margin(fine[:, None], fine[None, :])
    levels = {"start": -0.8, "end": 2.0, "size": 0.2, "coloring": "none", "showlabels": True}
    grey = {"color": COLOURS[6], "width": 1}
    curves = Contour(x=fine, y=fine, z=c, contours=levels, line=grey, showscale=False)
    panels.figure.add_trace(curves.update(name="level curves of C", showlegend=True))
    for start in (0.6, 0.7, 0.8, 0.9, 0.999):  # each through (beta1, beta2) = (0.9, start)
        beta2 = np.linspace(config.lowest, config.highest, 200)
        cubes = 0.9**3 + 2 * (start**3 - beta2**3)
        inside = beta2[(cubes < config.highest**3) & (cubes > config.lowest**3)]
        panels.predicted(0, inside, normal_curve(0.9, start, inside), "normal curves", COLOURS[1])
    for name, y, dash in (("C = 0", level_curve(0.0, fine), "solid"), ("β1² = β2", np.sqrt(fine), "dot")):
        shown = np.asarray(y) <= config.highest
        panels.line(0, fine[shown], np.asarray(y)[shown], name, width=2.5, dash=dash)
    panels.figure.update_xaxes(title_text="beta2", range=[config.lowest, config.highest])
    panels.figure.update_yaxes(title_text="beta1", range=[config.lowest, config.highest])
    return panels.titled("Growth of the largest update under the worst gradients, and level curves of C")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge where the update is bounded, and how fast it grows elsewhere."""
    growth = result["growth"][0]
    beta1 = result.config.grid[None, :]
    beta2 = result.config.grid[:, None]  # as measured: a row is one beta2
    c = np.asarray(margin(beta1, beta2))
    exact = np.asarray(growth_rate(beta1, beta2, exact=True))
    over = result["update"][0] / update_bound(result.config.lengths[1], beta1, beta2)
    grows = growth > GROWS
    clear = np.abs(exact - GROWS) > 0.2 * GROWS  # betas on the very edge prove nothing
    right = (grows == (exact > GROWS))[clear]
    off = np.abs(growth - exact)[exact > 0.01].max()
    return [
        at_most("largest update over the bound (5), all betas with C > 0, up to rounding", 1.000001, over[c > 0].max()),
        at_most("largest update over the bound (5), all betas with C < 0", 1.0, over[c < 0].max()),
        at_least("share of betas where the largest update grows if and only if C < 0", 0.95, (grows == (c < 0)).mean()),
        at_least("share of betas where it grows if and only if β1² > β2 (ours)", 1.0, right.mean()),
        at_most("distance of the growth from ½ln(β1²/β2) where that is above 0.01 (ours), the largest", 0.005, off),
    ]  # fmt: skip
