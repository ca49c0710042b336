"""At the same rotation a smaller lr with more weight decay changes the loss. When, and by how much (ours).

The learning rate of hidden weights is multiplied by a factor and their weight decay divided by it. lr × weight decay
stays the tuned one, so the rotation in equilibrium is the same. The equilibrium norm is proportional to the factor.
Embeddings and gains keep their settings. The splits are compared under six conditions: the tuned run, initial norms in
proportion to the factor, a longer warmup, more noise in the gradients (a quarter of the batch), less noise (four times
the batch), and four times the steps.
"""

from dataclasses import dataclass, replace

import numpy as np

from gyroscope.theory.transfer_rows import TransferSettings
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
COST = {"split_gpt": {"quick": "8 min", "paper": "16 min"}, "split_mlp": {"quick": "4 min", "paper": "8 min"}}
FACTORS = (0.25, 1.0, 4.0)
# The first one is the tuned run.
CONDITIONS = ("same norm", "norm in proportion", "longer warmup", "batch / 4", "batch × 4", "steps × 4")
LONGER_WARMUP = 0.3


@dataclass(frozen=True)
class Config:
    """A tuned run with other splits of lr × weight decay."""

    tuned: Tuned
    seeds: int = 5

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """Condition and factor of each training."""
        return tuple((condition, factor) for condition in CONDITIONS for factor in FACTORS)


QUICK = {"split_gpt": Config(TUNED["gpt"]), "split_mlp": Config(TUNED["mlp"])}
PAPER = {name: replace(config, seeds=2 * config.seeds) for name, config in QUICK.items()}


def measure(trial: Trial[Config]) -> Measurements:
    """Train with one split under one condition. Return the loss on data held out."""
    tuned = trial.config.tuned
    condition, factor = trial.part
    problem = make_problem(tuned.network, tuned.width, trial.seed)
    settings = {
        "hidden": TransferSettings(tuned.lr * factor, tuned.weight_decay / factor),
        "embedding": TransferSettings(tuned.lr, tuned.weight_decay),
        "gains": TransferSettings(tuned.lr, 0.0),
    }
    groups = groups_of(problem.model, settings)
    if condition == "norm in proportion":
        for group in groups["hidden"]:
            for parameter in group["params"]:
                parameter.data *= factor
    optimizer = adamw(groups, tuned.betas)
    loss = train(
        trial,
        problem,
        [optimizer],
        batch=round(tuned.batch * {"batch / 4": 0.25, "batch × 4": 4.0}.get(condition, 1.0)),
        steps=4 * tuned.steps if condition == "steps × 4" else tuned.steps,
        seed=trial.seed,
        warmup=LONGER_WARMUP if condition == "longer warmup" else WARMUP,
    )
    return {"loss": loss}


def spread(result: Result[Config], condition: str) -> Array:
    """Return the mean distance of the two splits from the tuned one, nats, one value for each seed."""
    losses = losses_of(result, condition)
    distances = [np.abs(losses[factor] - losses[1.0]) for factor in FACTORS if factor != 1]
    return np.asarray(np.mean(distances, axis=0))


def plot(result: Result[Config]) -> Figure:
    """Return the loss over the split, a panel for each condition."""
    return plot_rules(result, str, f"{result.config.tuned.network}: one rotation, lr × f and weight decay / f")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether the other conditions bring the splits together."""
    same = spread(result, CONDITIONS[0])
    return [
        at_most(
            f"{condition}: distance of the splits minus that of the tuned run, nats",
            0.0,
            spread(result, condition) - same,
        )
        for condition in CONDITIONS[1:]
    ]
