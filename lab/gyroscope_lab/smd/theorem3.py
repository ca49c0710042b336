"""In equilibrium a weight rotates by sqrt(2·lr·wd/(1+α)) per step, whatever its gradients (SMD Theorem 3)."""

from dataclasses import dataclass

import torch

from gyroscope_lab.framework.claims import Claim, agrees, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels, shown_steps
from gyroscope_lab.smd._norm_statistics import angle_variance, angle_variance_bound
from gyroscope_lab.smd._prescribed_gradients import (
    DrivenWeights,
    MomentaConfig,
    equilibrium_angle,
    equilibrium_norm2,
    uniform_noise,
)

COST = {"quick": "40 s", "paper": "30 min"}
# L of the two groups of vectors: gradients that differ tenfold.
LEVELS = (1.0, 100.0)
# ‖w_0‖² over its equilibrium, half of each group.
STARTS = (0.3, 3.0)
POINTS = 150


@dataclass(frozen=True, kw_only=True)
class Config(MomentaConfig):
    """Uniform noise of a share `noise` on L_t. The run lasts `lifetimes`/a steps."""

    decay: float = 1e-3
    noise: float = 0.3
    vectors: int = 12
    fan_in: int = 1024
    lifetimes: float = 4.0

    @property
    def steps(self) -> int:
        """Length of the run."""
        return round(self.lifetimes / self.decay)


# Few vectors, a large decay.
QUICK = Config()
# A decay and a fan-in of real training. Twelve vectors per start average 8,000 late steps each.
PAPER = Config(decay=2.5e-4, fan_in=4096, seeds=5)


def measure(trial: Trial[Config]) -> Measurements:
    """Bring weights with two gradient sizes to equilibrium with torch's SGD, from below and from above."""
    config = trial.config
    rule = config.rule(trial.part)
    generator = trial.generator()
    levels = torch.tensor(LEVELS, dtype=torch.float64).repeat_interleave(len(STARTS) * config.vectors)
    starts = torch.tensor(STARTS, dtype=torch.float64).repeat_interleave(config.vectors).repeat(len(LEVELS))
    norm2 = equilibrium_norm2(rule, 1.0) * levels.sqrt() * starts
    weights = DrivenWeights(rule, config.fan_in, norm2, generator)
    L = levels * (1 + config.noise * uniform_noise(config.steps, len(levels), generator))
    trace = weights.drive(L, trial.steps(config.steps))
    angle = trace.angle.numpy().reshape(config.steps, len(LEVELS), len(STARTS), config.vectors)
    h = (trace.h / levels).numpy()
    late = slice(config.steps // 2, None)  # two lifetimes behind the start
    return {
        "angle": angle.mean(3)[shown_steps(config.steps, POINTS)].transpose(1, 2, 0),
        "settled": angle[late].mean((0, 2, 3)),
        "variance": angle[late].var(),
        "V": h[late].var(),
        "L": h[late].mean(),
        "l": h.min(),
    }


def plot(result: Result[Config]) -> Figure:
    """Draw the angle of the first seed, from every start and for both sizes of gradient, with its prediction."""
    config = result.config
    t = shown_steps(config.steps, POINTS)
    panels = Panels(*(f"momentum {momentum:g}" for momentum in config.momenta))
    for panel, momentum in enumerate(config.momenta):
        for i in range(len(LEVELS) * len(STARTS)):
            level, start = divmod(i, len(STARTS))
            name = f"L = {LEVELS[level]:g}, from {STARTS[start]:g} w*²"
            panels.line(panel, t, result["angle"][0, panel, level, start], name, COLOURS[i], width=1.5)
        panels.level(panel, equilibrium_angle(config.rule(momentum)))
    panels.figure.update_xaxes(title_text="step")
    panels.figure.update_yaxes(title_text="angle per step, rad", col=1)
    return panels.titled("Rotation settles at sqrt(2·lr·wd/(1+α)) (dashed), for gradients that differ tenfold")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the angle, and how little it varies."""
    return [claim for i, momentum in enumerate(result.config.momenta) for claim in _claims_at(result, i, momentum)]


def _claims_at(result: Result[Config], i: int, momentum: float) -> list[Claim]:
    rule = result.config.rule(momentum)
    variance, V, L, low = (result[name][:, i] for name in ("variance", "V", "L", "l"))
    bound = angle_variance_bound(momentum, variance=V, mean=L, lower=low)
    value = angle_variance(rule.lr, rule.weight_decay, momentum, variance=V, mean=L)
    angle = equilibrium_angle(rule)
    name = f"momentum {momentum:g}"
    sentence = f"variance of the angle over a(1-α)²V/(2(1+α²)L²) (ours), {name}"
    return [
        *(
            agrees(f"angle per step with L = {level:g}, {name}", angle, result["settled"][:, i, j], within=0.01)
            for j, level in enumerate(LEVELS)
        ),
        at_most(f"variance of the angle over its bound in Theorem 3, {name}", 1.0, variance / bound),
        agrees(sentence, 1.0, variance / value, within=0.15),
    ]
