"""On the boundary C = 0 Adam's largest update stays bounded, although its bound grows as sqrt(n) (CT Figure 7).

The paper suspects rounding. The discrete step has another reason: on C = 0 it is still stable, for β1² < β2 there, and
the exact bound is a constant. (5) itself is exceeded at n = 1, where its sqrt(n) would have to be sqrt(n+1). In float32
v of a vanished gradient underflows at β2 = 0.5, and the update passes any bound: hence float64.
"""

from dataclasses import dataclass

import numpy as np
from plotly.graph_objects import Figure, Scatter

from gyroscope.lab.bench import Bench
from gyroscope.lab.claim import Claim, at_most
from gyroscope.lab.ct._max_update import Training, bound, max_updates, shown
from gyroscope.lab.experiment import Result
from gyroscope.lab.picture import COLOURS, styled
from gyroscope.theory.stability import level_curve

COST = {"quick": "1 min", "paper": "a day"}


@dataclass(frozen=True)
class Config(Training):
    """`points` pairs of betas on the level curve C = 0, uniform in beta2."""

    points: int = 11
    lowest: float = 0.5
    highest: float = 0.99

    @classmethod
    def quick(cls) -> "Config":
        """One layer, five points."""
        return cls(layers=1, heads=4, width=32, context=16, batch=8, steps=600, seeds=3, points=5, double=True)

    @classmethod
    def paper(cls) -> "Config":
        """The paper's transformer, on characters."""
        return cls(layers=6, heads=6, width=384, context=256, batch=64, steps=1100, seeds=1, double=True)

    @property
    def betas(self) -> list[tuple[float, float]]:
        """The points."""
        return [(float(level_curve(0.0, b)), float(b)) for b in np.linspace(self.lowest, self.highest, self.points)]


def run(config: Config, bench: Bench) -> Result[Config]:
    """Train at every point."""
    return bench.over_parts(
        config, config.betas, lambda seed, betas: max_updates(config, betas, seed, bench.steps(config.steps))
    )


def plot(result: Result[Config]) -> Figure:
    """The largest update at every point, with the bound (5) dotted and the exact one dashed."""
    config, n = result.config, shown(result.config)
    figure = Figure()
    for i, betas in enumerate(config.betas):
        line = {"color": COLOURS[i % len(COLOURS)]}
        name = f"beta1 = {betas[0]:.3f}, beta2 = {betas[1]:.3f}"
        figure.add_trace(Scatter(x=n + 1, y=result["update"][0, i], line=line, name=name))
        for exact, dash in ((False, "dot"), (True, "dash")):
            y = bound(config, betas, exact)[n]
            figure.add_trace(Scatter(x=n[1:] + 1, y=y[1:], line=line | {"dash": dash, "width": 1}, showlegend=False))
    figure.update_xaxes(title_text="step", type="log", dtick=1)
    figure.update_yaxes(title_text="largest update ‖u_n‖_∞", type="log", tickvals=[0.5, 1, 2, 5, 10, 20, 50, 100])
    return styled(figure, "On C = 0: bounded; (5) grows as sqrt(n) (dotted), the exact bound does not (dashed)")


def powers(result: Result[Config]) -> list[float]:
    """For each seed, the largest p of all points in ‖u_n‖_∞ ∝ n^p, fitted over the second half of the run."""
    n = shown(result.config)
    late = n >= result.config.steps // 2
    logs = np.log(result["update"][:, :, late])
    return [max(float(np.polyfit(np.log(n[late] + 1), y, 1)[0]) for y in one) for one in logs]


def claims(result: Result[Config]) -> list[Claim]:
    """The bound holds and is not tight; the exact one says why."""
    return [
        at_most("largest update over the bound (5), all steps n ≥ 1 and points", 1.0, result["over_bound"].max(1)),
        at_most("largest update over the exact bound (ours), up to rounding", 1.001, result["over_exact"].max(1)),
        at_most("power of n with which the largest update grows, where (5) has ½", 0.25, powers(result)),
    ]
