"""Settings tuned on a narrow GPT serve wider ones better if norms move (ours).

The best settings of each arm at width 48 (`free_norms`) train GPTs of twice and four times the width, at half, the same
and twice the learning rate. If the best learning rate does not move, copied settings cost nothing. Three seeds are
judged.
"""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.beyond._free_norms_arms import FAN_IN, gpt
from gyroscope_lab.beyond._free_norms_cells import FIRST_JUDGED_SEED, Cell, Config, trainings_of
from gyroscope_lab.beyond.free_norms import PAPER as MAIN_CONFIGS
from gyroscope_lab.beyond.free_norms import QUICK as QUICK_CONFIGS
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels

CLAIMS = {
    "free_norms_width_gpt": "GPT from std 0.02: with moving norms, settings serve 2 and 4 times the width",
    "free_norms_width_gpt_fan_in": "GPT from 1/√fan_in: with moving norms, settings serve 2 and 4 times the width",
}
COST = {
    "free_norms_width_gpt": {"quick": "6 min", "paper": "20 min"},
    "free_norms_width_gpt_fan_in": {"quick": "6 min", "paper": "20 min"},
}
NARROW = 48
RATIOS = (2, 4)
LR_FACTORS = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class WidthConfig:
    """The config of the narrow network, and the options of the model."""

    narrow: Config
    options: str = ""
    ratios: tuple[int, ...] = RATIOS
    seeds: int = 3

    @property
    def parts(self) -> tuple[tuple[str, int, float], ...]:
        """Arm, ratio of widths and factor of the learning rate of each training."""
        return tuple(product(self.narrow.parts, self.ratios, LR_FACTORS))


_NETWORKS = {"free_norms_gpt": "", "free_norms_gpt_fan_in": FAN_IN}
PAPER = {
    name.replace("norms_", "norms_width_"): WidthConfig(MAIN_CONFIGS[name], options)
    for name, options in _NETWORKS.items()
}
QUICK = {
    name.replace("norms_", "norms_width_"): WidthConfig(QUICK_CONFIGS[name], options, RATIOS[:1])
    for name, options in _NETWORKS.items()
}


def measure(trial: Trial[WidthConfig]) -> Measurements:
    """Train a wider network at the narrow one's best settings, with a factor of the learning rate."""
    config = trial.config
    arm, ratio, factor = trial.part
    narrow = Cell(config.narrow, arm, trainings_of(config.narrow), trial.report)
    best = narrow.best()
    wider = replace(config.narrow, settings={**config.narrow.settings, **_model(config, ratio)})
    cell = replace(narrow, config=wider)
    return {"loss": cell.loss(best._replace(lr=factor * best.lr), FIRST_JUDGED_SEED + trial.seed)}


def _model(config: WidthConfig, ratio: int) -> dict[str, str]:
    return {"model": gpt(ratio * NARROW, config.options)["model"]}


def of_part(result: Result[WidthConfig], arm: str, ratio: int, factor: float = 1.0) -> Array:
    """Return the losses of one part, one for each seed."""
    return np.asarray(result["loss"][:, result.config.parts.index((arm, ratio, factor))])


def copy_costs(result: Result[WidthConfig], arm: str, ratio: int) -> Array:
    """Return the loss at the copied learning rate minus the lowest mean of the three, one for each seed."""
    losses = {factor: of_part(result, arm, ratio, factor) for factor in LR_FACTORS}
    best = min(losses, key=lambda factor: float(losses[factor].mean()))
    return np.asarray(losses[1.0] - losses[best])


def plot(result: Result[WidthConfig]) -> Figure:
    """Draw the loss over the factor of the learning rate, a panel for each width."""
    config = result.config
    panels = Panels(*(f"width × {ratio}" for ratio in config.ratios))
    for arm, colour in zip(config.narrow.parts, COLOURS, strict=False):
        for panel, ratio in enumerate(config.ratios):
            losses = [of_part(result, arm, ratio, factor) for factor in LR_FACTORS]
            panels.line(panel, LR_FACTORS, np.mean(losses, 1), arm, colour)
            for factor, of_seeds in zip(LR_FACTORS, losses, strict=True):
                panels.dots(panel, np.full(len(of_seeds), factor), of_seeds, colour=colour, size=6)
    panels.figure.update_xaxes(title_text="factor of the best lr at width 48", type="log", tickvals=LR_FACTORS)
    panels.figure.update_yaxes(title_text="loss on data held out", col=1)
    return panels.titled("Settings of a narrow GPT in wider ones")


def claims(result: Result[WidthConfig]) -> list[Claim]:
    """Judge each form against AdamW at copied settings, and what copied settings cost."""
    config = result.config
    reference = config.narrow.reference
    judged = []
    for ratio in config.ratios:
        adamw = of_part(result, reference, ratio)
        for arm in config.narrow.parts[1:]:
            gap = of_part(result, arm, ratio) - adamw
            judged.append(at_most(f"width × {ratio}: {arm} minus {reference} at copied settings, nats", 0.0, gap))
            moved = copy_costs(result, arm, ratio) - copy_costs(result, reference, ratio)
            judged.append(at_most(f"width × {ratio}: cost of the copied lr, {arm} minus {reference}", 0.0, moved))
    return judged
