"""Runs of 1/4, 1 and 4 times the length: where the best weight decay moves, and what rules lose against it (ours).

The model, the batch and the learning rate are the tuned ones. The weight decay is on a grid in factors of 4. Two values
set its range: the tuned weight decay (rule copy) and the one that keeps the run length in memories (rule tau). The grid
reaches from a quarter of the lower to four times the higher one. The rules power-lines, completed and horizon are not
on the grid and have separate trainings.
"""

from dataclasses import dataclass, replace

import numpy as np

from gyroscope.theory.transfer_rows import TransferSettings
from gyroscope.tools import Array
from gyroscope_lab.framework.claims import Claim, at_most, near
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.transfer._decay_settings import (
    BESIDE_GRID,
    RATIOS,
    LengthSetting,
    decay_factors,
    length_parts,
    length_setting,
    rules_of_length,
)
from gyroscope_lab.transfer._networks import Tuned, make_problem
from gyroscope_lab.transfer._rules_trial import MARGIN, best_of
from gyroscope_lab.transfer._table import write_summary as write_summary  # the runner calls it
from gyroscope_lab.transfer._training import adamw, groups_of, train
from gyroscope_lab.transfer.tuning import TUNED

CLAIMS = {
    "decay_grid_gpt": "GPT, tokens × 1/4 and × 4: the best weight decay keeps the run length, and rules are near it",
    "decay_grid_mlp": "MLP, samples × 1/4 and × 4: the best weight decay keeps the run length, and rules are near it",
    "decay_grid_cnn": "CNN, samples × 1/4 and × 4: the best weight decay keeps the run length, and rules are near it",
    "decay_grid_fashion": "MLP on Fashion-MNIST, samples × 1/4 and × 4: the best weight decay keeps the run length, "
    "and rules are near it",
}
COST = {
    "decay_grid_gpt": {"quick": "8 min", "paper": "15 min"},
    "decay_grid_mlp": {"quick": "4 min", "paper": "8 min"},
    "decay_grid_cnn": {"quick": "14 min", "paper": "28 min"},
    "decay_grid_fashion": {"quick": "4 min", "paper": "8 min"},
}
# Binary orders between the best weight decay and the one that keeps the run length: one step of the grid.
WITHIN = 2.0


@dataclass(frozen=True)
class Config:
    """A tuned run and the ratios of lengths."""

    tuned: Tuned
    ratios: tuple[float, ...] = RATIOS
    seeds: int = 5

    @property
    def parts(self) -> tuple[LengthSetting, ...]:
        """The grid of each length, and the rules that are not on it."""
        return tuple(part for ratio in self.ratios for part in length_parts(ratio))


QUICK = {f"decay_grid_{network}": Config(tuned) for network, tuned in TUNED.items()}
PAPER = {name: replace(config, seeds=2 * config.seeds) for name, config in QUICK.items()}


def measure(trial: Trial[Config]) -> Measurements:
    """Train for one length with one setting. Return the loss on data held out."""
    tuned = trial.config.tuned
    ratio, lr_factor, decay_factor = trial.part
    problem = make_problem(tuned.network, tuned.width, trial.seed)
    weights = TransferSettings(tuned.lr * lr_factor, tuned.weight_decay * decay_factor)
    settings = {"hidden": weights, "embedding": weights, "gains": TransferSettings(weights.lr, 0.0)}
    optimizer = adamw(groups_of(problem.model, settings), tuned.betas)
    steps = round(ratio * tuned.steps)
    return {"loss": train(trial, problem, [optimizer], batch=tuned.batch, steps=steps, seed=trial.seed)}


def losses_at(result: Result[Config], ratio: float) -> dict[LengthSetting, Array]:
    """Return the losses of all settings of one length, one value for each seed."""
    parts = enumerate(result.config.parts)
    return {part: result["loss"][:, number] for number, part in parts if part[0] == ratio}


def best_orders(result: Result[Config], ratio: float) -> Array:
    """Return log2 of the grid's best weight decay over the one that keeps the run length, for each seed."""
    losses = losses_at(result, ratio)
    factors = decay_factors(ratio)
    on_grid = np.array([losses[ratio, 1.0, factor] for factor in factors])
    best = np.array(factors)[on_grid.argmin(0)]
    return np.asarray(np.log2(best / length_setting("tau", ratio)[2]))


def plot(result: Result[Config]) -> Figure:
    """Return the loss over the factor of the weight decay: a panel for each length, and a dot for each seed."""
    ratios = result.config.ratios
    panels = Panels(*(f"length × {ratio:g}" for ratio in ratios), horizontal_spacing=0.08)
    for panel, ratio in enumerate(ratios):
        losses = losses_at(result, ratio)
        factors = decay_factors(ratio)
        means = [losses[ratio, 1.0, factor].mean() for factor in factors]
        panels.line(panel, factors, means, "tuned lr", COLOURS[0])
        panels.figure.update_xaxes(tickvals=factors, **panels.place(panel))
        for part, values in losses.items():
            name, colour = _series(part)
            panels.dots(panel, np.full(len(values), part[2]), values, name, colour, size=7)
    panels.figure.update_xaxes(title_text="factor of the tuned weight decay", type="log")
    panels.figure.update_yaxes(title_text="loss on data held out", col=1)
    return panels.titled(f"{result.config.tuned.network}: weight decay in runs of another length")


def _series(part: LengthSetting) -> tuple[str, str]:
    """Return the name of a setting in the legend, and its colour."""
    for name, colour in zip(BESIDE_GRID, COLOURS[1:], strict=False):
        if part[0] != 1 and part == length_setting(name, part[0]):  # at the tuned length all rules are copy
            return name, colour
    return "tuned lr", COLOURS[0]


def claims(result: Result[Config]) -> list[Claim]:
    """Judge where the best weight decay is, and each rule against the best setting of its length."""
    judged = []
    for ratio in result.config.ratios:
        losses = losses_at(result, ratio)
        best = best_of(losses)
        sentence = f"length × {ratio:g}: log2 of the best weight decay over the one that keeps the run length"
        judged.append(near(sentence, 0.0, best_orders(result, ratio), margin=WITHIN))
        said = f"lr × {best[1]:.3g}, weight decay × {best[2]:.3g}"
        for name in rules_of_length(ratio):
            part = length_setting(name, ratio)
            if part != best:
                gap = losses[part] - losses[best]
                judged.append(at_most(f"length × {ratio:g}: {name} minus the best setting ({said}), nats", MARGIN, gap))
    return judged
