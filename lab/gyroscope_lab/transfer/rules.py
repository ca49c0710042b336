"""Published transfer rules on trial: the loss after another batch, length or width, at tuned settings moved by each."""

from dataclasses import dataclass

from gyroscope.theory import Scale, TransferRule, transfer
from gyroscope.theory.transfer_rows import TransferRow
from gyroscope.theory.transfer_rules import RULES
from gyroscope_lab.framework.claims import Claim
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import Figure
from gyroscope_lab.transfer._networks import TUNED, Tuned, make_problem
from gyroscope_lab.transfer._rules_trial import COMPARED, claims_within_margin, plot_rules
from gyroscope_lab.transfer._table import write_summary as write_summary  # the runner calls it
from gyroscope_lab.transfer._training import adamw, groups_of, train

CLAIMS = {
    "batch_gpt": "GPT, batch × 1/4 and × 4 at equal tokens: which rule is within 0.01 nats of the best",
    "batch_mlp": "MLP, batch × 1/4 and × 4 at equal samples: which rule is within 0.01 nats of the best",
    "batch_cnn": "CNN, batch × 1/4 and × 4 at equal samples: which rule is within 0.01 nats of the best",
    "batch_fashion": "MLP on Fashion-MNIST, batch × 1/4 and × 4: which rule is within 0.01 nats of the best",
    "tokens_gpt": "GPT, tokens × 1/4 and × 4: which rule is within 0.01 nats of the best",
    "tokens_mlp": "MLP, samples × 1/4 and × 4: which rule is within 0.01 nats of the best",
    "tokens_cnn": "CNN, samples × 1/4 and × 4: which rule is within 0.01 nats of the best",
    "tokens_fashion": "MLP on Fashion-MNIST, samples × 1/4 and × 4: which rule is within 0.01 nats of the best",
    "width_gpt": "GPT, width 32 to 64, at the larger size to 256: which rule is within 0.01 nats of the best",
}
COST = {
    "batch_gpt": {"quick": "5 min", "paper": "10 min"},
    "batch_mlp": {"quick": "1 min", "paper": "2 min"},
    "batch_cnn": {"quick": "3 min", "paper": "6 min"},
    "batch_fashion": {"quick": "2 min", "paper": "4 min"},
    "tokens_gpt": {"quick": "4 min", "paper": "12 min"},
    "tokens_mlp": {"quick": "2 min", "paper": "4 min"},
    "tokens_cnn": {"quick": "4 min", "paper": "8 min"},
    "tokens_fashion": {"quick": "2 min", "paper": "4 min"},
    "width_gpt": {"quick": "1 min", "paper": "30 min"},
}
# A rule of SGD that people also use with Adam.
LINEAR_LR = TransferRule("linear-lr", {"batch": 1.0}, {}, "the linear rule of SGD, with AdamW")


@dataclass(frozen=True)
class Config:
    """A tuned run, the axis that changes, and its factors."""

    tuned: Tuned
    axis: str
    factors: tuple[float, ...]
    seeds: int = 3

    @property
    def parts(self) -> tuple[tuple[float, str], ...]:
        """Factor and rule of each training."""
        return tuple((factor, name) for factor in self.factors for name in COMPARED[self.axis])


def _configs(more: int) -> dict[str, Config]:
    seeds = {"gpt": 3, "mlp": 5, "cnn": 3, "fashion": 5}
    configs = {
        f"{axis}_{network}": Config(TUNED[network], axis, (0.25, 4.0), seeds[network] * more)
        for axis in ("batch", "tokens")
        for network in TUNED
    }
    factors = (2.0, 4.0, 8.0) if more > 1 else (2.0,)
    return {**configs, "width_gpt": Config(TUNED["gpt"], "width", factors, seeds["gpt"] * more)}


QUICK = _configs(1)
PAPER = _configs(2)


def scales(config: Config, factor: float) -> tuple[Scale, Scale]:
    """Return the size of the tuned run and of the new one. Another batch sees as many samples."""
    tuned = config.tuned
    base = Scale(batch=tuned.batch, tokens=tuned.batch * tuned.steps, width=tuned.width)
    sizes = {"batch": base.batch, "tokens": base.tokens, "width": tuned.width}
    sizes[config.axis] *= factor
    return base, Scale(**sizes)


def moved_settings(config: Config, factor: float, name: str) -> tuple[TransferRow, Scale]:
    """Return the settings by a rule, and the new size."""
    base, to = scales(config, factor)
    moved = transfer(config.tuned.rule, base=base, to=to, transfer_rules=(*RULES, LINEAR_LR))
    return next(row for row in moved.rows if row.name == name), to


def measure(trial: Trial[Config]) -> Measurements:
    """Train at the new size with the settings of a rule. Return the loss on data held out."""
    tuned = trial.config.tuned
    row, to = moved_settings(trial.config, *trial.part)
    problem = make_problem(tuned.network, round(to.width or 0), trial.seed)
    optimizer = adamw(groups_of(problem.model, row.groups), tuned.betas)
    return {"loss": train(trial, problem, [optimizer], batch=round(to.batch), steps=round(to.steps), seed=trial.seed)}


def plot(result: Result[Config]) -> Figure:
    """Return the loss of each rule, a panel for each factor."""
    config = result.config
    title = f"{config.tuned.network}: another {config.axis}, settings by rule"
    return plot_rules(result, lambda factor: f"{config.axis} × {factor:g}", title)


def claims(result: Result[Config]) -> list[Claim]:
    """Judge which rules are within the margin of the best."""
    return claims_within_margin(result, lambda factor: f"{result.config.axis} × {factor:g}")
