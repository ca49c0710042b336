"""How ‖w‖² approaches its equilibrium, and its noise there, without and with momentum (SMD Theorems 1 and 2)."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gyroscope.tools import Array
from gyroscope_lab.framework.claims import Claim, agrees, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, DECADES, Figure, Panels, shown_steps
from gyroscope_lab.smd import _norm_statistics as statistics
from gyroscope_lab.smd._prescribed_gradients import DrivenWeights, SGDConfig, equilibrium_norm2, uniform_noise

CLAIMS = {
    "theorem1": "Under SGD ‖w‖² closes in on sqrt(L·lr/(2·wd)) at a linear rate, to a noise floor (SMD Theorem 1).",
    "theorem2": "Under SGD with momentum ‖w‖² closes in on w*² too, 1/(1-α) times faster (SMD Theorem 2).",
}
COST = {"theorem1": {"quick": "10 s", "paper": "5 min"}, "theorem2": {"quick": "30 s", "paper": "5 min"}}
# ‖w_0‖² over its equilibrium, a third of the vectors each.
STARTS = (0.3, 3.0, 100.0)
POINTS = 150


@dataclass(frozen=True, kw_only=True)
class Config(SGDConfig):
    """The run lasts `lifetimes`/a steps."""

    lifetimes: float = 8.0

    @property
    def theorem(self) -> str:
        """The theorem of the paper."""
        return "Theorem 2" if self.momentum else "Theorem 1"

    @property
    def steps(self) -> int:
        """Length of the run, from the fraction of a weight that decays per step, a."""
        decay = self.lr * self.weight_decay / (1 - self.momentum)
        return round(self.lifetimes / decay)

    @property
    def equilibrium(self) -> float:
        """(w*)², the predicted ‖w‖²."""
        return equilibrium_norm2(self.rule, self.level)


# A large decay, so that eight lifetimes 1/a are few steps.
QUICK = {
    "theorem1": Config(momentum=0.0, weight_decay=0.01, vectors=100, fan_in=16),
    "theorem2": Config(momentum=0.9, weight_decay=1e-3, vectors=16, fan_in=1024),
}
PAPER = {
    "theorem1": Config(momentum=0.0, weight_decay=0.001, vectors=1000, fan_in=16, seeds=5),
    "theorem2": Config(momentum=0.9, weight_decay=2.5e-4, vectors=64, fan_in=2048, seeds=5),
}


def measure(trial: Trial[Config]) -> Measurements:
    """Let weights settle in equilibrium from below, from above and from far above."""
    config = trial.config
    generator = trial.generator()
    first = config.equilibrium * torch.tensor(STARTS, dtype=torch.float64).repeat_interleave(config.vectors)
    weights = DrivenWeights(config.rule, config.fan_in, first, generator)
    L = config.level + config.noise * uniform_noise(config.steps, len(first), generator)
    trace = weights.drive(L, trial.steps(config.steps), angles=False)
    norm2 = trace.norm2.numpy()
    h = trace.h.numpy()
    late = slice(config.steps // 2, None)  # four lifetimes behind the start: settled from everywhere
    by_start = norm2.reshape(config.steps, len(STARTS), config.vectors)
    target = norm2[late].mean()
    shown = shown_steps(config.steps, POINTS)
    return {
        "norm2": by_start.mean(2)[shown].T,
        "error2": ((by_start - target) ** 2).mean(2)[shown].T,
        "settled": target,
        "variance": norm2[late].var(),
        "L": h[late].mean(),
        "V": h[late].var(),
        "l": h.min(),
        # ‖w‖⁴ follows a linear recursion: its distance from equilibrium is an exponential, that of ‖w‖² is not.
        "rate_near": _rate(by_start[:, 1].mean(1) ** 2, (norm2[late] ** 2).mean(), 6.0, 0.5),
        "rate_far": _rate(by_start[:, 2].mean(1), 0.0, 80 * target, 10 * target),
    }


def _rate(y: Array, target: float, high: float, low: float) -> float:
    """Return the least-squares slope of ln(y - target) while y - target is between `high` and `low` targets."""
    distance = (y - target) / (target or 1.0)  # far above, the equilibrium itself is of no matter: target 0
    first = _first_below(distance, high)
    last = _first_below(distance, low)
    return -float(np.polyfit(np.arange(first, last), np.log(distance[first:last]), 1)[0])


def _first_below(y: Array, level: float) -> int:
    below = np.flatnonzero(y < level)
    return int(below[0]) if len(below) else len(y)


def error_bound(result: Result[Config], seed: int) -> Array:
    """Return SMD's bound on E(‖w‖² - w*²)², (starts, steps shown), with B the square of the first distance."""
    config = result.config
    t = shown_steps(config.steps, POINTS) + 1
    distances = config.equilibrium * np.array(STARTS)[:, None] - config.equilibrium
    V = float(result["V"][seed])
    floor = statistics.norm_variance_bound(config.lr, config.momentum, variance=V, lower=float(result["l"][seed]))
    factor = 3 if config.momentum else 1  # as the theorems have it
    rate = statistics.contraction_of_bound(config.lr, config.weight_decay, config.momentum)
    return np.asarray(factor * distances**2 * rate**t + floor)


def plot(result: Result[Config]) -> Figure:
    """Draw the norm of the first seed from every start, and its mean square error with the bound."""
    config = result.config
    t = shown_steps(config.steps, POINTS) + 1
    bounds = error_bound(result, 0)
    panels = Panels("‖w‖² over its equilibrium", "E(‖w‖² - w*²)², its bound (dotted), its floor (dashed)")
    for i, start in enumerate(STARTS):
        name = f"from {start:g} w*²"
        panels.line(0, t, result["norm2"][0, i] / config.equilibrium, name, COLOURS[i])
        panels.line(1, t, result["error2"][0, i], name, COLOURS[i])
        panels.line(1, t, bounds[i], name, COLOURS[i], dash="dot")
    panels.level(0, 1)
    panels.level(1, _floor(config, float(result["V"][0]), float(result["L"][0])))
    panels.figure.update_yaxes(DECADES)
    panels.figure.update_xaxes(title_text="step")
    return panels.titled(f"{config.optimizer_name}: linear approach, and a noise floor far under its bound")


def _floor(config: Config, V: Any, L: Any) -> Any:
    """Return the variance of ‖w‖² in equilibrium, from the measured variance and mean of h."""
    return statistics.norm_variance(config.lr, config.momentum, variance=V, mean=L)


def claims(result: Result[Config]) -> list[Claim]:
    """Judge value, rates and noise floor."""
    config = result.config
    settings = (config.lr, config.weight_decay, config.momentum)
    near = -math.log(statistics.contraction_near_equilibrium(*settings))
    far = -math.log(statistics.contraction_far_above(*settings))
    return [
        agrees(f"‖w‖² settles at the w*² of {config.theorem}", config.equilibrium, result["settled"], within=0.01),
        agrees("‖w‖² falls from far above by 2a per step", far, result["rate_far"], within=0.03),
        agrees("‖w‖⁴ closes in by 4a per step (ours)", near, result["rate_near"], within=0.06),
        *_noise(result),
    ]


def _noise(result: Result[Config]) -> list[Claim]:
    config = result.config
    V = result["V"]
    floor = _floor(config, V, result["L"])
    ceiling = statistics.norm_variance_bound(config.lr, config.momentum, variance=V, lower=result["l"])
    bounds = np.array([error_bound(result, seed) for seed in range(config.seeds)])
    worst = (result["error2"] / bounds).max((1, 2))
    of = f"of {config.theorem}"
    return [
        at_most(f"E(‖w‖² - w*²)² over the bound {of}, the largest of all steps", 1.0, worst),
        at_most(f"variance of ‖w‖² in equilibrium over the floor {of}", 1.0, result["variance"] / ceiling),
        agrees("variance of ‖w‖² over V·lr²/(4L(1-α)²) (ours)", 1.0, result["variance"] / floor, within=0.15),
    ]
