"""CT's Figures 3 and 7: a transformer trained with Adam at several pairs of betas, and its largest update."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim import Adam

from gyroscope._types import Array
from gyroscope.lab.ct._text_training import TextTraining, train_step
from gyroscope.lab.experiment import Measurements, Trial
from gyroscope.theory.stability import update_bound

POINTS = 120
# The slope at step n is taken between n-5 and n+5, as in the paper.
WINDOW = 5


@dataclass(frozen=True, kw_only=True)
class BetasConfig(TextTraining):
    """Adam without weight decay at `points` pairs of betas, between two beta2.

    `double` trains in float64, where v does not underflow.
    """

    steps: int
    points: int
    lowest: float
    highest: float
    lr: float = 1e-3
    double: bool = False

    @property
    def parts(self) -> list[tuple[float, float]]:
        """The pairs (beta1, beta2), uniform in beta2."""
        return [(self.beta1(b), float(b)) for b in np.linspace(self.lowest, self.highest, self.points)]

    def beta1(self, beta2: float) -> float:
        """The curve on which the pairs lie."""
        raise NotImplementedError


def measure(trial: Trial[BetasConfig]) -> Measurements:
    """The largest entry of u_n = (θ_n - θ_{n+1})/lr, and how often it belongs to one character's weights."""
    config = trial.config
    betas: tuple[float, float] = trial.part
    generator = trial.generator()
    model = config.model(trial.seed).to(torch.float64 if config.double else torch.float32)
    # eps so small that it never bounds an update: the bound under test is that of Adam without eps.
    optimizer = Adam(model.parameters(), config.lr, betas, eps=1e-30, fused=True)
    largest = np.zeros(config.steps)
    where = np.zeros(config.steps, dtype=int)
    for n in trial.steps(config.steps):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        train_step(model, config.random_batch(generator), optimizer)
        moves = [(old - new.detach()).abs().max() for old, new in zip(before, model.parameters(), strict=True)]
        largest[n] = torch.stack(moves).max() / config.lr
        where[n] = torch.stack(moves).argmax()
    # One row of these two matrices belongs to one character; a rare one has no gradient for many steps.
    rows = [i for i, (name, _) in enumerate(model.named_parameters()) if name in ("token.weight", "head.weight")]
    return {
        "update": largest[shown(config)],
        "slope": slope(largest),
        "of_a_character": np.isin(where[config.steps // 2 :], rows).mean(),
        # (5) is zero at n = 0, where C = 0.
        "over_bound": (largest[1:] / bound(config, betas, exact=False)[1:]).max(),
        "over_exact": (largest / bound(config, betas, exact=True)).max(),
    }


def shown(config: BetasConfig) -> NDArray[np.intp]:
    """The steps that are kept for the figure, closer together at the beginning."""
    return np.unique(np.geomspace(1, config.steps, POINTS).astype(np.intp)) - 1


def slope(largest: Array) -> float:
    """d ln u/dn: the median of the slopes at all steps of the second half, each over ten steps as in the paper.

    The median, for the largest entry falls back whenever its gradient returns, and then grows anew.
    """
    log = np.log(largest[len(largest) // 2 - WINDOW :])
    return float(np.median((log[2 * WINDOW :] - log[: -2 * WINDOW]) / (2 * WINDOW)))


def bound(config: BetasConfig, betas: tuple[float, float], exact: bool) -> Array:
    """The bound (5), or the exact one, at every step."""
    return np.asarray(update_bound(np.arange(config.steps), *betas, exact=exact))
