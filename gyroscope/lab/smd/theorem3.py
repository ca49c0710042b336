"""In equilibrium a weight turns by sqrt(2·lr·wd/(1+α)) per step, whatever its gradients (SMD Theorem 3)."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from plotly.graph_objects import Figure, Scatter
from plotly.subplots import make_subplots
from torch.optim import SGD

from gyroscope.lab.bench import Bench, Values
from gyroscope.lab.claim import Claim, agrees, at_most
from gyroscope.lab.driven import drive, start
from gyroscope.lab.experiment import Result
from gyroscope.lab.picture import COLOURS, PREDICTED, styled
from gyroscope.theory import SGDM
from gyroscope.theory.convergence import angle_variance, angle_variance_bound

COST = {"quick": "30 s", "paper": "5 min"}
LEVELS = (1.0, 100.0)
"""L of the two groups of vectors: gradients that differ tenfold."""
STARTS = (0.3, 3.0)
POINTS = 150


@dataclass(frozen=True)
class Config:
    """Uniform noise of a share `noise` on L_t; the decay a = lr·wd/(1-α) is the same for each momentum."""

    decay: float = 1e-3
    lr: float = 0.1
    momenta: tuple[float, ...] = (0.0, 0.9)
    noise: float = 0.3
    vectors: int = 12
    fan_in: int = 1024
    lifetimes: float = 4.0
    seeds: int = 3

    @classmethod
    def quick(cls) -> "Config":
        """Few vectors, a large decay."""
        return cls()

    @classmethod
    def paper(cls) -> "Config":
        """A smaller decay, more vectors."""
        return cls(decay=2.5e-4, vectors=48, fan_in=4096, seeds=5)

    @property
    def steps(self) -> int:
        """Length of the run."""
        return round(self.lifetimes / self.decay)

    def rule(self, momentum: float) -> SGDM:
        """The rule with this momentum."""
        return SGDM(self.lr, self.decay * (1 - momentum) / self.lr, momentum)


def run(config: Config, bench: Bench) -> Result[Config]:
    """Turn weights with torch's SGD, with and without momentum."""
    return bench.over_parts(
        config, config.momenta, lambda seed, momentum: turn(config, momentum, seed, bench.steps(config.steps))
    )


def turn(config: Config, momentum: float, seed: int, steps: Iterable[int]) -> Values:
    """Run weights of two gradient sizes into equilibrium, from below and from above."""
    generator, rule = torch.Generator().manual_seed(seed), config.rule(momentum)
    levels = torch.tensor(LEVELS, dtype=torch.float64).repeat_interleave(len(STARTS) * config.vectors)
    starts = torch.tensor(STARTS, dtype=torch.float64).repeat_interleave(config.vectors).repeat(len(LEVELS))
    unit = float(rule.equilibrium(unit_grad_norm=1.0).norm or 0.0) ** 2
    weight = start(len(levels), config.fan_in, unit * levels.sqrt() * starts, generator)
    optimizer = SGD([weight], lr=rule.lr, momentum=momentum, weight_decay=rule.weight_decay)
    noise = 2 * torch.rand(config.steps, len(levels), generator=generator, dtype=torch.float64) - 1
    trace = drive(weight, optimizer, levels * (1 + config.noise * noise), generator, steps)
    angle = trace.angle.numpy().reshape(config.steps, len(LEVELS), len(STARTS), config.vectors)
    h = (trace.h / levels).numpy()
    late = slice(config.steps // 2, None)
    shown = np.linspace(0, config.steps - 1, POINTS).astype(int)
    return {
        "angle": angle.mean(3)[shown].transpose(1, 2, 0),
        "settled": angle[late].mean((0, 2, 3)),
        "variance": angle[late].var(),
        "V": h[late].var(),
        "L": h[late].mean(),
        "l": h.min(),
    }


def plot(result: Result[Config]) -> Figure:
    """The angle of the first seed, from every start and for both sizes of gradient, beside its prediction."""
    config = result.config
    t = np.linspace(0, config.steps - 1, POINTS).astype(int)
    figure = make_subplots(cols=len(config.momenta), subplot_titles=[f"momentum {m:g}" for m in config.momenta])
    for col, momentum in enumerate(config.momenta):
        for i, (level, first) in enumerate(
            (level, first) for level in range(len(LEVELS)) for first in range(len(STARTS))
        ):
            name = f"L = {LEVELS[level]:g}, from {STARTS[first]:g} w*²"
            line = {"color": COLOURS[i], "width": 1.5}
            y = result["angle"][0, col, level, first]
            figure.add_trace(Scatter(x=t, y=y, name=name, line=line, showlegend=col == 0), row=1, col=col + 1)
        figure.add_hline(y=predicted(config, momentum), line=PREDICTED, row=1, col=col + 1)
    figure.update_xaxes(title_text="step")
    figure.update_yaxes(title_text="angle per step, rad", col=1)
    return styled(figure, "Rotation settles at sqrt(2·lr·wd/(1+α)) (dashed), for gradients that differ tenfold")


def predicted(config: Config, momentum: float) -> float:
    """The angle per step of Theorem 3, in radians."""
    return float(config.rule(momentum).equilibrium(leading_order=True).angular_update or 0.0)


def claims(result: Result[Config]) -> list[Claim]:
    """The angle, and how little it varies."""
    found: list[Claim] = []
    for i, momentum in enumerate(result.config.momenta):
        rule, angle = result.config.rule(momentum), predicted(result.config, momentum)
        V, L, low = (result[name][:, i] for name in ("V", "L", "l"))
        bound = angle_variance_bound(momentum, variance=V, mean=L, lower=low)
        value = angle_variance(rule.lr, rule.weight_decay, momentum, variance=V, mean=L)
        variance, name = result["variance"][:, i], f"momentum {momentum:g}"
        found += [
            agrees(f"angle per step with L = {level:g}, {name}", angle, result["settled"][:, i, j], within=0.01)
            for j, level in enumerate(LEVELS)
        ]
        found += [
            at_most(f"variance of the angle over its bound in Theorem 3, {name}", 1.0, variance / bound),
            agrees(
                f"variance of the angle over a(1-α)²V/(2(1+α²)L²) (ours), {name}", 1.0, variance / value, within=0.15
            ),
        ]
    return found
