"""GPT of 2, 4 and 8 times the width: where the best lr moves, and what is lost at transferred settings (ours).

At each width the learning rate of hidden weights and the head is on a grid, at the tuned weight decay. The grid
includes the settings of the rules copy and mup. The rules independent and fan also change the weight decay, and have
separate trainings. Embeddings and gains keep their tuned settings.
"""

from dataclasses import dataclass, replace

import numpy as np

from gyroscope.theory.transfer_rows import TransferSettings
from gyroscope.tools import Array
from gyroscope_lab.framework.claims import Claim, at_most, near
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.transfer._networks import Tuned, make_problem
from gyroscope_lab.transfer._rules_trial import MARGIN, best_of
from gyroscope_lab.transfer._table import write_summary as write_summary  # the runner calls it
from gyroscope_lab.transfer._training import adamw, groups_of, train
from gyroscope_lab.transfer._width_settings import DECAY_POWERS, WidthSetting, grid_parts, setting_of
from gyroscope_lab.transfer.tuning import TUNED

CLAIMS = {
    "width_grid_2": "GPT, width 32 to 64: the best lr is the tuned one / 2, and rules are within 0.01 nats of it",
    "width_grid_4": "GPT, width 32 to 128: the best lr is the tuned one / 4, and rules are within 0.01 nats of it",
    "width_grid_8": "GPT, width 32 to 256: the best lr is the tuned one / 8, and rules are within 0.01 nats of it",
}
COST = {
    "width_grid_2": {"quick": "2 min", "paper": "6 min"},
    "width_grid_4": {"quick": "4 min", "paper": "12 min"},
    "width_grid_8": {"quick": "12 min", "paper": "35 min"},
}
# Binary orders between the best learning rate and the one that is transferred.
WITHIN = 1.0


@dataclass(frozen=True)
class Config:
    """A tuned run, the ratio of widths, and the factors of the learning rate."""

    tuned: Tuned
    ratio: float
    lr_factors: tuple[float, ...]
    seeds: int = 3

    @property
    def parts(self) -> tuple[WidthSetting, ...]:
        """The grid with the tuned weight decay, then the rules that change it."""
        return grid_parts(self.ratio, self.lr_factors)


QUICK = {
    "width_grid_2": Config(TUNED["gpt"], 2.0, (2.0, 1.0, 0.5, 0.25)),
    "width_grid_4": Config(TUNED["gpt"], 4.0, (1.0, 0.5, 0.25, 0.125)),
    "width_grid_8": Config(TUNED["gpt"], 8.0, (1.0, 0.25, 0.125, 0.0625)),
}
PAPER = {name: replace(config, seeds=10) for name, config in QUICK.items()}


def measure(trial: Trial[Config]) -> Measurements:
    """Train at one width with one setting. Return the loss on data held out."""
    tuned = trial.config.tuned
    ratio, lr_factor, decay_factor = trial.part
    problem = make_problem(tuned.network, round(ratio * tuned.width), trial.seed)
    settings = {
        "hidden": TransferSettings(tuned.lr * lr_factor, tuned.weight_decay * decay_factor),
        "embedding": TransferSettings(tuned.lr, tuned.weight_decay),
        "gains": TransferSettings(tuned.lr, 0.0),
    }
    optimizer = adamw(groups_of(problem.model, settings), tuned.betas)
    return {"loss": train(trial, problem, [optimizer], batch=tuned.batch, steps=tuned.steps, seed=trial.seed)}


def losses_by_setting(result: Result[Config]) -> dict[WidthSetting, Array]:
    """Return the losses of all settings, one value for each seed."""
    return {part: result["loss"][:, number] for number, part in enumerate(result.config.parts)}


def best_orders(result: Result[Config]) -> Array:
    """Return log2 of the grid's best learning rate over the transferred one, for each seed."""
    grid = {part[1]: values for part, values in losses_by_setting(result).items() if part[2] == 1}
    best = np.array([*grid])[np.array([*grid.values()]).argmin(0)]
    return np.asarray(np.log2(best * result.config.ratio))


def plot(result: Result[Config]) -> Figure:
    """Return the loss over the factor of the learning rate, a line for each weight decay and a dot for each seed."""
    panels = Panels("")
    losses = losses_by_setting(result)
    for i, decay in enumerate(sorted({part[2] for part in losses})):
        of_decay = sorted(part for part in losses if part[2] == decay)
        means = np.array([losses[part].mean() for part in of_decay])
        panels.line(0, [part[1] for part in of_decay], means, f"weight decay × {decay:.3g}", COLOURS[i])
        for part in of_decay:
            panels.dots(0, np.full(len(losses[part]), part[1]), losses[part], colour=COLOURS[i], size=6)
    factors = sorted({part[1] for part in losses})
    panels.figure.update_xaxes(title_text="factor of the tuned lr", type="log", tickvals=factors)
    panels.figure.update_yaxes(title_text="loss on data held out")
    return panels.titled(f"GPT of {result.config.ratio:g} times the width: the learning rate of hidden weights")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge where the best learning rate is, and each rule against the best setting."""
    ratio = result.config.ratio
    losses = losses_by_setting(result)
    best = best_of(losses)
    sentence = f"width × {ratio:g}: log2 of the best lr over the tuned lr / {ratio:g}"
    judged = [near(sentence, 0.0, best_orders(result), margin=WITHIN)]
    for name in ("copy", *DECAY_POWERS):
        part = setting_of(name, ratio)
        if part != best:
            said = f"lr × {best[1]:g}, weight decay × {best[2]:.3g}"
            gap = losses[part] - losses[best]
            judged.append(at_most(f"width × {ratio:g}: {name} minus the best setting ({said}), nats", MARGIN, gap))
    return judged
