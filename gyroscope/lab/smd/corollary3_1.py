"""After lr is divided by k it is ln(k)(1-α)/(4·lr·wd) steps away, or none if norms are rescaled (SMD Cor. 3.1)."""

from dataclasses import dataclass

import numpy as np
import torch
from plotly.graph_objects import Figure, Scatter
from plotly.subplots import make_subplots
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from gyroscope.lab.bench import Bench, Values
from gyroscope.lab.claim import Claim, agrees, at_least
from gyroscope.lab.driven import drive, start
from gyroscope.lab.experiment import FloatArray, Result
from gyroscope.lab.picture import COLOURS, INK, PREDICTED, styled
from gyroscope.optim.schedulers import EquilibriumRescale
from gyroscope.theory import SGDM
from gyroscope.theory.convergence import steps_to_new_equilibrium

COST = {"quick": "25 s", "paper": "3 min"}
LEVEL = 10.0
BURN_IN = 100
POINTS = 150
WAYS = ("left to itself", "norm rescaled")


@dataclass(frozen=True)
class Config:
    """lr falls from k·lr to lr; `decay` is a = lr·wd/(1-α) after the fall, the same for each momentum."""

    k: float = 10.0
    lr: float = 0.1
    decay: float = 5e-4
    momenta: tuple[float, ...] = (0.0, 0.9)
    noise: float = 3.0
    vectors: int = 16
    fan_in: int = 512
    seeds: int = 3

    @classmethod
    def quick(cls) -> "Config":
        """Few vectors, a large decay."""
        return cls()

    @classmethod
    def paper(cls) -> "Config":
        """A smaller decay, more vectors."""
        return cls(decay=1e-4, vectors=32, seeds=5)

    def rule(self, momentum: float, times: float = 1.0) -> SGDM:
        """The rule with this momentum, and lr multiplied."""
        return SGDM(times * self.lr, self.decay * (1 - momentum) / self.lr, momentum)

    def least(self, momentum: float) -> int:
        """Steps of Corollary 3.1."""
        return steps_to_new_equilibrium(self.k, *self._settings(momentum))

    def _settings(self, momentum: float) -> tuple[float, float, float]:
        rule = self.rule(momentum)
        return rule.lr, rule.weight_decay, rule.momentum


def equilibrium(rule: SGDM) -> float:
    """‖w‖² in equilibrium."""
    return float(rule.equilibrium(unit_grad_norm=LEVEL**0.5).norm or 0.0) ** 2


def run(config: Config, bench: Bench) -> Result[Config]:
    """Divide lr by k in equilibrium, with and without rescaling."""
    return bench.over_parts(config, config.momenta, lambda seed, momentum: fall(config, momentum, seed, bench))


def fall(config: Config, momentum: float, seed: int, bench: Bench) -> Values:
    """Norms and angles after the fall, for both ways."""
    steps = 2 * config.least(momentum)
    both = [_one_way(config, momentum, seed, rescaled, steps, bench) for rescaled in (False, True)]
    norm2, angle = (np.stack([way[i] for way in both]) for i in range(2))
    target = norm2[1].mean()  # where the rescaled weights stay
    arrived = np.flatnonzero(norm2[0] < 1.05 * target)
    shown = np.linspace(0, steps - 1, POINTS).astype(int)
    return {
        "norm2": norm2[:, shown],
        "angle": angle[:, shown],
        "norm2_rescaled": target,
        "arrived": arrived[0] if len(arrived) else steps,
        "norm4_at_least": norm2[0, config.least(momentum) - 1] ** 2,
        "angle_after": angle[:, :20].mean(1),
        "angle_settled": angle[1].mean(),
    }


def _one_way(
    config: Config, momentum: float, seed: int, rescaled: bool, steps: int, bench: Bench
) -> tuple[FloatArray, FloatArray]:
    generator, old = torch.Generator().manual_seed(seed), config.rule(momentum, config.k)
    weight = start(config.vectors, config.fan_in, equilibrium(old), generator)
    optimizer = SGD([weight], lr=old.lr, momentum=momentum, weight_decay=old.weight_decay)
    plain = StepLR(optimizer, BURN_IN, gamma=1 / config.k)
    schedule = EquilibriumRescale(optimizer, plain) if rescaled else plain
    for _ in range(BURN_IN):  # fills the momentum; the last step of the schedule divides lr by k
        drive(weight, optimizer, _noisy(config, 1, generator), generator, range(1), angles=False)
        schedule.step()
    trace = drive(weight, optimizer, _noisy(config, steps, generator), generator, bench.steps(steps))
    return trace.norm2.mean(1).numpy(), trace.angle.mean(1).numpy()


def _noisy(config: Config, steps: int, generator: torch.Generator) -> torch.Tensor:
    uniform = 2 * torch.rand(steps, config.vectors, generator=generator, dtype=torch.float64) - 1
    return LEVEL + config.noise * uniform


def angle_of(rule: SGDM) -> float:
    """The angle per step in equilibrium, in radians (SMD Theorem 3)."""
    return float(rule.equilibrium(leading_order=True).angular_update or 0.0)


def plot(result: Result[Config]) -> Figure:
    """Norm and angle after the fall of the first seed, over their new equilibrium."""
    config = result.config
    titles = [f"{what}, momentum {m:g}" for what in ("‖w‖² over its new equilibrium", "angle over its new equilibrium")
              for m in config.momenta]  # fmt: skip
    figure = make_subplots(rows=2, cols=len(config.momenta), subplot_titles=titles, vertical_spacing=0.16)
    for col, momentum in enumerate(config.momenta):
        rule, least = config.rule(momentum), config.least(momentum)
        t = np.linspace(0, 2 * least - 1, POINTS).astype(int)
        for row, (name, unit) in enumerate((("norm2", equilibrium(rule)), ("angle", angle_of(rule))), 1):
            for way, label in enumerate(WAYS):
                line = Scatter(x=t, y=result[name][0, col, way] / unit, name=label, line={"color": COLOURS[way]})
                figure.add_trace(line.update(showlegend=row == 1 and col == 0), row=row, col=col + 1)
            figure.add_vline(x=least, line={"dash": "dot", "color": INK}, row=row, col=col + 1)
            figure.add_hline(y=1, line=PREDICTED, row=row, col=col + 1)
    figure.update_xaxes(title_text="step after lr was divided", row=2)
    return styled(
        figure, f"After lr / {config.k:g}: slow, unless norms are rescaled; the least number of steps is dotted"
    )


def claims(result: Result[Config]) -> list[Claim]:
    """The wait, what it costs, and how a rescaled norm saves it."""
    config = result.config
    found: list[Claim] = []
    for i, momentum in enumerate(config.momenta):
        rule, least, name = config.rule(momentum), config.least(momentum), f"momentum {momentum:g}"
        target, angle = equilibrium(rule), angle_of(rule)
        after, left = result["angle_after"][:, i], 2 - 1 / config.k
        found += [
            at_least(f"steps until ‖w‖² is 5 % above its new equilibrium, {name}", least, result["arrived"][:, i]),
            agrees(f"‖w‖⁴ over its new equilibrium after the least steps, 2-1/k (ours), {name}", left,
                   result["norm4_at_least"][:, i] / target**2, within=0.05),
            agrees(f"angle right after the fall, 1/sqrt(k) of the new equilibrium's, {name}", angle / config.k**0.5,
                   after[:, 0], within=0.05),
            agrees(f"angle right after the fall, norms divided by k^(1/4), {name}", angle, after[:, 1], within=0.05),
            agrees(f"‖w‖² rescaled stays at its new equilibrium, {name}", target, result["norm2_rescaled"][:, i],
                   within=0.02),
        ]  # fmt: skip
    return found
