"""GPT of 2, 4 and 8 times the width: where the best lr moves, and what is lost at transferred settings (ours).

At each width the learning rate of hidden weights and the head is taken from a grid with the tuned weight decay. The
grid has the settings of the rules copy and mup. The rules independent and fan change the weight decay too, and have a
training of their own. Embeddings and gains keep their tuned settings.
"""

from dataclasses import dataclass

import numpy as np

from gyroscope.theory.scaling import TransferSettings
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

COST = {"quick": "20 min", "paper": "1 h"}
# Binary orders between the best learning rate and the one that is transferred.
WITHIN = 1.0


@dataclass(frozen=True)
class Config:
    """A tuned run, the ratios of widths, and for each ratio the factors of the learning rate."""

    tuned: Tuned
    ratios: tuple[float, ...]
    lr_factors: tuple[tuple[float, ...], ...]
    seeds: int = 3

    @property
    def parts(self) -> tuple[WidthSetting, ...]:
        """The grid with the tuned weight decay, then the rules that change it."""
        return grid_parts(self.ratios, self.lr_factors)


GRID = ((2.0, 1.0, 0.5, 0.25), (1.0, 0.5, 0.25, 0.125), (1.0, 0.25, 0.125, 0.0625))
QUICK = Config(TUNED["gpt"], (2.0, 4.0, 8.0), GRID, 3)
PAPER = Config(TUNED["gpt"], (2.0, 4.0, 8.0), GRID, 10)


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


def losses_at(result: Result[Config], ratio: float) -> dict[WidthSetting, Array]:
    """Return the losses of all settings at one width, one value for each seed."""
    parts = enumerate(result.config.parts)
    return {part: result["loss"][:, number] for number, part in parts if part[0] == ratio}


def best_orders(result: Result[Config], ratio: float) -> Array:
    """Return log2 of the best learning rate of the grid over the one that is transferred, for each seed."""
    grid = {part[1]: values for part, values in losses_at(result, ratio).items() if part[2] == 1}
    best = np.array([*grid])[np.array([*grid.values()]).argmin(0)]
    return np.log2(best * ratio)


def plot(result: Result[Config]) -> Figure:
    """Return the loss over the factor of the learning rate, a line for each width, and the rules as dots."""
    panels = Panels("")
    for i, ratio in enumerate(result.config.ratios):
        losses = losses_at(result, ratio)
        grid = sorted(part for part in losses if part[2] == 1)
        means = [losses[part].mean() for part in grid]
        panels.line(0, [part[1] for part in grid], means, f"width × {ratio:g}", COLOURS[i])
        for part, values in losses.items():
            panels.dots(0, np.full(len(values), part[1]), values, colour=COLOURS[i], size=6)
    panels.figure.update_xaxes(title_text="factor of the tuned lr", type="log")
    panels.figure.update_yaxes(title_text="loss on data held out")
    return panels.titled("GPT: the learning rate of hidden weights by width")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge where the best learning rate is, and each rule against the best setting of its width."""
    judged = []
    for ratio in result.config.ratios:
        losses = losses_at(result, ratio)
        best = best_of(losses)
        sentence = f"width × {ratio:g}: log2 of the best lr over the tuned lr / {ratio:g}"
        judged.append(near(sentence, 0.0, best_orders(result, ratio), margin=WITHIN))
        said = f"lr × {best[1]:g}, weight decay × {best[2]:.3g}"
        for name in ("copy", *DECAY_POWERS):
            part = setting_of(name, ratio)
            if part != best:
                sentence = f"width × {ratio:g}: {name} minus the best setting ({said}), nats"
                judged.append(at_most(sentence, MARGIN, losses[part] - losses[best]))
    return judged
