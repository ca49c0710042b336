"""The layers of MobileNet-V2 rotate as predicted too, until lr falls (SMD Figure 9).

Differences from the paper: a tenth of the width and strides for small images, no ShuffleNet-V2+, and CIFAR-10 of 8 × 8
pixels instead of ImageNet. The product lr·wd is 50 times as large, so that the first stage settles. The one-channel
filters of depthwise convolutions are scale-invariant like all others. The first steps raise norms far above
equilibrium, so the medium size has three times the steps, 1,200 of them in the first stage.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, of_arm
from gyroscope_lab.framework.claims import Claim, agrees, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.smd._networks import SMALL, drawn, drawn_steps, rule_of, theory_angle, train_arm

COST = {"quick": "3 min", "medium": "12 min", "paper": "3 days"}
MILESTONES = (1 / 3, 2 / 3, 8 / 9)
# Of the first stage, the share in which it settles.
SETTLING = 2 / 3
# Layers are summed up by quantiles, for networks have different numbers of them.
QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)


@dataclass(frozen=True)
class Config(Arms):
    """One arm for each network."""


_STAGES = {"schedule": "step", "milestones": MILESTONES}
QUICK = Config(
    base={**SMALL, **_STAGES, "lr": 0.1, "weight_decay": 1e-2, "batch_size": 32, "steps": 1200},
    arms={"MobileNet-V2": {"model": "mobilenet:width=0.1"}},
    seeds=5,
)
MEDIUM = replace(QUICK, base={**QUICK.base, "steps": 3600})
_PAPER = preset("smd/stages-mobilenet")
PAPER = Config(base=_PAPER, arms={"MobileNet-V2": {}})


def measure(trial: Trial[Config]) -> Measurements:
    """Train, and measure the angle of every layer over theory at the lr of the step, as quantiles over layers."""
    motion, accuracy = train_arm(trial)
    angle = motion["angle"]
    steps = len(angle)
    rule = rule_of(trial.config, trial.part)
    edges = [round(share * steps) for share in (0.0, *MILESTONES, 1.0)]
    ratio = np.empty_like(angle)
    for number, (start, end) in enumerate(pairwise(edges)):
        ratio[start:end] = angle[start:end] / theory_angle(replace(rule, lr=rule.lr / 10**number))
    first = slice(int(SETTLING * edges[1]), edges[1])
    last = slice(edges[-2], None)
    return {
        "ratio": np.quantile(drawn(ratio), QUANTILES, axis=1),
        "settled": np.quantile(ratio[first].mean(0), QUANTILES),
        "settled_mean": ratio[first].mean(),
        "last_mean": ratio[last].mean(),
        "steps": steps,
        "accuracy": accuracy,
    }


def plot(result: Result[Config]) -> Figure:
    """Draw the angle over theory of the first seed, as quantiles over the layers."""
    panels = Panels(*result.config.parts)
    names = ("least", "10 %", "median", "90 %", "most")
    for panel, arm in enumerate(result.config.parts):
        t = drawn_steps(int(of_arm(result, "steps", arm)[0]))
        for i, name in enumerate(names):
            panels.line(panel, t, of_arm(result, "ratio", arm)[0, i], f"{name} of layers", COLOURS[i], width=1.5)
        panels.level(panel, 1.0)
    panels.figure.update_yaxes(type="log", title_text="angle over theory")
    panels.figure.update_xaxes(title_text="step")
    return panels.titled("MobileNet-V2: angle per step over that of theory")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether layers rotate as predicted in the first stage, on average and mostly, and lag in the last."""
    judged = []
    for arm in result.config.parts:
        low, high = of_arm(result, "settled", arm)[:, [1, 3]].T
        settled = of_arm(result, "settled_mean", arm)
        judged += [
            agrees(f"angle over theory before lr falls, mean over layers, {arm}", 1.0, settled, within=0.1),
            at_most(f"four fifths of the layers lie within so much of theory, {arm}", 0.25, _worst(low, high)),
            at_most(f"angle over theory after the last fall of lr, {arm}", 0.9, of_arm(result, "last_mean", arm)),
        ]
    return judged


def _worst(low: Array, high: Array) -> Array:
    return np.asarray(np.maximum(1 - low, high - 1))
