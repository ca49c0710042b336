"""Conversion from tuned AdamW to optimizers that keep norms, from initial norms and from those of equilibrium (ours).

These optimizers keep the norms that they start with. The converted angle is that of AdamW in equilibrium, so the
conversion assumes weights of about that size. A GPT of this trial starts 4.6 times below it.
"""

from dataclasses import dataclass

from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import Figure
from gyroscope_lab.transfer._conversions import converted_run, loss_of
from gyroscope_lab.transfer._networks import Tuned
from gyroscope_lab.transfer._rules_trial import MARGIN, losses_of, plot_rules
from gyroscope_lab.transfer.tuning import TUNED

CLAIMS = {
    "conversion_start_gpt": "GPT: from AdamW's equilibrium norms, optimizers that keep norms lose less than from 0.02",
    "conversion_start_mlp": "MLP: from AdamW's equilibrium norms, optimizers that keep norms lose no more",
}
COST = {
    "conversion_start_gpt": {"quick": "3 min", "paper": "6 min"},
    "conversion_start_mlp": {"quick": "2 min", "paper": "4 min"},
}
# What weights start at, beside AdamW from its own start.
INITIAL = "initial norms"
EQUILIBRIUM = "equilibrium norms"
KEEP_NORMS = ("Hyperball", "RotationalAdamW")


@dataclass(frozen=True)
class Config:
    """A tuned run."""

    tuned: Tuned
    seeds: int = 5

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """Start and optimizer of each training."""
        return ((INITIAL, "AdamW"), *((start, name) for start in (INITIAL, EQUILIBRIUM) for name in KEEP_NORMS))


QUICK = {f"conversion_start_{network}": Config(TUNED[network]) for network in ("gpt", "mlp")}
PAPER = {f"conversion_start_{network}": Config(TUNED[network], 10) for network in ("gpt", "mlp")}


def measure(trial: Trial[Config]) -> Measurements:
    """Train one optimizer from one start, at converted settings. Return the loss on data held out."""
    start, name = trial.part
    run = converted_run(trial.config.tuned, name, trial.seed, from_equilibrium=start == EQUILIBRIUM)
    return {"loss": loss_of(trial, trial.config.tuned, run, trial.seed)}


def plot(result: Result[Config]) -> Figure:
    """Return the loss of each optimizer, a panel for each start."""
    return plot_rules(result, str, f"{result.config.tuned.network}: converted to optimizers that keep norms")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the equilibrium start against the initial norms, and against tuned AdamW."""
    judged = []
    tuned = losses_of(result, INITIAL)["AdamW"]
    for name in KEEP_NORMS:
        at_start = losses_of(result, INITIAL)[name]
        settled = losses_of(result, EQUILIBRIUM)[name]
        judged.append(at_most(f"{name}: from equilibrium minus from the initial norms, nats", 0.0, settled - at_start))
        judged.append(at_most(f"{name}: from equilibrium minus tuned AdamW, nats", MARGIN, settled - tuned))
    return judged
