"""How ‖w‖² approaches its equilibrium from afar and how it trembles there: what Theorems 1 and 2 of SMD share."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from plotly.graph_objects import Figure, Scatter
from plotly.subplots import make_subplots
from torch.optim import SGD

from gyroscope.lab.bench import Values
from gyroscope.lab.claim import Claim, agrees, at_most
from gyroscope.lab.driven import drive, start
from gyroscope.lab.experiment import FloatArray, Result
from gyroscope.lab.picture import COLOURS, PREDICTED, styled
from gyroscope.theory import SGDM
from gyroscope.theory.convergence import (
    contraction_far_above,
    contraction_near_equilibrium,
    contraction_of_bound,
    norm_variance,
    norm_variance_bound,
)

STARTS = (0.3, 3.0, 100.0)
"""‖w_0‖² over its equilibrium, a third of the vectors each."""
POINTS = 150


@dataclass(frozen=True)
class Approach:
    """Settings of both theorems: L_t is uniform in level ± noise; the run lasts `lifetimes`/a steps."""

    momentum: float
    weight_decay: float
    vectors: int
    fan_in: int
    seeds: int
    lr: float = 0.1
    level: float = 10.0
    noise: float = 3.0
    lifetimes: float = 8.0

    @property
    def decay(self) -> float:
        """The fraction of a weight that decays per step, a."""
        return self.lr * self.weight_decay / (1 - self.momentum)

    @property
    def steps(self) -> int:
        """Length of the run."""
        return round(self.lifetimes / self.decay)


A = TypeVar("A", bound=Approach)


def equilibrium(config: Approach) -> float:
    """(w*)², the predicted ‖w‖² (SMD Theorems 1 and 2)."""
    rule = SGDM(config.lr, config.weight_decay, config.momentum)
    return float(rule.equilibrium(unit_grad_norm=config.level**0.5).norm or 0.0) ** 2


def approach(config: Approach, seed: int, steps: Iterable[int]) -> Values:
    """Let weights run into equilibrium from every start."""
    generator = torch.Generator().manual_seed(seed)
    count = len(STARTS) * config.vectors
    first = equilibrium(config) * torch.tensor(STARTS, dtype=torch.float64).repeat_interleave(config.vectors)
    weight = start(count, config.fan_in, first, generator)
    optimizer = SGD([weight], lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    L = config.level + config.noise * (
        2 * torch.rand(config.steps, count, generator=generator, dtype=torch.float64) - 1
    )
    trace = drive(weight, optimizer, L, generator, steps, angles=False)
    norm2, h = trace.norm2.numpy(), trace.h.numpy()
    late = slice(config.steps // 2, None)  # four lifetimes behind the start: settled from everywhere
    by_start = norm2.reshape(config.steps, len(STARTS), config.vectors)
    target = norm2[late].mean()
    shown = np.linspace(0, config.steps - 1, POINTS).astype(int)
    return {
        "norm2": by_start.mean(2)[shown].T,
        "error2": ((by_start - target) ** 2).mean(2)[shown].T,
        "settled": target,
        "variance": norm2[late].var(),
        "L": h[late].mean(),
        "V": h[late].var(),
        "l": h.min(),
        "rate_near": _rate(by_start[:, 1].mean(1) ** 2, (norm2[late] ** 2).mean(), 6.0, 0.5),
        "rate_far": _rate(by_start[:, 2].mean(1), 0.0, 80 * target, 10 * target),
    }


def _rate(y: FloatArray, target: float, high: float, low: float) -> float:
    """Slope of ln(y - target) while that falls from `high` to `low`, in targets if there is one; by least squares."""
    distance = (y - target) / (target or 1.0)
    below = np.flatnonzero(distance < low)
    above = np.flatnonzero(distance < high)
    first, last = (int(found[0]) if len(found) else len(y) for found in (above, below))
    t = np.arange(first, last)
    return -float(np.polyfit(t, np.log(distance[first:last]), 1)[0])


def bound(config: Approach, result: Result[A], seed: int, first: float) -> FloatArray:
    """SMD's bound on E(‖w‖² - w*²)² at the steps shown, with B the square of the first distance."""
    t = np.linspace(0, config.steps - 1, POINTS).astype(int) + 1
    V, lowest = float(result["V"][seed]), float(result["l"][seed])
    floor = norm_variance_bound(config.lr, config.momentum, variance=V, lower=lowest)
    factor = 3 if config.momentum else 1
    rate = contraction_of_bound(config.lr, config.weight_decay, config.momentum)
    return np.asarray(factor * (first - equilibrium(config)) ** 2 * rate**t + floor)


def picture(result: Result[A], title: str) -> Figure:
    """Of the first seed: the norm from every start, and its mean square error under the bound."""
    config, target = result.config, equilibrium(result.config)
    t = np.linspace(0, config.steps - 1, POINTS).astype(int) + 1
    figure = make_subplots(
        cols=2, subplot_titles=["‖w‖² over its equilibrium", "E(‖w‖² - w*²)², its bound (dotted), its floor (dashed)"]
    )
    for i, first in enumerate(STARTS):
        line = {"color": COLOURS[i]}
        name = f"from {first:g} w*²"
        figure.add_trace(Scatter(x=t, y=result["norm2"][0, i] / target, name=name, line=line), row=1, col=1)
        figure.add_trace(Scatter(x=t, y=result["error2"][0, i], line=line, showlegend=False), row=1, col=2)
        dotted = Scatter(x=t, y=bound(config, result, 0, first * target), line=line | {"dash": "dot"}, showlegend=False)
        figure.add_trace(dotted, row=1, col=2)
    level = norm_variance(config.lr, config.momentum, variance=float(result["V"][0]), mean=float(result["L"][0]))
    figure.add_hline(y=level, line=PREDICTED, row=1, col=2)
    figure.add_hline(y=1, line=PREDICTED, row=1, col=1)
    figure.update_yaxes(type="log", dtick=1, exponentformat="power")
    figure.update_xaxes(title_text="step")
    return styled(figure, title)


def judge(result: Result[A], theorem: str) -> list[Claim]:
    """Value, rates and noise floor."""
    config, target = result.config, equilibrium(result.config)
    settings = (config.lr, config.weight_decay, config.momentum)
    near = -math.log(contraction_near_equilibrium(*settings))
    far = -math.log(contraction_far_above(*settings))
    return [
        agrees(f"‖w‖² settles at the w*² of {theorem}", target, result["settled"], within=0.01),
        agrees("‖w‖² falls from far above by 2a per step", far, result["rate_far"], within=0.03),
        agrees("‖w‖⁴ closes in by 4a per step (ours)", near, result["rate_near"], within=0.06),
        *_noise(result, theorem),
    ]


def _noise(result: Result[A], theorem: str) -> list[Claim]:
    config, target, V = result.config, equilibrium(result.config), result["V"]
    floor = norm_variance(config.lr, config.momentum, variance=V, mean=result["L"])
    ceiling = norm_variance_bound(config.lr, config.momentum, variance=V, lower=result["l"])
    bounds = np.array([[bound(config, result, s, first * target) for first in STARTS] for s in range(config.seeds)])
    worst = (result["error2"] / bounds).max((1, 2))
    return [
        at_most(f"E(‖w‖² - w*²)² over the bound of {theorem}, the largest of all steps", 1.0, worst),
        at_most(f"variance of ‖w‖² in equilibrium over the floor of {theorem}", 1.0, result["variance"] / ceiling),
        agrees("variance of ‖w‖² over V·lr²/(4L(1-α)²) (ours)", 1.0, result["variance"] / floor, within=0.15),
    ]
