"""One law for six rules: norm and rotation follow from decay, update size and correlation time alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gyroscope.theory import SGDM, AdamW, Equilibrium, Lion, Muon, NAdam, UpdateRule
from gyroscope.tools import Array
from gyroscope_lab.framework.claims import Claim, agrees
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels, styled
from gyroscope_lab.simulate import random_walk

COST = {"quick": "4 min", "paper": "15 min"}
NAMES = ("SGDM", "Nesterov", "AdamW", "NAdam", "Lion", "torch.optim.Muon")
# The correlation times of these rules involve a sign or an orthogonalisation, which theory describes less closely.
NONLINEAR = NAMES[4:]
# Length of a run, in lifetimes 1/decay.
LIFETIMES = 8


@dataclass(frozen=True)
class Config:
    """Decays per step, and the sizes of vectors: rows of a matrix, or for Muon whole square matrices."""

    decays: tuple[float, ...]
    vectors: int
    matrices: int
    seeds: int = 3
    fan_in: int = 256
    side: int = 48

    @property
    def parts(self) -> tuple[float, ...]:
        """One decay after the other."""
        return self.decays

    def rules(self, decay: float) -> tuple[UpdateRule, ...]:
        """Return one rule of each kind that decays by this share per step."""
        return (
            SGDM(0.1, decay, 0.9),
            SGDM(0.1, decay, 0.9, nesterov=True),
            AdamW(1e-2, 100 * decay),
            NAdam(1e-2, 100 * decay),
            Lion(1e-3, 1000 * decay),
            Muon(1e-2, 100 * decay),
        )

    def equilibria(self, decay: float) -> list[Equilibrium]:
        """Return the equilibrium of each rule, by the law."""
        shape = (self.side, self.side)
        return [rule.equilibrium(fan_in=self.fan_in, unit_grad_norm=1.0, shape=shape) for rule in self.rules(decay)]


# Large decays, which settle in a few hundred steps.
QUICK = Config(decays=(1e-3, 3e-3, 1e-2), vectors=48, matrices=2)
# Down to the decay of common settings.
PAPER = Config(decays=(3e-4, 1e-3, 3e-3, 1e-2), vectors=64, matrices=3)


def measure(trial: Trial[Config]) -> Measurements:
    """Measure norm and angle of each rule, from two lifetimes on."""
    config = trial.config
    decay: float = trial.part
    steps = round(LIFETIMES / decay)
    options: dict[str, Any] = {"steps": steps, "every": 10, "average": 2, "seed": trial.seed}
    norms: list[Any] = [eq.norm for eq in config.equilibria(decay)]
    *rules, muon = config.rules(decay)
    shape = (config.vectors, config.fan_in)
    rows = random_walk(rules, norm=norms[:-1], shape=shape, **options | trial.walk(steps))

    def optimizer(params: Any) -> torch.optim.Optimizer:
        return torch.optim.Muon(params, muon.lr, weight_decay=decay / muon.lr)

    # Muon orthogonalises a whole matrix, so each matrix is one vector and has its own optimizer.
    whole = random_walk(
        [optimizer] * config.matrices,
        norm=norms[-1],
        shape=(config.side, config.side),
        granularity="tensor",
        independent=True,
        **options,
    )
    of_rows, of_matrices = (path.averages(after=round(2 / decay)) for path in (rows, whole))
    return {
        "norm": [*of_rows.layer_norm, np.sqrt((of_matrices.norm**2).mean())],
        "angle": [*of_rows.layer_angular_update, of_matrices.angular_update.mean()],
    }


def predicted(config: Config) -> dict[str, Array]:
    """Return norm and angle by the law, (decays, rules)."""
    pairs = [[(eq.norm, eq.angular_update) for eq in config.equilibria(decay)] for decay in config.decays]
    norm, angle = np.array(pairs, dtype=np.float64).transpose(2, 0, 1)
    return {"norm": norm, "angle": angle}


def plot(result: Result[Config]) -> Figure:
    """Draw the measured angle over the law's, with all rules on one line, and both ratios enlarged."""
    law = predicted(result.config)
    panels = Panels("angle per step, rad", "measured over predicted")
    for i, name in enumerate(NAMES):
        panels.dots(0, law["angle"][:, i], result["angle"][:, :, i].mean(0), name, COLOURS[i], size=10, symbol=i)
        for quantity, symbol in (("angle", i), ("norm", 100 + i)):  # plotly's open symbols
            ratio = (result[quantity][:, :, i] / law[quantity][:, i]).mean(0)
            panels.dots(1, result.config.decays, ratio, name, COLOURS[i], size=10, symbol=symbol)
    ends = [law["angle"].min() / 1.2, law["angle"].max() * 1.2]
    panels.predicted(0, ends, ends, "the law")
    panels.level(1, 1)
    figure = panels.figure
    ticks = [0.003, 0.006, 0.01, 0.02, 0.04]
    figure.update_xaxes(type="log")
    figure.update_xaxes(title_text="predicted angle per step, rad", tickvals=ticks, col=1)
    figure.update_xaxes(title_text="decay per step (filled: angle, open: norm)", tickvals=result.config.decays, col=2)
    figure.update_yaxes(type="log", tickvals=ticks, col=1)
    return styled(figure, "Six rules, one law: 1 - cos η_r = a(2 - a - aτ)/(2(1-a)τ)")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge norm and angle of each rule at each decay."""
    law = predicted(result.config)
    return [
        agrees(
            f"{quantity} under {name}, decay {decay:g}",
            law[quantity][j, i],
            result[quantity][:, j, i],
            within=0.03 if name in NONLINEAR else 0.02,
        )
        for i, name in enumerate(NAMES)
        for j, decay in enumerate(result.config.decays)
        for quantity in ("norm", "angle")
    ]
