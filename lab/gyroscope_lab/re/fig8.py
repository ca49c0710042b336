"""AdamW rotates all vectors alike, whatever their gradients, and Adam with L2 does not (RE Figure 8)."""

from dataclasses import dataclass

import numpy as np

from gyroscope.theory import UpdateRule
from gyroscope.tools import Array
from gyroscope_lab.framework.claims import Claim, agrees, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, INK, Figure, Panels
from gyroscope_lab.re._appendix_j import layer_equilibrium, optimizers, relative_spread
from gyroscope_lab.simulate import Trajectory, network, random_gammas

COST = {"quick": "15 s", "paper": "1 min"}
NAMES = ("AdamW", "Adam+L2")
# Vectors that are drawn: quantiles of their gradient norms.
SHOWN = (0.1, 0.4, 0.7, 0.95)


@dataclass(frozen=True)
class Config:
    """The simple system with random gammas: B, C = K, and the hyper-parameters of Appendix J."""

    speedup: float
    steps: int
    seeds: int = 3
    vectors: int = 128
    fan_in: int = 128
    batch: int = 32
    every: int = 100

    @property
    def rules(self) -> tuple[UpdateRule, ...]:
        """AdamW and Adam with L2."""
        return optimizers(self.speedup)[::3]


# Ten times the decay of the paper.
QUICK = Config(speedup=10, steps=8000, every=50)
# As in the paper: 30,000 steps, every hundredth shown.
PAPER = Config(speedup=1, steps=30_000)


def measure(trial: Trial[Config]) -> Measurements:
    """Simulate both optimizers on the same noise. Return curves of a few vectors and means of the second half."""
    config = trial.config
    shape = (config.vectors, config.fan_in)
    path = network(
        config.rules,
        shape=shape,
        batch=config.batch,
        gammas=random_gammas(shape, trial.seed),
        every=config.every,
        average=10,  # smooths what is drawn
        **trial.walk(config.steps),
    )
    settled = path.averages(after=config.steps // 2)
    return {
        "norm": _drawn(path, path.norm, np.sqrt((path.norm**2).mean(2))),
        "angle": _drawn(path, path.angular_update, path.angular_update.mean(2)),
        "settled_norm": settled.layer_norm,
        "settled_angle": settled.angular_update,
        "gradient": settled.unit_grad_norm,
    }


def _drawn(path: Trajectory, values: Array, layer: Array) -> Array:
    """Return (optimizers, vectors shown and the layer, records)."""
    order = np.argsort(path.averages().unit_grad_norm.mean(0))
    chosen = [order[int(share * len(order))] for share in SHOWN]
    return np.concatenate([values[:, :, chosen], layer[:, :, None]], axis=2).transpose(1, 2, 0)


def plot(result: Result[Config]) -> Figure:
    """Draw norm and angle of the first seed: four vectors, the layer in black, its prediction dashed."""
    config = result.config
    t = np.arange(config.every, config.steps + 1, config.every)
    titles = [f"{name}: {what}" for what in ("norm", "angle per step, rad") for name in NAMES]
    panels = Panels(*titles, rows=2, vertical_spacing=0.14, shared_xaxes=True)
    for panel in range(len(titles)):
        row, i = divmod(panel, len(NAMES))
        *vectors, layer = result[("norm", "angle")[row]][0, i]
        for share, colour, y in zip(SHOWN, COLOURS[2:], vectors, strict=False):
            name = f"vector at the {100 * share:.0f} % quantile of gradient norms"
            panels.line(panel, t, y, name, colour, width=1)
        panels.line(panel, t, layer, "layer", INK, width=2.2)
        panels.level(panel, predicted(result, config.rules[i])[row], color=COLOURS[1])
    panels.figure.update_xaxes(title_text="step", row=2)
    panels.figure.update_yaxes(rangemode="tozero")
    return panels.titled("Random walk with random gammas (dashed: the layer's prediction)")


def predicted(result: Result[Config], rule: UpdateRule) -> tuple[float, float]:
    """Return norm and angle of the layer by Table 1, for Adam+L2 by (84) and (87) from measured gradients."""
    gradients = result["gradient"][:, NAMES.index("Adam+L2")].ravel()
    norm, angle, _ = layer_equilibrium(rule, result.config.fan_in, gradients, leading_order=True)
    return norm, angle


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether AdamW is as predicted and even, and whether Adam with L2 is slower for larger gradients."""
    norm, angle = predicted(result, result.config.rules[0])
    turns = result["settled_angle"]
    spread = relative_spread(turns)
    correlation = [rank_correlation(turns[s, 1], result["gradient"][s, 1]) for s in range(len(turns))]
    return [
        agrees("norm under AdamW (Table 1)", norm, result["settled_norm"][:, 0], within=0.05),
        agrees("angle per step under AdamW (Table 1)", angle, turns[:, 0].mean(1), within=0.05),
        at_most("spread of the angle over vectors, AdamW", 0.05, spread[:, 0]),
        at_least("spread under Adam+L2 over the spread under AdamW", 5.0, spread[:, 1] / spread[:, 0]),
        at_most("rank correlation of a vector's angle with its gradient norm, Adam+L2", -0.9, correlation),
    ]


def rank_correlation(x: Array, y: Array) -> float:
    """Return Spearman's rank correlation.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0]))
    -1.0
    """
    rank_x, rank_y = (np.argsort(np.argsort(values)).astype(float) for values in (x, y))
    return round(float(np.corrcoef(rank_x, rank_y)[0, 1]), 9)  # -1 and not -0.9999999999999999
