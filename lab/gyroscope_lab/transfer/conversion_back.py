"""Conversions from AdamW and back to it, without tuning, against settings that were tuned by as many trainings.

Each optimizer trains at settings converted from tuned AdamW, and at the best of nine settings of its own
(`conversion_tuning`). The latter are converted back, and AdamW trains with the result. It is compared with AdamW at its
own best of nine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import Figure
from gyroscope_lab.transfer._conversions import (
    OPTIMIZERS,
    WITHOUT_MUON,
    Factors,
    converted_run,
    loss_of,
    run_back,
)
from gyroscope_lab.transfer._networks import Tuned
from gyroscope_lab.transfer._rules_trial import MARGIN, losses_of, plot_rules
from gyroscope_lab.transfer._table import write_summary as write_summary  # the runner calls it
from gyroscope_lab.transfer.tuning import TUNED

CLAIMS = {
    "conversion_back_gpt": "GPT: converted from AdamW and back, within 0.01 nats of tuned settings",
    "conversion_back_mlp": "MLP: converted from AdamW and back, within 0.01 nats of tuned settings",
    "conversion_back_cnn": "CNN: converted from AdamW and back, within 0.01 nats of tuned settings",
}
COST = {
    "conversion_back_gpt": {"quick": "7 min", "paper": "14 min"},
    "conversion_back_mlp": {"quick": "2 min", "paper": "4 min"},
    "conversion_back_cnn": {"quick": "3 min", "paper": "6 min"},
}
KINDS = ("converted", "tuned", "back")
# The best of nine factors of the converted settings, by the records of `conversion_tuning`.
BEST_OF_NINE: Mapping[str, Mapping[str, Factors]] = {
    "gpt": {
        "NAdam": Factors(1.0, 1 / 3),
        "Lion": Factors(2.0, 1.0),
        "SGDM": Factors(2.0, 3.0),
        "Muon": Factors(2.0, 1 / 3),
        "RotationalAdamW": Factors(2.0, 3.0),
        "Hyperball": Factors(2.0**0.5),
    },
    "mlp": {
        "NAdam": Factors(2.0, 1.0),
        "Lion": Factors(2.0, 3.0),
        "SGDM": Factors(2.0, 1 / 3),
        "Muon": Factors(2.0, 3.0),
        "RotationalAdamW": Factors(2.0, 3.0),
        "Hyperball": Factors(2.0),
    },
    "cnn": {
        "NAdam": Factors(2.0, 1 / 3),
        "Lion": Factors(1.0, 1 / 3),
        "SGDM": Factors(1.0, 1 / 3),
        "RotationalAdamW": Factors(0.5, 3.0),
        "Hyperball": Factors(2.0**0.5),
    },
}


@dataclass(frozen=True)
class Config:
    """A tuned run of AdamW and the optimizers that it is converted to and from."""

    tuned: Tuned
    optimizers: tuple[str, ...] = OPTIMIZERS[1:]
    seeds: int = 5

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """Optimizer and kind of settings of each training."""
        return (("AdamW", "tuned"), *((name, kind) for name in self.optimizers for kind in KINDS))


QUICK = {
    "conversion_back_gpt": Config(TUNED["gpt"]),
    "conversion_back_mlp": Config(TUNED["mlp"]),
    "conversion_back_cnn": Config(TUNED["cnn"], WITHOUT_MUON[1:]),
}
PAPER = {name: replace(config, seeds=2 * config.seeds) for name, config in QUICK.items()}


def measure(trial: Trial[Config]) -> Measurements:
    """Train with one optimizer and one kind of settings. Return the loss on data held out."""
    tuned = trial.config.tuned
    name, kind = trial.part
    best = BEST_OF_NINE[tuned.network].get(name, Factors())
    if kind == "back":
        run = run_back(tuned, name, trial.seed, best)
    else:
        run = converted_run(tuned, name, trial.seed, best if kind == "tuned" else Factors())
    return {"loss": loss_of(trial, tuned, run, trial.seed)}


def plot(result: Result[Config]) -> Figure:
    """Return the loss by kind of settings, a panel for each optimizer."""
    return plot_rules(result, str, f"{result.config.tuned.network}: converted from AdamW and back")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge both conversions against tuned settings."""
    adamw = losses_of(result, "AdamW")["tuned"]
    judged = []
    for name in result.config.optimizers:
        losses = losses_of(result, name)
        gap = losses["converted"] - losses["tuned"]
        judged.append(at_most(f"AdamW to {name}: converted minus tuned {name}, nats", MARGIN, gap))
        judged.append(at_most(f"{name} to AdamW: converted minus tuned AdamW, nats", MARGIN, losses["back"] - adamw))
    return judged
