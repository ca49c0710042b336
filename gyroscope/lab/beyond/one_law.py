"""One law for six rules: norm and rotation follow from decay, update size and correlation time alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from plotly.graph_objects import Figure, Scatter
from plotly.subplots import make_subplots

from gyroscope.lab.bench import Bench, Values
from gyroscope.lab.claim import Claim, agrees
from gyroscope.lab.experiment import FloatArray, Result
from gyroscope.lab.picture import COLOURS, PREDICTED, styled
from gyroscope.lab.re._walks import telling
from gyroscope.simulate import random_walk
from gyroscope.theory import SGDM, AdamW, Equilibrium, Lion, Muon, NAdam, UpdateRule

COST = {"quick": "2 min", "paper": "15 min"}
NAMES = ("SGDM", "Nesterov", "AdamW", "NAdam", "Lion", "torch.optim.Muon")
NONLINEAR = NAMES[4:]
"""Their correlation times pass through a sign or an orthogonalisation, which theory follows less closely."""
LIFETIMES = 8


@dataclass(frozen=True)
class Config:
    """Decays per step; rows of a matrix, and for Muon whole square matrices."""

    decays: tuple[float, ...]
    vectors: int
    matrices: int
    seeds: int
    fan_in: int = 256
    side: int = 48

    @classmethod
    def quick(cls) -> "Config":
        """Large decays, which settle in a few hundred steps."""
        return cls(decays=(1e-3, 3e-3, 1e-2), vectors=48, matrices=2, seeds=3)

    @classmethod
    def paper(cls) -> "Config":
        """Down to the decay of common settings."""
        return cls(decays=(3e-4, 1e-3, 3e-3, 1e-2), vectors=64, matrices=3, seeds=3)

    def rules(self, decay: float) -> tuple[UpdateRule, ...]:
        """One of each kind that decays by this share per step."""
        return (
            SGDM(0.1, decay, 0.9),
            SGDM(0.1, decay, 0.9, nesterov=True),
            AdamW(1e-2, 100 * decay),
            NAdam(1e-2, 100 * decay),
            Lion(1e-3, 1000 * decay),
            Muon(1e-2, 100 * decay),
        )

    def equilibria(self, decay: float) -> list[Equilibrium]:
        """The law's word on each of them."""
        shape = (self.side, self.side)
        return [rule.equilibrium(fan_in=self.fan_in, unit_grad_norm=1.0, shape=shape) for rule in self.rules(decay)]


def run(config: Config, bench: Bench) -> Result[Config]:
    """All rules at one decay after the other."""
    return bench.over_parts(config, config.decays, lambda seed, decay: settle(config, decay, seed, bench))


def settle(config: Config, decay: float, seed: int, bench: Bench) -> Values:
    """Norm and angle of each rule, from two lifetimes on."""
    steps = round(LIFETIMES / decay)
    options: dict[str, Any] = {"steps": steps, "every": 10, "average": 2, "seed": seed}
    norms = [eq.norm for eq in config.equilibria(decay)]
    *rules, muon = config.rules(decay)
    shape = (config.vectors, config.fan_in)
    rows = random_walk(rules, norm=norms[:-1], shape=shape, progress=telling(bench, steps), **options)

    def optimizer(params: Any) -> torch.optim.Optimizer:
        return torch.optim.Muon(params, muon.lr, weight_decay=decay / muon.lr)

    whole = random_walk(
        [optimizer] * config.matrices,
        norm=norms[-1],
        shape=(config.side, config.side),
        granularity="tensor",
        independent=True,
        **options,
    )
    found = [path.averages(after=round(2 / decay)) for path in (rows, whole)]
    return {
        "norm": [*found[0].layer_norm, np.sqrt((found[1].norm ** 2).mean())],
        "angle": [*found[0].layer_angular_update, found[1].angular_update.mean()],
    }


def predicted(config: Config) -> dict[str, FloatArray]:
    """Norm and angle by the law, (decays, rules)."""
    found = [[(eq.norm, eq.angular_update) for eq in config.equilibria(decay)] for decay in config.decays]
    norm, angle = np.array(found, dtype=np.float64).transpose(2, 0, 1)
    return {"norm": norm, "angle": angle}


def plot(result: Result[Config]) -> Figure:
    """The measured angle over the law's, all rules on one line; and both ratios close up."""
    told = predicted(result.config)
    figure = make_subplots(cols=2, subplot_titles=["angle per step, rad", "measured over predicted"])
    for i, name in enumerate(NAMES):
        marker = {"color": COLOURS[i], "size": 10, "symbol": i}
        y = result["angle"][:, :, i].mean(0)
        dots = Scatter(x=told["angle"][:, i], y=y, mode="markers", marker=marker, name=name, legendgroup=name)
        figure.add_trace(dots, row=1, col=1)
        for quantity, symbol in (("angle", i), ("norm", 100 + i)):  # plotly's open symbols
            ratio = (result[quantity][:, :, i] / told[quantity][:, i]).mean(0)
            marker = {"color": COLOURS[i], "size": 10, "symbol": symbol}
            dots = Scatter(x=result.config.decays, y=ratio, mode="markers", marker=marker, showlegend=False)
            figure.add_trace(dots, row=1, col=2)
    ends = [told["angle"].min() / 1.2, told["angle"].max() * 1.2]
    line = PREDICTED
    figure.add_trace(Scatter(x=ends, y=ends, mode="lines", line=line, name="the law"), row=1, col=1)
    figure.add_hline(y=1, line=line, row=1, col=2)
    figure.update_xaxes(type="log")
    ticks = [0.003, 0.006, 0.01, 0.02, 0.04]
    figure.update_xaxes(title_text="predicted angle per step, rad", tickvals=ticks, col=1)
    figure.update_xaxes(title_text="decay per step (filled: angle, open: norm)", tickvals=result.config.decays, col=2)
    figure.update_yaxes(type="log", tickvals=ticks, col=1)
    return styled(figure, "Six rules, one law: 1 - cos η_r = a(2 - a - aτ)/(2(1-a)τ)")


def claims(result: Result[Config]) -> list[Claim]:
    """Norm and angle of each rule at each decay."""
    told = predicted(result.config)
    return [
        agrees(
            f"{quantity} under {name}, decay {decay:g}",
            told[quantity][j, i],
            result[quantity][:, j, i],
            within=0.03 if name in NONLINEAR else 0.02,
        )
        for i, name in enumerate(NAMES)
        for j, decay in enumerate(result.config.decays)
        for quantity in ("norm", "angle")
    ]
