"""Learning rate against weight decay at a constant product, with AdamW and its rotational variant (RE Figures 3, 13).

The product sets how fast weights rotate in equilibrium. The learning rate alone sets how fast gains and biases learn.
Differences from the paper: ResNet-8 on a part of CIFAR-10 of 8 × 8 pixels and a GPT of two narrow layers on
Shakespeare. Quick runs have 400 steps (paper: 78,000 and 15,000). Their product is 3e-2, 60 times the paper's (GPT: 12
times), so that norms settle. A norm adapts in 1/(lr·wd) steps. Quick runs are 12 times as long (paper: 39). Medium runs
have 2,000 steps and a product of 1e-2, so they are 20 times as long, and the GPT has byte pairs. Predictions use the
exact law. The points at which the start is judged were chosen by looking at quick runs. In their first 2 % the lowest
learning rate rotates too fast as well, by factors of 1.2 and 1.3, and only then too slowly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gyroscope.store import Run
from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, of_arm, train_arm
from gyroscope_lab.framework.choices import choose, of_chosen
from gyroscope_lab.framework.claims import Claim, agrees, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, DECADES, INK, Figure, Panels
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.re._networks import BYTE_PAIR_GPT, GPT, RESNET
from gyroscope_lab.re._tracked import course, course_axis, hidden_layers, mean_during, over_prediction

CLAIMS = {
    "fig3": "At constant lr·wd accuracy has an optimum, and the rotation is as predicted (RE Figure 3)",
    "fig13": "A GPT's loss has an optimum at constant lr·wd (RE Figure 13)",
}
COST = {
    "fig3": {"quick": "3 min", "medium": "12 min", "paper": "days of a GPU"},
    "fig13": {"quick": "3 min", "medium": "12 min", "paper": "days of a GPU"},
}
OPTIMIZERS = {"AdamW": "adamw", "rotational AdamW": "rotational-adamw"}
END = (0.98, 1.0)
# Points of a course: the first 2 % of the run, where weights that are too small rotate too fast, and 4 to 6 %, where
# Adam's large first updates are over and weights that are too large still rotate too slowly.
FIRST = 0
EARLY = 2


@dataclass(frozen=True)
class Config(Arms):
    """Learning rates at a constant product with weight decay. The variant has the lowest, middle and highest."""

    lrs: tuple[float, ...] = ()
    shown: tuple[float, ...] = ()
    """Of these learning rates norm and rotation are drawn and judged."""
    tolerance: float = 0.1
    """Of rotation and norm in equilibrium."""

    @property
    def score(self) -> str:
        """The score that is judged: accuracy of a classifier, loss of a language model."""
        return "loss" if "gpt" in self.base["model"] else "accuracy"

    def rates(self, name: str) -> list[float]:
        """Return the learning rates at which an optimizer was run."""
        return [lr for lr in self.lrs if _arm(name, lr) in self.arms]

    @property
    def candidates(self) -> list[str]:
        """The arms to choose from: all learning rates except the lowest and the highest."""
        return [_arm(name, lr) for name in OPTIMIZERS for lr in self.rates(name)[1:-1]]


def _config(base: dict[str, Any], product: float, lrs: tuple[float, ...], *, gain: bool = False, **more: Any) -> Config:
    lowest, *between, highest = lrs
    rates = {"AdamW": lrs, "rotational AdamW": (lowest, between[len(between) // 2], highest)}
    arms = {
        _arm(name, lr): {"optimizer": optimizer, "lr": lr, "weight_decay": product / lr}
        # The paper gives weights of a GPT a gain where their norms are held.
        | ({"gain": True} if gain and name != "AdamW" else {})
        for name, optimizer in OPTIMIZERS.items()
        for lr in rates[name]
    }
    return Config(base, arms, choosing_seeds=2, lrs=lrs, **more)


def _arm(name: str, lr: float) -> str:
    return f"{name}, lr {lr:g}"


_LRS = (1e-4, 6e-3, 1.6e-2, 5e-2, 1.0)
_GPT_LRS = (1e-4, 2e-3, 5e-3, 1.5e-2, 0.2)
# At a third of the product, learning rates that are √3 times lower have the same norms in equilibrium.
_MEDIUM_LRS = (1e-4, 3.5e-3, 9e-3, 3e-2, 1.0)
_MEDIUM_GPT_LRS = (1e-4, 1.2e-3, 3e-3, 9e-3, 0.2)
# The paper has about a dozen.
_PAPER_LRS = (1e-5, 1e-4, 8.3e-3, 0.3, 3.0)
_PAPER_GPT_LRS = (1e-4, 1e-3, 5e-3, 2e-2, 0.1)
QUICK = {
    "fig3": _config({**RESNET, "steps": 400}, 3e-2, _LRS, shown=_LRS[1:-1], seeds=5),
    "fig13": _config({**GPT, "steps": 400}, 3e-2, _GPT_LRS, gain=True, shown=_GPT_LRS[1:-1], tolerance=0.25, seeds=5),
}
MEDIUM = {
    "fig3": _config({**RESNET, "steps": 2000, "augment": True}, 1e-2, _MEDIUM_LRS, shown=_MEDIUM_LRS[1:-1], seeds=5),
    "fig13": _config(
        {**BYTE_PAIR_GPT, "steps": 2000},
        1e-2,
        _MEDIUM_GPT_LRS,
        gain=True,
        shown=_MEDIUM_GPT_LRS[1:-1],
        tolerance=0.25,
        seeds=5,
    ),
}
PAPER = {
    "fig3": _config(preset("re/resnet20-adamw"), 5e-4, _PAPER_LRS, shown=_PAPER_LRS[1:-1]),
    "fig13": _config(preset("re/gpt"), 2.5e-3, _PAPER_GPT_LRS, gain=True, shown=_PAPER_GPT_LRS[1:-1], tolerance=0.25),
}


def measure(trial: Trial[Config]) -> Measurements:
    """Train one pair. Return scores, curves of the median hidden layer, and mean ratios over hidden layers."""
    return train_arm(trial, _rotation)


def _rotation(run: Run) -> Measurements:
    hidden = hidden_layers(run)
    layer = hidden[len(hidden) // 2]
    ratios = {name: [over_prediction(run, each, name) for each in hidden] for name in ("angular_update", "norm")}
    return {
        "angle": course(run, run.series(layer, "angular_update", "rms")),
        "norm": course(run, run.series(layer, "norm", "rms")),
        "predicted_angle": course(run, run.series(layer, "predicted_angular_update")),
        "predicted_norm": course(run, run.series(layer, "predicted_norm")),
        "angle_ratio": np.mean([mean_during(run, ratio) for ratio in ratios["angular_update"]]),
        "norm_ratio": np.mean([mean_during(run, ratio) for ratio in ratios["norm"]]),
        "final_norm_ratio": np.mean([mean_during(run, ratio, END) for ratio in ratios["norm"]]),
    }


def plot(result: Result[Config]) -> Figure:
    """Draw the score of every pair, and norm and rotation over time for three of them."""
    config = result.config
    panels = Panels(config.score, "norm", "angle per step, rad", horizontal_spacing=0.08)
    for (name, _), colour in zip(OPTIMIZERS.items(), COLOURS, strict=False):
        rates = config.rates(name)
        scores = np.array([of_arm(result, config.score, _arm(name, lr)) for lr in rates])
        panels.line(0, rates, scores.mean(1), name, colour)
        for seed in range(config.seeds):
            panels.dots(0, rates, scores[:, seed], colour=colour, size=5)
    t, axis = course_axis(config.base)
    for lr, colour in zip(config.shown, COLOURS[2:], strict=False):
        for panel, quantity in ((1, "norm"), (2, "angle")):
            panels.line(panel, t, of_arm(result, quantity, _arm("AdamW", lr)).mean(0), f"AdamW, lr {lr:g}", colour)
            predicted = of_arm(result, f"predicted_{quantity}", _arm("AdamW", lr)).mean(0)
            panels.predicted(panel, t, predicted, "predicted in equilibrium", INK, width=1.2)
    panels.figure.update_xaxes(DECADES, title_text="learning rate", row=1, col=1)
    for column in (2, 3):
        panels.figure.update_xaxes(title_text=axis, row=1, col=column)
    # The first angles are several times those in equilibrium, and the last ones go to 0.
    predicted = of_arm(result, "predicted_angle", _arm("AdamW", config.shown[0])).max()
    exponents = [np.log10(share * predicted) for share in (0.03, 10)]
    panels.figure.update_yaxes(DECADES, row=1, col=2)
    panels.figure.update_yaxes(DECADES, row=1, col=3, range=exponents)
    return panels.titled(f"lr · wd = {_product(config):g}, whatever the learning rate")


def _product(config: Config) -> float:
    arm = config.arms[_arm("AdamW", config.lrs[0])]
    return float(arm["lr"] * arm["weight_decay"])


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the optimum between the extremes, and rotation and norms at the start, in mid-run and at the end."""
    return [*_optimum(result), *_equilibrium(result)]


def _gains(result: Result[Config], over: Sequence[str], arms: Sequence[str]) -> Array:
    """Return by how much one arm is better than another, seed by seed. Each seed may have other arms."""
    score = result.config.score
    difference = of_chosen(result, score, arms) - of_chosen(result, score, over)
    return -difference if score == "loss" else difference


def _optimum(result: Result[Config]) -> list[Claim]:
    config = result.config
    judged = []
    best = {}
    for name in OPTIMIZERS:
        lowest, *between, highest = (_arm(name, lr) for lr in config.rates(name))
        best[name] = choose(result, config.score, between)
        for end, arm in (("lowest", lowest), ("highest", highest)):
            sentence = f"{config.score} with {name}: the best lr between is better than the {end} by"
            judged.append(at_least(sentence, 0.0, _gains(result, [arm] * len(best[name]), best[name])))
    sentence = f"{config.score} at its best lr: rotational AdamW is better than AdamW by"
    return [*judged, at_least(sentence, -0.02, _gains(result, best["AdamW"], best["rotational AdamW"]))]


def _equilibrium(result: Result[Config]) -> list[Claim]:
    within = result.config.tolerance
    judged = []
    for lr in result.config.shown:
        arm = _arm("AdamW", lr)
        for quantity, words in (("angle_ratio", "rotation"), ("norm_ratio", "norm")):
            sentence = f"{words} over prediction in mid-run, lr {lr:g}"
            judged.append(agrees(sentence, 1.0, of_arm(result, quantity, arm), within=within))
    first = [_arm("AdamW", lr) for lr in (result.config.shown[0], result.config.shown[-1])]
    starts = [
        of_arm(result, "angle", arm)[:, point] / of_arm(result, "predicted_angle", arm)[:, point]
        for arm, point in zip(first, (EARLY, FIRST), strict=True)
    ]
    end = of_arm(result, "final_norm_ratio", first[-1])
    return [
        *judged,
        at_most("rotation over prediction at 4 to 6 % of the run, the lowest lr shown", 0.8, starts[0]),
        at_least("rotation over prediction in the first 2 % of the run, the highest lr shown", 1.25, starts[1]),
        at_least("norm over prediction at the end, the highest lr shown", 1.3, end),
    ]
