"""Adam's largest update stays under its bound, and where C < 0 grows with the exponent |C|/2 (CT Figures 3 and 11).

The entries that grow belong to rare characters: their gradients vanish, m falls as β1^n and √v as β2^(n/2). Their
quotient grows by ½ln(β1²/β2), the exact exponent, once the bias correction 1/(1-β1^n) has come to rest.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from plotly.graph_objects import Figure, Scatter
from plotly.subplots import make_subplots

from gyroscope.lab.bench import Bench
from gyroscope.lab.claim import Claim, at_least, at_most
from gyroscope.lab.ct._max_update import Training, bound, max_updates, shown
from gyroscope.lab.experiment import FloatArray, Result
from gyroscope.lab.picture import COLOURS, INK, PREDICTED, styled
from gyroscope.theory.stability import growth_rate, margin, normal_curve

COST = {"quick": "2 min", "paper": "days"}
COVERS = ("ct/fig11",)


@dataclass(frozen=True)
class Config(Training):
    """`points` pairs of betas along the normal curve through (0.9, 0.999), between two beta2."""

    points: int = 64
    lowest: float = 0.9525
    highest: float = 0.9685

    @classmethod
    def quick(cls) -> "Config":
        """One layer, nine points."""
        return cls(layers=1, heads=4, width=32, context=16, batch=8, steps=1010, seeds=3, points=9)

    @classmethod
    def paper(cls) -> "Config":
        """The paper's transformer, on characters."""
        return cls(layers=6, heads=6, width=384, context=256, batch=64, steps=1100, seeds=1)

    @property
    def betas(self) -> list[tuple[float, float]]:
        """The points, uniform in beta2 (the curve is nearly straight here)."""
        return [
            (float(normal_curve(0.9, 0.999, b)), float(b)) for b in np.linspace(self.lowest, self.highest, self.points)
        ]


def run(config: Config, bench: Bench) -> Result[Config]:
    """Train at every point."""
    return bench.over_parts(
        config, config.betas, lambda seed, betas: max_updates(config, betas, seed, bench.steps(config.steps))
    )


def unstable(config: Config) -> NDArray[np.bool_]:
    """At which points C < 0."""
    return np.array([margin(*betas) < 0 for betas in config.betas], dtype=np.bool_)


def exponents(config: Config, exact: bool) -> FloatArray:
    """The predicted exponent at each point."""
    return np.array([growth_rate(*betas, exact=exact) for betas in config.betas], dtype=np.float64)


def r2(measured: FloatArray, predicted: FloatArray) -> float:
    """The share of the variance of the measured slopes that a prediction explains, without any fit."""
    return float(1 - ((measured - predicted) ** 2).sum() / ((measured - measured.mean()) ** 2).sum())


def plot(result: Result[Config]) -> Figure:
    """(a) the largest update over time under its bounds, (b) the slopes, (c) where the points lie."""
    config = result.config
    titles = ["largest update ‖u_n‖_∞, bounds (5) dotted", "slope of ln‖u_n‖_∞", "points on the normal curve"]
    figure = make_subplots(cols=3, subplot_titles=titles, column_widths=[0.4, 0.35, 0.25], horizontal_spacing=0.1)
    n, betas = shown(config), config.betas
    c = np.array([margin(*pair) for pair in betas])
    for colour, i in zip(COLOURS, np.linspace(0, config.points - 1, min(config.points, 6)).astype(int), strict=False):
        line = {"color": colour, "width": 1.5}
        figure.add_trace(Scatter(x=n + 1, y=result["update"][0, i], line=line, name=f"C = {c[i]:.3f}"), row=1, col=1)
        dotted = Scatter(x=n + 1, y=bound(config, betas[i], False)[n], line=line | {"dash": "dot"}, showlegend=False)
        figure.add_trace(dotted, row=1, col=1)
    for seed in range(config.seeds):
        marker = {"color": INK, "size": 7}
        points = Scatter(
            x=c, y=result["slope"][seed], mode="markers", marker=marker, name="measured", showlegend=seed == 0
        )
        figure.add_trace(points, row=1, col=2)
    for exact, name, colour in ((False, "|C|/2", COLOURS[1]), (True, "½ln(β1²/β2)", COLOURS[0])):
        y = exponents(config, exact)
        figure.add_trace(Scatter(x=c, y=y, name=name, mode="lines", line=PREDICTED | {"color": colour}), row=1, col=2)
    dots = Scatter(x=[b for _, b in betas], y=[a for a, _ in betas], mode="markers", showlegend=False)
    figure.add_trace(dots.update(marker={"color": c, "colorscale": "Viridis_r", "size": 7}), row=1, col=3)
    figure.update_yaxes(type="log", exponentformat="power", dtick=2, row=1, col=1)
    for col, name in enumerate(("step", "C", "beta2"), 1):
        figure.update_xaxes(title_text=name, row=1, col=col)
    figure.update_yaxes(title_text="beta1", row=1, col=3)
    return styled(figure, "Adam outside its stable region: the largest update grows as predicted")


def claims(result: Result[Config]) -> list[Claim]:
    """Bounds, exponents, and which exponent is nearer."""
    config, low = result.config, unstable(result.config)
    slopes, points = result["slope"][:, low], f"over the {low.sum()} points with C < 0"
    paper, exact = ([r2(one, exponents(config, kind)[low]) for one in slopes] for kind in (False, True))
    over, over_exact = result["over_bound"], result["over_exact"].max(1)
    return [
        at_most("largest update over the bound (5), all steps n ≥ 1 where C > 0", 1.0, over[:, ~low].max(1)),
        at_most("largest update over the bound (5), all steps n ≥ 1 where C < 0", 1.0, over[:, low].max(1)),
        at_most("largest update over the exact bound (ours), up to rounding of float32", 1.001, over_exact),
        at_least(f"R² of the exponent |C|/2 {points}", 0.9, paper),
        at_least(f"R² of the exact exponent ½ln(β1²/β2) (ours) {points}", 0.9, exact),
        at_least("the data prefer the exact exponent: its R² minus that of |C|/2", 0.0, np.subtract(exact, paper)),
        at_least("share of late steps whose largest update is in one character's weights (ours), C < 0", 0.9,
                 result["of_a_character"][:, low].mean(1)),
    ]  # fmt: skip
