"""Under Adam with L2 norm and rotation depend on the gradient's size, as (84) and (87) predict (RE Appendix I)."""

from dataclasses import dataclass

import numpy as np
import torch

from gyroscope.tools import Array
from gyroscope_lab.framework.claims import Claim, agrees, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, DECADES, Figure, Panels
from gyroscope_lab.re._appendix_j import optimizers
from gyroscope_lab.simulate import network, unit_grad_norm

COST = {"quick": "30 s", "paper": "8 min"}
NAMES = ("Adam+L2", "AdamW", "SGDM")
# Of different shapes, so that points on one another are seen.
SYMBOLS = ("circle", "square-open", "x-thin-open")
# Decay per step above which the paper's leading order is expected to fail: Adam+L2 on very small gradients.
COARSE = 0.1


@dataclass(frozen=True)
class Config:
    """Unit input gammas, and levels of γ_out: groups of vectors whose gradients differ by powers of ten."""

    speedup: float
    steps: int
    group: int
    seeds: int = 3
    levels: tuple[float, ...] = (-4.0, -3.0, -2.0, -1.0, 0.0, 1.0)
    fan_in: int = 128
    batch: int = 32

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weight matrix."""
        return self.group * len(self.levels), self.fan_in

    @property
    def gradients(self) -> Array:
        """RMS gradient norm at unit weight norm, level by level."""
        return np.array([unit_grad_norm(self.shape, self.batch, 10.0**level) for level in self.levels])

    def predicted(self, gradients: Array, leading_order: bool) -> tuple[Array, Array, Array]:
        """Return norm, angle and decay per step under Adam with L2."""
        rule = optimizers(self.speedup)[3]
        eq = rule.equilibrium(fan_in=self.fan_in, unit_grad_norm=gradients, leading_order=leading_order)
        return np.asarray(eq.norm), np.asarray(eq.angular_update), 1 / np.asarray(eq.timescale)


# Ten times the decay of the paper, to settle in a tenth of the steps.
QUICK = Config(speedup=10, steps=9000, group=12)
PAPER = Config(speedup=1, steps=80_000, group=24)


def measure(trial: Trial[Config]) -> Measurements:
    """Simulate Adam with L2, AdamW and SGDM on the same noise, and average the last 45 % of the run."""
    config = trial.config
    adamw, sgdm, _, adam_l2 = optimizers(config.speedup)
    gamma_out = torch.tensor([10.0**level for level in config.levels]).repeat_interleave(config.group)
    gammas = (torch.ones(config.fan_in), gamma_out)
    rules = [adam_l2, adamw, sgdm]
    path = network(
        rules, shape=config.shape, batch=config.batch, gammas=gammas, every=20, average=4, **trial.walk(config.steps)
    )
    settled = path.averages(after=int(0.55 * config.steps))
    form = (len(NAMES), len(config.levels), config.group)
    return {
        "norm": np.sqrt((settled.norm**2).reshape(form).mean(2)),
        "angle": settled.angular_update.reshape(form).mean(2),
    }


def plot(result: Result[Config]) -> Figure:
    """Draw norm and angle against the gradient's size: measured, (84) and (87), and the exact form."""
    config = result.config
    fine = np.geomspace(config.gradients[0] / 2, config.gradients[-1] * 2, 200)
    panels = Panels("norm", "angle per step, rad")
    for panel, quantity in enumerate(("norm", "angle")):
        for i, name in enumerate(NAMES):
            y = result[quantity][:, i].mean(0)
            panels.dots(panel, config.gradients, y, name, COLOURS[i], size=10, symbol=SYMBOLS[i], line={"width": 2})
        for leading, name, dash in ((True, "(84), (87)", "dot"), (False, "exact (ours)", "dash")):
            panels.predicted(panel, fine, config.predicted(fine, leading)[panel], name, dash=dash)
    panels.figure.update_xaxes(DECADES, title_text="gradient norm at unit weight norm")
    panels.figure.update_yaxes(type="log", tickvals=[0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50])
    return panels.titled("Adam with L2 turns vectors with small gradients faster, AdamW and SGDM do not")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the exact formulas, the paper's if the decay per step is small, and how evenly AdamW and SGDM rotate."""
    config = result.config
    judged = []
    for leading, norm_name, angle_name in ((True, "(84)", "(87)"), (False, "exact, ours", "exact, ours")):
        norms, angles, decays = config.predicted(config.gradients, leading)
        for j, level in enumerate(config.levels):
            if not leading or decays[j] < COARSE:
                where = f"Adam+L2, gradients × 1e{level:g}"
                judged.append(agrees(f"norm, {where} ({norm_name})", norms[j], result["norm"][:, 0, j], within=0.03))
                judged.append(
                    agrees(f"angle, {where} ({angle_name})", angles[j], result["angle"][:, 0, j], within=0.03)
                )
    return [*judged, *_evenness(result)]


def _evenness(result: Result[Config]) -> list[Claim]:
    angle = result["angle"]
    ratio = angle.max(2) / angle.min(2)
    _, angles, _ = result.config.predicted(result.config.gradients, True)
    smallest = np.abs(angle[:, 0, 0] / angles[0] - 1)
    largest = np.abs(angle[:, 0, -1] / angles[-1] - 1)
    return [
        at_least("largest over smallest angle of all levels, Adam+L2", 5.0, ratio[:, 0]),
        at_most("largest over smallest angle of all levels, AdamW", 1.02, ratio[:, 1]),
        at_most("largest over smallest angle of all levels, SGDM", 1.02, ratio[:, 2]),
        at_least("error of (87) at the smallest gradients over that at the largest", 2.0, smallest / largest),
    ]
