"""After lr is divided by k it is ln(k)(1-α)/(4·lr·wd) steps away, or none if norms are rescaled (SMD Cor. 3.1)."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.optim.lr_scheduler import StepLR

from gyroscope.optim.schedulers import EquilibriumRescale
from gyroscope.theory import SGDM
from gyroscope.tools import Array
from gyroscope_lab.framework.claims import Claim, agrees, at_least
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels, shown_steps
from gyroscope_lab.smd._norm_statistics import steps_to_new_equilibrium
from gyroscope_lab.smd._prescribed_gradients import (
    DrivenWeights,
    MomentaConfig,
    equilibrium_angle,
    equilibrium_norm2,
    uniform_noise,
)

COST = {"quick": "25 s", "paper": "3 min"}
# Mean of L_t.
LEVEL = 10.0
# Steps before lr falls, in which the momentum fills.
BURN_IN = 100
POINTS = 150
WAYS = ("left to itself", "norm rescaled")


@dataclass(frozen=True, kw_only=True)
class Config(MomentaConfig):
    """A fall of lr from k·lr to lr. `decay` is that after the fall."""

    k: float = 10.0
    decay: float = 5e-4
    noise: float = 3.0
    vectors: int = 16
    fan_in: int = 512

    def rule_before(self, momentum: float) -> SGDM:
        """Return the rule before the fall."""
        return replace(self.rule(momentum), lr=self.k * self.lr)

    def least(self, momentum: float) -> int:
        """Return the steps of Corollary 3.1."""
        rule = self.rule(momentum)
        return steps_to_new_equilibrium(self.k, rule.lr, rule.weight_decay, rule.momentum)


# Few vectors, a large decay.
QUICK = Config()
PAPER = Config(decay=1e-4, vectors=32, seeds=5)


def measure(trial: Trial[Config]) -> Measurements:
    """Divide lr by k in equilibrium, with and without rescaling. Return norms and angles after it."""
    least = trial.config.least(trial.part)
    steps = 2 * least
    left, rescaled = (_train(trial, rescale, steps) for rescale in (False, True))
    norm2 = np.stack([left[0], rescaled[0]])
    angle = np.stack([left[1], rescaled[1]])
    target = norm2[1].mean()  # where the rescaled weights stay
    arrived = np.flatnonzero(norm2[0] < 1.05 * target)  # the last few percent take very long
    shown = shown_steps(steps, POINTS)
    return {
        "norm2": norm2[:, shown],
        "angle": angle[:, shown],
        "norm2_rescaled": target,
        "arrived": arrived[0] if len(arrived) else steps,
        "norm4_at_least": norm2[0, least - 1] ** 2,
        "angle_after": angle[:, :20].mean(1),  # long enough to average, too short for norms to change
        "angle_settled": angle[1].mean(),
    }


def _train(trial: Trial[Config], rescale: bool, steps: int) -> tuple[Array, Array]:
    """Return ‖w‖² and angle of each step after the fall of lr, means over vectors."""
    config = trial.config
    generator = trial.generator()
    before = config.rule_before(trial.part)
    first = torch.full((config.vectors,), equilibrium_norm2(before, LEVEL), dtype=torch.float64)
    weights = DrivenWeights(before, config.fan_in, first, generator)
    plain = StepLR(weights.optimizer, BURN_IN, gamma=1 / config.k)
    schedule = EquilibriumRescale(weights.optimizer, plain) if rescale else plain
    for _ in range(BURN_IN):  # the last step of the schedule divides lr by k
        weights.drive(_noisy(config, 1, generator), range(1), angles=False)
        schedule.step()
    trace = weights.drive(_noisy(config, steps, generator), trial.steps(steps))
    return trace.norm2.mean(1).numpy(), trace.angle.mean(1).numpy()


def _noisy(config: Config, steps: int, generator: torch.Generator) -> torch.Tensor:
    return LEVEL + config.noise * uniform_noise(steps, config.vectors, generator)


def plot(result: Result[Config]) -> Figure:
    """Draw norm and angle of the first seed after the fall, over their new equilibrium."""
    config = result.config
    quantities = ("‖w‖² over its new equilibrium", "angle over its new equilibrium")
    titles = [f"{quantity}, momentum {momentum:g}" for quantity in quantities for momentum in config.momenta]
    panels = Panels(*titles, rows=2, vertical_spacing=0.16)
    for i, momentum in enumerate(config.momenta):
        rule = config.rule(momentum)
        least = config.least(momentum)
        t = shown_steps(2 * least, POINTS)
        units = {"norm2": equilibrium_norm2(rule, LEVEL), "angle": equilibrium_angle(rule)}
        for row, (name, unit) in enumerate(units.items()):
            panel = row * len(config.momenta) + i
            for way, label in enumerate(WAYS):
                panels.line(panel, t, result[name][0, i, way] / unit, label, COLOURS[way])
            panels.moment(panel, least)
            panels.level(panel, 1)
    panels.figure.update_xaxes(title_text="step after lr was divided", row=2)
    title = f"After lr / {config.k:g}: slow, unless norms are rescaled (dotted: the least number of steps)"
    return panels.titled(title)


def claims(result: Result[Config]) -> list[Claim]:
    """Judge how long the new equilibrium takes, how small the angle is until then, and how rescaling avoids it."""
    return [claim for i, momentum in enumerate(result.config.momenta) for claim in _claims_at(result, i, momentum)]


def _claims_at(result: Result[Config], i: int, momentum: float) -> list[Claim]:
    config = result.config
    rule = config.rule(momentum)
    target = equilibrium_norm2(rule, LEVEL)
    angle = equilibrium_angle(rule)
    name = f"momentum {momentum:g}"
    fallen = "angle right after the fall"
    left, rescaled = result["angle_after"][:, i].T
    after_least = result["norm4_at_least"][:, i] / target**2
    stays = result["norm2_rescaled"][:, i]
    arrives = f"steps until ‖w‖² is 5 % above its new equilibrium, {name}"
    misses = f"‖w‖⁴ over its new equilibrium after the least steps, 2-1/k (ours), {name}"
    turns = f"{fallen}, 1/sqrt(k) of the new equilibrium's, {name}"
    return [
        at_least(arrives, config.least(momentum), result["arrived"][:, i]),
        agrees(misses, 2 - 1 / config.k, after_least, within=0.05),
        agrees(turns, angle / config.k**0.5, left, within=0.05),
        agrees(f"{fallen}, norms divided by k^(1/4), {name}", angle, rescaled, within=0.05),
        agrees(f"‖w‖² rescaled stays at its new equilibrium, {name}", target, stays, within=0.02),
    ]
