"""On the boundary C = 0 Adam's largest update stays bounded, although its bound grows as sqrt(n) (CT Figure 7).

The paper suspects rounding. The reason is the discrete step. On C = 0 it is still stable, because β1² < β2 there, and
the exact bound is a constant. (5) itself is exceeded at n = 1, because it has sqrt(n) instead of sqrt(n+1). In float32,
v of a vanished gradient underflows at β2 = 0.5 and the update exceeds any bound, so the experiment uses float64.
"""

from dataclasses import dataclass

import numpy as np

from gyroscope.theory.stability import level_curve
from gyroscope_lab.ct._text_training import PAPER_MODEL
from gyroscope_lab.ct.fig3 import BetasConfig
from gyroscope_lab.ct.fig3 import measure as measure  # the same training, at other betas
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Result
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels

COST = {"quick": "30 s", "paper": "a day"}


@dataclass(frozen=True, kw_only=True)
class Config(BetasConfig):
    """Pairs of betas on the level curve C = 0."""

    points: int = 11
    lowest: float = 0.5
    highest: float = 0.99

    def beta1(self, beta2: float) -> float:
        """Return beta1 on the level curve."""
        return float(level_curve(0.0, beta2))


# One layer, five points.
QUICK = Config(layers=1, steps=600, points=5, double=True)
PAPER = Config(**PAPER_MODEL, steps=1100, double=True)


def plot(result: Result[Config]) -> Figure:
    """Draw the largest update at every point, with the bound (5) dotted and the exact one dashed."""
    config = result.config
    n = config.shown
    panels = Panels()
    for i, betas in enumerate(config.parts):
        colour = COLOURS[i % len(COLOURS)]
        name = f"beta1 = {betas[0]:.3f}, beta2 = {betas[1]:.3f}"
        panels.line(0, n + 1, result["update"][0, i], name, colour)
        for exact, dash in ((False, "dot"), (True, "dash")):
            panels.line(0, n[1:] + 1, config.bound(betas, exact)[n[1:]], name, colour, width=1, dash=dash)
    panels.figure.update_xaxes(title_text="step", type="log", dtick=1)
    panels.figure.update_yaxes(type="log", tickvals=[0.5, 1, 2, 5, 10, 20, 50, 100])
    panels.figure.update_yaxes(title_text="largest update ‖u_n‖_∞")
    return panels.titled("On C = 0 updates stay bounded: (5) grows as sqrt(n) (dotted), the exact bound does not")


def powers(result: Result[Config]) -> list[float]:
    """Return the largest p over all points in ‖u_n‖_∞ ∝ n^p for each seed, fitted over the second half of the run."""
    n = result.config.shown
    late = n >= result.config.steps // 2
    logs = np.log(result["update"][:, :, late])
    return [max(float(np.polyfit(np.log(n[late] + 1), y, 1)[0]) for y in of_seed) for of_seed in logs]


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether the bound holds and is not tight, and whether the exact one explains it."""
    return [
        at_most("largest update over the bound (5), all steps n ≥ 1 and points", 1.0, result["over_bound"].max(1)),
        at_most("largest update over the exact bound (ours), up to rounding", 1.001, result["over_exact"].max(1)),
        at_most("power of n with which the largest update grows, where (5) has ½", 0.25, powers(result)),
    ]
