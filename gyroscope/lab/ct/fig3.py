"""Adam's largest update stays under its bound, and where C < 0 grows with the exponent |C|/2 (CT Figures 3 and 11).

The entries that grow belong to rare characters: their gradients vanish, m falls as β1^n and √v as β2^(n/2). Their
quotient grows by ½ln(β1²/β2), the exact exponent, once the bias correction 1/(1-β1^n) has come to rest.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from plotly.graph_objects import Figure, Scatter
from plotly.subplots import make_subplots

from gyroscope._types import Array
from gyroscope.lab.claims import Claim, at_least, at_most
from gyroscope.lab.ct._largest_update import BetasConfig, bound, measure, shown
from gyroscope.lab.ct._text_training import PAPER_MODEL
from gyroscope.lab.experiment import Result
from gyroscope.lab.figures import COLOURS, INK, PREDICTED, styled
from gyroscope.theory.stability import growth_rate, margin, normal_curve

__all__ = ["COST", "COVERS", "PAPER", "QUICK", "claims", "measure", "plot"]

COST = {"quick": "2 min", "paper": "days"}
COVERS = ("ct/fig11",)


@dataclass(frozen=True, kw_only=True)
class Config(BetasConfig):
    """Pairs of betas along the normal curve through (0.9, 0.999), which is nearly straight between these beta2."""

    points: int = 64
    lowest: float = 0.9525
    highest: float = 0.9685

    def beta1(self, beta2: float) -> float:
        """On the normal curve."""
        return float(normal_curve(0.9, 0.999, beta2))


# One layer, nine points.
QUICK = Config(layers=1, steps=1010, points=9)
PAPER = Config(**PAPER_MODEL, steps=1100)


def unstable(config: Config) -> NDArray[np.bool_]:
    """At which points C < 0."""
    return np.array([margin(*betas) < 0 for betas in config.parts], dtype=np.bool_)


def exponents(config: Config, exact: bool) -> Array:
    """The predicted exponent at each point."""
    return np.array([growth_rate(*betas, exact=exact) for betas in config.parts], dtype=np.float64)


def r2(measured: Array, predicted: Array) -> float:
    """The share of the variance of the measured slopes that a prediction explains, without any fit."""
    return float(1 - ((measured - predicted) ** 2).sum() / ((measured - measured.mean()) ** 2).sum())


def plot(result: Result[Config]) -> Figure:
    """(a) the largest update over time under its bounds, (b) the slopes, (c) where the points lie."""
    config = result.config
    titles = ["largest update ‖u_n‖_∞, bounds (5) dotted", "slope of ln‖u_n‖_∞", "points on the normal curve"]
    figure = make_subplots(cols=3, subplot_titles=titles, column_widths=[0.4, 0.35, 0.25], horizontal_spacing=0.1)
    n = shown(config)
    betas = config.parts
    c = np.array([margin(*pair) for pair in betas])
    drawn = np.linspace(0, config.points - 1, min(config.points, 6)).astype(int)
    for colour, i in zip(COLOURS, drawn, strict=False):
        line = {"color": colour, "width": 1.5}
        figure.add_scatter(x=n + 1, y=result["update"][0, i], line=line, name=f"C = {c[i]:.3f}", row=1, col=1)
        dotted = Scatter(x=n + 1, y=bound(config, betas[i], False)[n], line=line | {"dash": "dot"}, showlegend=False)
        figure.add_trace(dotted, row=1, col=1)
    for seed in range(config.seeds):
        points = Scatter(x=c, y=result["slope"][seed], mode="markers", marker={"color": INK, "size": 7})
        figure.add_trace(points.update(name="measured", showlegend=seed == 0), row=1, col=2)
    for exact, name, colour in ((False, "|C|/2", COLOURS[1]), (True, "½ln(β1²/β2)", COLOURS[0])):
        y = exponents(config, exact)
        figure.add_scatter(x=c, y=y, name=name, mode="lines", line=PREDICTED | {"color": colour}, row=1, col=2)
    dots = Scatter(x=[b for _, b in betas], y=[a for a, _ in betas], mode="markers", showlegend=False)
    figure.add_trace(dots.update(marker={"color": c, "colorscale": "Viridis_r", "size": 7}), row=1, col=3)
    figure.update_yaxes(type="log", exponentformat="power", dtick=2, row=1, col=1)
    for col, name in enumerate(("step", "C", "beta2"), 1):
        figure.update_xaxes(title_text=name, row=1, col=col)
    figure.update_yaxes(title_text="beta1", row=1, col=3)
    return styled(figure, "Adam outside its stable region: the largest update grows as predicted")


def claims(result: Result[Config]) -> list[Claim]:
    """Bounds, exponents, and which exponent is nearer."""
    config = result.config
    low = unstable(config)
    points = f"over the {low.sum()} points with C < 0"
    paper, exact = (
        [r2(slopes, exponents(config, kind)[low]) for slopes in result["slope"][:, low]] for kind in (False, True)
    )
    over = result["over_bound"]
    rare = result["of_a_character"][:, low].mean(1)
    return [
        at_most("largest update over the bound (5), all steps n ≥ 1 where C > 0", 1.0, over[:, ~low].max(1)),
        at_most("largest update over the bound (5), all steps n ≥ 1 where C < 0", 1.0, over[:, low].max(1)),
        at_most(
            "largest update over the exact bound (ours), up to rounding of float32", 1.001, result["over_exact"].max(1)
        ),
        at_least(f"R² of the exponent |C|/2 {points}", 0.9, paper),
        at_least(f"R² of the exact exponent ½ln(β1²/β2) (ours) {points}", 0.9, exact),
        at_least("the data prefer the exact exponent: its R² minus that of |C|/2", 0.0, np.subtract(exact, paper)),
        at_least("share of late steps whose largest update is in one character's weights (ours), C < 0", 0.9, rare),
    ]
