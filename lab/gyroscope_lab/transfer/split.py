"""At the same rotation a smaller lr with more weight decay changes the loss, less so if the start has its norm (ours).

The learning rate of hidden weights is multiplied by a factor and their weight decay divided by it, so that lr × weight
decay is the tuned one and rotation in equilibrium is the same. Embeddings and gains keep their settings. The
equilibrium's norm is in proportion to the factor. Three starts are compared: the same initial norms, initial norms in
proportion to the factor, and the same norms with a longer warmup.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gyroscope.theory.scaling import TransferSettings
from gyroscope.tools import Array
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import Figure
from gyroscope_lab.transfer._networks import Tuned, make_problem
from gyroscope_lab.transfer._rules_trial import losses_of, plot_rules
from gyroscope_lab.transfer._training import WARMUP, adamw, groups_of, train
from gyroscope_lab.transfer.tuning import TUNED

CLAIMS = {
    "split_gpt": "GPT: at one rotation, lr and weight decay apart by 4 cost less with the start's norm in proportion",
    "split_mlp": "MLP with layer norm: at one rotation, lr and weight decay apart by 4 cost less with the start's norm "
    "in proportion",
}
COST = {"split_gpt": {"quick": "3 min", "paper": "6 min"}, "split_mlp": {"quick": "1 min", "paper": "2 min"}}
FACTORS = (0.25, 1.0, 4.0)
STARTS = ("same norm", "norm in proportion", "longer warmup")
LONGER_WARMUP = 0.3


@dataclass(frozen=True)
class Config:
    """A tuned run whose lr × weight decay is split otherwise."""

    tuned: Tuned
    seeds: int = 3

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """Start and factor of each training."""
        return tuple((start, factor) for start in STARTS for factor in FACTORS)


QUICK = {"split_gpt": Config(TUNED["gpt"], 3), "split_mlp": Config(TUNED["mlp"], 3)}
PAPER = {"split_gpt": Config(TUNED["gpt"], 6), "split_mlp": Config(TUNED["mlp"], 6)}


def measure(trial: Trial[Config]) -> Measurements:
    """Train with one split and one start. Return the loss on data held out."""
    tuned = trial.config.tuned
    start, factor = trial.part
    problem = make_problem(tuned.network, tuned.width, trial.seed)
    settings = {
        "hidden": TransferSettings(tuned.lr * factor, tuned.weight_decay / factor),
        "embedding": TransferSettings(tuned.lr, tuned.weight_decay),
        "gains": TransferSettings(tuned.lr, 0.0),
    }
    groups = groups_of(problem.model, settings)
    if start == "norm in proportion":
        for group in groups["hidden"]:
            for parameter in group["params"]:
                parameter.data *= factor
    warmup = LONGER_WARMUP if start == "longer warmup" else WARMUP
    optimizer = adamw(groups, tuned.betas)
    sizes: dict[str, Any] = {"batch": tuned.batch, "steps": tuned.steps, "seed": trial.seed}
    return {"loss": train(trial, problem, [optimizer], warmup=warmup, **sizes)}


def spread(result: Result[Config], start: str) -> Array:
    """Return the mean distance of the two splits from the tuned one, nats, one value for each seed."""
    losses = losses_of(result, start)
    distances = [np.abs(losses[factor] - losses[1.0]) for factor in FACTORS if factor != 1]
    return np.asarray(np.mean(distances, axis=0))


def plot(result: Result[Config]) -> Figure:
    """Return the loss over the split, a panel for each start."""
    return plot_rules(result, str, f"{result.config.tuned.network}: one rotation, lr × f and weight decay / f")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether the other two starts bring the splits together."""
    same = spread(result, "same norm")
    return [
        at_most(
            f"{start}: distance of the splits minus that from the same norm, nats", 0.0, spread(result, start) - same
        )
        for start in STARTS[1:]
    ]
