"""The loss on data held out along curves of (beta2, beta1): it falls faster where C is larger, and is lost where C < 0.

Differences from the paper: a GPT of one layer and width 32 on characters of the standard library replaces one of 30
million parameters on C4. There are 1200 steps instead of 3000, and 7 pairs of betas instead of 128, close together
where C < 0. Its output layer is not tied to its embedding, so that characters that do not occur have no gradient, as
rare tokens have none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gyroscope.theory.stability import level_curve, margin, normal_curve
from gyroscope.tools import Array
from gyroscope_lab.ct._presets import PRESETS
from gyroscope_lab.framework.arms import LOST, Arms
from gyroscope_lab.framework.arms import train_course as measure
from gyroscope_lab.framework.claims import Claim, at_least, at_most
from gyroscope_lab.framework.experiment import Result
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels

__all__ = ["measure"]

CLAIMS = {
    "fig4": "Along the normal curve through (0.999, 0.9), the loss falls faster for larger C, and rises where C < 0",
    "fig12": "Along the normal curve through (0.95, 0.9), the loss falls faster for larger C, and rises where C < 0",
    "fig13": "Along the level curve through (0.999, 0.9), the loss falls more slowly near the origin",
}
COST = {
    "fig4": {"quick": "2 min", "paper": "months"},
    "fig12": {"quick": "2 min", "paper": "months"},
    "fig13": {"quick": "2 min", "paper": "months"},
}
# Evaluations of a run. The paper shows the loss after 1000 and 3000 steps, a third of the run and all of it.
EVALUATIONS = 3
THIRD = EVALUATIONS // 3


@dataclass(frozen=True)
class Config(Arms):
    """Adam at pairs of betas on a curve, sorted by beta2. On a level curve all of them have the same C."""

    level: bool = False

    @property
    def betas(self) -> Array:
        """The pairs (beta1, beta2), one in each row."""
        return np.array([settings["betas"] for settings in self.arms.values()], dtype=np.float64)

    @property
    def margins(self) -> Array:
        """C of each pair."""
        return np.array([margin(*pair) for pair in self.betas], dtype=np.float64)


def _along(curve: Callable[[float], Any], beta2s: Sequence[float], base: dict[str, Any], level: bool = False) -> Config:
    betas = [(float(curve(beta2)), float(beta2)) for beta2 in beta2s]
    arms = {f"beta2 = {beta2:.4f}": {"betas": (beta1, beta2)} for beta1, beta2 in betas}
    return Config({**base, "evaluations": EVALUATIONS, "track": False}, arms, level=level)


# beta1, beta2 of the point through which a curve goes -> beta1 at another beta2.
FIG4 = partial(normal_curve, 0.9, 0.999)
FIG12 = partial(normal_curve, 0.9, 0.95)
FIG13 = partial(level_curve, float(margin(0.9, 0.999)))

SMALL = {
    **PRESETS["gpt-adam"],
    "model": "gpt:layers=1,width=32,context=32,tied=false",
    "batch_size": 12,
    "steps": 1200,
    "warmup": 40,
}
QUICK = {
    "fig4": _along(FIG4, (0.952, 0.955, 0.959, 0.963, 0.97, 0.985, 0.999), SMALL),
    "fig12": _along(FIG12, (0.898, 0.906, 0.915, 0.924, 0.94, 0.965, 0.999), SMALL),
    "fig13": _along(FIG13, (0.3, 0.5, 0.7, 0.85, 0.95, 0.99, 0.999), SMALL, level=True),
}
PAPER = {
    "fig4": _along(FIG4, np.linspace(0.952, 0.999, 128).tolist(), PRESETS["gpt-adam"]),
    "fig12": _along(FIG12, np.linspace(0.898, 0.999, 128).tolist(), PRESETS["gpt-adam"]),
    "fig13": _along(FIG13, np.linspace(0.1, 0.999, 128).tolist(), PRESETS["gpt-adam"], level=True),
}


def best_losses(result: Result[Config]) -> tuple[Array, Array]:
    """Return the best loss in the first third of the run and in all of it, (seeds, points)."""
    losses = result["losses"]
    return losses[:, :, :THIRD].min(2), losses.min(2)


def rank_correlation(x: Array, y: Array) -> float:
    """Return Spearman's correlation of distinct values."""
    return float(np.corrcoef(x.argsort().argsort(), y.argsort().argsort())[0, 1])


def plot(result: Result[Config]) -> Figure:
    """Draw (a) the loss over time, (b) the best loss along the curve, (c) the points in the plane."""
    config = result.config
    across = config.betas[:, 1] if config.level else config.margins
    titles = ("loss over the run, mean of the seeds", "best loss", "points on the curve")
    panels = Panels(*titles, column_widths=[0.38, 0.38, 0.24], horizontal_spacing=0.09)
    steps = np.arange(1, EVALUATIONS + 1) * config.base["steps"] / EVALUATIONS
    drawn = np.linspace(0, len(across) - 1, min(len(across), len(COLOURS))).astype(int)
    name = "beta2" if config.level else "C"
    for colour, i in zip(COLOURS, drawn, strict=False):
        panels.line(0, steps, result["losses"][:, i].mean(0), f"{name} = {across[i]:.3f}", colour)
    if (result["losses"] >= LOST).any():
        for panel in (0, 1) if (best_losses(result)[0] >= LOST).any() else (0,):
            panels.level(panel, LOST, dash="dot")
        panels.figure.add_annotation(
            text=f"{LOST:g} or more: lost", x=0, y=LOST, xref="x domain", yref="y",
            showarrow=False, xanchor="left", yanchor="top",
        )  # fmt: skip
    labels = ("after a third of the run", "at its end")
    for label, colour, best in zip(labels, COLOURS[:2], best_losses(result), strict=True):
        panels.line(1, across, best.mean(0), label, colour, dash="dot")
        for losses in best:
            panels.dots(1, across, losses, colour=colour, size=6)
    if not config.level:
        panels.moment(1, 0.0)
    panels.dots(2, config.betas[:, 1], config.betas[:, 0], color=config.margins, colorscale="Viridis_r", size=7)
    for column, axis in enumerate(("step", name, "beta2"), 1):
        panels.figure.update_xaxes(title_text=axis, col=column)
    panels.figure.update_yaxes(title_text="loss on data held out", col=1)
    panels.figure.update_yaxes(title_text="beta1", col=3)
    curve = "a level curve of C" if config.level else "a curve normal to the level curves of C"
    return panels.titled(f"The loss on data held out, for betas along {curve}")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge which betas learn faster, which end alike, and how much worse the loss is if C < 0."""
    early, best = best_losses(result)
    if result.config.level:
        return _claims_of_a_level_curve(result.config, early, best)
    c = result.config.margins
    stable = c > 0
    faster = [rank_correlation(c[stable], losses[stable]) for losses in early]
    spread = best[:, stable].max(1) / best[:, stable].min(1)
    unstable = best[:, ~stable].mean(1) / best[:, stable].mean(1)
    return [
        at_most("rank correlation of C > 0 with the best loss after a third of the run", -0.5, faster),
        at_most("largest over smallest best loss where C > 0, at the end", 1.05, spread),
        at_least("best loss where C < 0 over that where C > 0, means over the points, at the end", 1.05, unstable),
        at_least("best loss at the lowest C over that at the highest, at the end", 1.1, best[:, 0] / best[:, -1]),
    ]


def _claims_of_a_level_curve(config: Config, early: Array, best: Array) -> list[Claim]:
    beta2 = config.betas[:, 1]
    faster = [rank_correlation(beta2, losses) for losses in early]
    return [
        at_most("rank correlation of beta2 with the best loss after a third of the run", -0.5, faster),
        at_least("best loss at the lowest beta2 over that at the highest, a third", 1.0, early[:, 0] / early[:, -1]),
        at_most("largest over smallest best loss at the end: no pair is lost (ours)", 1.1, best.max(1) / best.min(1)),
    ]
