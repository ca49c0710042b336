"""The best of nine settings of each optimizer around those converted from AdamW, on seeds that no trial is judged by.

AdamW was tuned with the same number of trainings (`tuning`). Hyperball has no weight decay, so its nine settings are
learning rates.
"""

from dataclasses import dataclass, replace

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.transfer._conversions import OPTIMIZERS, WITHOUT_MUON, Factors, converted_run, loss_of
from gyroscope_lab.transfer._networks import Tuned
from gyroscope_lab.transfer._rules_trial import best_of
from gyroscope_lab.transfer._training import FIRST_TUNING_SEED
from gyroscope_lab.transfer.tuning import TUNED

CLAIMS = {
    "conversion_tuning_gpt": "GPT: settings converted from AdamW are within 0.02 nats of the best of nine",
    "conversion_tuning_mlp": "MLP: settings converted from AdamW are within 0.02 nats of the best of nine",
    "conversion_tuning_cnn": "CNN: settings converted from AdamW are within 0.02 nats of the best of nine",
}
COST = {
    "conversion_tuning_gpt": {"quick": "6 min", "paper": "18 min"},
    "conversion_tuning_mlp": {"quick": "2 min", "paper": "6 min"},
    "conversion_tuning_cnn": {"quick": "3 min", "paper": "9 min"},
}
WITHIN = 0.02
GRID = tuple(Factors(lr, decay) for lr in (0.5, 1.0, 2.0) for decay in (1 / 3, 1.0, 3.0))
SPHERE_GRID = tuple(Factors(2.0 ** (half_orders / 2)) for half_orders in range(-4, 5))


@dataclass(frozen=True)
class Config:
    """A tuned run of AdamW and the optimizers that it is converted to."""

    tuned: Tuned
    optimizers: tuple[str, ...] = OPTIMIZERS[1:]
    seeds: int = 2

    @property
    def parts(self) -> tuple[tuple[str, Factors], ...]:
        """Optimizer and factors of each training."""
        return tuple((name, factors) for name in self.optimizers for factors in grid_of(name))


QUICK = {
    "conversion_tuning_gpt": Config(TUNED["gpt"]),
    "conversion_tuning_mlp": Config(TUNED["mlp"]),
    "conversion_tuning_cnn": Config(TUNED["cnn"], WITHOUT_MUON[1:]),
}
PAPER = {name: replace(config, seeds=3 * config.seeds) for name, config in QUICK.items()}


def grid_of(optimizer: str) -> tuple[Factors, ...]:
    """Return the nine settings of an optimizer."""
    return SPHERE_GRID if optimizer == "Hyperball" else GRID


def measure(trial: Trial[Config]) -> Measurements:
    """Train with one setting. Return the loss on data held out."""
    name, factors = trial.part
    seed = FIRST_TUNING_SEED + trial.seed
    run = converted_run(trial.config.tuned, name, seed, factors)
    return {"loss": loss_of(trial, trial.config.tuned, run, seed)}


def losses_by_factors(result: Result[Config], optimizer: str) -> dict[Factors, Array]:
    """Return the losses of an optimizer, one value for each seed."""
    parts = enumerate(result.config.parts)
    return {factors: result["loss"][:, number] for number, (name, factors) in parts if name == optimizer}


def plot(result: Result[Config]) -> Figure:
    """Return the loss over the factor of the learning rate, at the best weight decay for each."""
    panels = Panels("")
    for name, colour in zip(result.config.optimizers, COLOURS, strict=False):
        losses = losses_by_factors(result, name)
        rates = sorted({factors.lr for factors in losses})
        best = [min(losses[each].mean() for each in losses if each.lr == rate) for rate in rates]
        panels.line(0, rates, np.array(best), name, colour)
    panels.figure.update_xaxes(title_text="factor of the converted lr", type="log", tickvals=(0.25, 0.5, 1, 2, 4))
    panels.figure.update_yaxes(title_text="loss on data held out")
    return panels.titled(f"{result.config.tuned.network}: around settings converted from AdamW")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge how far the converted settings are above the best of the nine."""
    judged = []
    for name in result.config.optimizers:
        losses = losses_by_factors(result, name)
        best = best_of(losses)
        said = f"lr × {best.lr:.3g}, weight decay × {best.weight_decay:.3g}"
        above = losses[Factors()] - losses[best]
        judged.append(at_most(f"{name}: converted settings minus the best of nine ({said}), nats", WITHIN, above))
    return judged
