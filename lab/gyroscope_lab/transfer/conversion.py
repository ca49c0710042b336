"""Conversion from tuned AdamW to another optimizer, without tuning, beside half and twice the learning rate."""

from dataclasses import dataclass

from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import Figure
from gyroscope_lab.transfer._conversions import OPTIMIZERS, WITHOUT_MUON, Factors, converted_run, loss_of
from gyroscope_lab.transfer._networks import Tuned
from gyroscope_lab.transfer._rules_trial import FACTORS, MARGIN, losses_of, plot_rules
from gyroscope_lab.transfer._table import write_summary as write_summary  # the runner calls it
from gyroscope_lab.transfer.tuning import TUNED

CLAIMS = {
    "conversion_gpt": "GPT: settings converted from AdamW are within 0.01 nats of half and twice their lr",
    "conversion_mlp": "MLP: settings converted from AdamW are within 0.01 nats of half and twice their lr",
    "conversion_cnn": "CNN: settings converted from AdamW are within 0.01 nats of half and twice their lr",
}
COST = {
    "conversion_gpt": {"quick": "6 min", "paper": "12 min"},
    "conversion_mlp": {"quick": "2 min", "paper": "4 min"},
    "conversion_cnn": {"quick": "4 min", "paper": "8 min"},
}


@dataclass(frozen=True)
class Config:
    """A tuned run and the optimizers that it is converted to."""

    tuned: Tuned
    optimizers: tuple[str, ...] = OPTIMIZERS
    seeds: int = 3

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """Optimizer and factor of its learning rate, for each training."""
        return tuple((name, factor) for name in self.optimizers for factor in FACTORS)


QUICK = {
    "conversion_gpt": Config(TUNED["gpt"], seeds=3),
    "conversion_mlp": Config(TUNED["mlp"], seeds=3),
    "conversion_cnn": Config(TUNED["cnn"], WITHOUT_MUON, seeds=3),
}
PAPER = {
    "conversion_gpt": Config(TUNED["gpt"], seeds=6),
    "conversion_mlp": Config(TUNED["mlp"], seeds=6),
    "conversion_cnn": Config(TUNED["cnn"], WITHOUT_MUON, seeds=6),
}


def measure(trial: Trial[Config]) -> Measurements:
    """Train with one optimizer at a factor of the converted learning rate. Return the loss on data held out.

    Embeddings and gains keep AdamW at its tuned settings.
    """
    name, factor = trial.part
    run = converted_run(trial.config.tuned, name, trial.seed, Factors(factor))
    return {"loss": loss_of(trial, trial.config.tuned, run, trial.seed)}


def plot(result: Result[Config]) -> Figure:
    """Return the loss of each optimizer over the factor of its converted learning rate."""
    title = f"{result.config.tuned.network}: settings converted from AdamW, at three factors of lr"
    return plot_rules(result, str, title)


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether the converted lr is within the margin of the best factor, and the loss of that of AdamW."""
    judged = []
    tuned = losses_of(result, "AdamW")[1.0]
    for name in result.config.optimizers:
        losses = losses_of(result, name)
        nearest = min((factor for factor in FACTORS if factor != 1), key=lambda factor: losses[factor].mean())
        sentence = f"{name}: converted lr minus the better of half and twice (× {nearest:g}), nats"
        judged.append(at_most(sentence, MARGIN, losses[1.0] - losses[nearest]))
        if name != "AdamW":
            judged.append(at_most(f"{name}: converted settings minus tuned AdamW, nats", MARGIN, losses[1.0] - tuned))
    return judged
