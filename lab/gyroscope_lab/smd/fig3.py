"""Rescaling by k^(-1/4) when lr is divided by k keeps the angle if gradients stay alike (SMD Figures 3, 6, Table 1).

Differences from the paper: a small CNN on CIFAR-10 of 8 × 8 pixels replaces ResNet-50 on ImageNet. The product lr·wd is
50 times as large, so that the first stage settles. As in the paper, the stages are a third, a third, 2/9 and 1/9 of the
run. Without rescaling, the angle is too small after every fall of lr. Corollary 3.1 assumes that unit gradient norms do
not change. Here they grow, so norms rescaled by it are too small and angles too large, by (norm of theory/norm)². The
third arm (ours) rescales repeatedly after each fall of lr, to the norm that theory predicts from the measured
gradients. The norm is compared with the prediction from the measured h̃.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from gyroscope.tools import Array, Integers
from gyroscope_lab.framework.arms import Arms, of_arm
from gyroscope_lab.framework.claims import Claim, agrees, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, DECADES, MEASURED, Figure, Panels
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.smd._networks import (
    SMALL,
    LayerMotion,
    averaged,
    drawn,
    drawn_steps,
    rule_of,
    settings_of,
    theory_angle,
    theory_norm,
    train_arm,
)

COST = {"quick": "1 min", "paper": "2 days"}
COVERS = ("smd/fig6", "smd/table1")
STANDARD = "standard"
RESCALED = "rescaled"
MEASURED_GRADIENTS = "rescaled by measured gradients"
# Steps over which expectations are taken: fewer than the paper's 200, for stages are shorter.
AVERAGE = 40
# Of the first stage, the share in which it settles.
SETTLING = 0.5
# The layer whose norm is drawn, as the paper draws one of its layers.
DRAWN_LAYER = 2
# Top-1 accuracies of Table 1, in percent.
TABLE1 = {STANDARD: 76.25, RESCALED: 76.27}


@dataclass(frozen=True)
class Config(Arms):
    """The same multi-stage training, without rescaling and with two kinds of rescaling."""

    @property
    def milestones(self) -> tuple[float, ...]:
        """Shares of the run after which lr is divided by 10."""
        shares: tuple[float, ...] = settings_of(self, STANDARD)["milestones"]
        return tuple(shares)

    def stages(self, steps: int) -> list[slice]:
        """Return the steps of each stage, without those in which the first stage settles."""
        edges = [round(share * steps) for share in (0.0, *self.milestones, 1.0)]
        first = slice(int(SETTLING * edges[1]), edges[1])
        return [first, *(slice(start, end) for start, end in pairwise(edges[1:]))]


_STAGES = {"schedule": "step", "milestones": (1 / 3, 2 / 3, 8 / 9)}
QUICK = Config(
    base={**SMALL, **_STAGES, "lr": 0.1, "weight_decay": 5e-3, "batch_size": 64, "steps": 900},
    arms={STANDARD: {}, RESCALED: {"rescale": True}, MEASURED_GRADIENTS: {}},
    seeds=5,
)
_STANDARD = preset("smd/stages")
PAPER = Config(
    base={}, arms={STANDARD: _STANDARD, RESCALED: preset("smd/stages-rescaled"), MEASURED_GRADIENTS: _STANDARD}
)


def measure(trial: Trial[Config]) -> Measurements:
    """Train through all stages. Return angle and norm of each layer over theory, and the accuracy at the end."""
    rescaling = _by_measured_gradients(trial.config) if trial.part == MEASURED_GRADIENTS else _not_at_all
    motion, accuracy = train_arm(trial, rescaling=rescaling)
    stages = trial.config.stages(len(motion.rows))
    norm = np.sqrt(motion["norm2"])
    h = averaged(motion["h"], AVERAGE)
    angle_ratio = []
    norm_ratio = []
    for number, stage in enumerate(stages):
        rule = rule_of(trial.config, trial.part)
        rule = replace(rule, lr=rule.lr / 10**number)
        angle_ratio.append(motion["angle"][stage].mean(0) / theory_angle(rule))
        norm_ratio.append(norm[stage].mean(0) / theory_norm(rule, h[stage]).mean(0))
    return {
        "angle": drawn(motion["angle"]),
        "norm": drawn(norm),
        "gradient": drawn(motion["gradient"]),
        "h": drawn(motion["h"]),
        "steps": len(norm),
        "angle_ratio": np.array(angle_ratio),
        "norm_ratio": np.array(norm_ratio),
        "stage_gradient": np.stack([motion["gradient"][stage].mean(0) for stage in stages]),
        "accuracy": accuracy,
    }


def _not_at_all(motion: LayerMotion) -> None:
    """Rescale nothing."""


def _by_measured_gradients(config: Config) -> Callable[[LayerMotion], Array | None]:
    """Return a rescaling to the norm that theory predicts from the next step's lr and the mean h̃ of the last steps."""
    peak = rule_of(config, MEASURED_GRADIENTS)
    lr = peak.lr
    since_fall = 0

    def rescaling(motion: LayerMotion) -> Array | None:
        nonlocal lr, since_fall
        since_fall = 0 if motion.next_lr < lr else since_fall + 1
        lr = motion.next_lr
        if lr == peak.lr or since_fall % AVERAGE:
            return None
        recent = np.array(motion.rows[-AVERAGE:])  # (steps, layers, quantities)
        norm = np.sqrt(recent[-1, :, 0])
        gradient = recent[..., 2].mean(0)
        h = np.maximum(recent[..., 3].mean(0), gradient / 2)  # the mean of few h̃ may be near 0
        return np.asarray(theory_norm(replace(peak, lr=lr), h) / norm)

    return rescaling


def _lr(config: Config, t: Integers, steps: int) -> Array:
    """Return the learning rate at steps t."""
    falls = sum((t >= round(share * steps)).astype(float) for share in config.milestones)
    return np.asarray(rule_of(config, STANDARD).lr / 10.0**falls)


def plot(result: Result[Config]) -> Figure:
    """Draw the angles of all layers with theory, and norm and unit gradient norms of the third, for the first seed."""
    config = result.config
    norms = ("norm of convolution 3, standard", "norm, rescaled", "norm, rescaled by measured gradients (ours)")
    titles = (*(f"angle, {arm}" for arm in config.parts), *norms, *(f"‖g̃‖² and h̃, {arm}" for arm in config.parts))
    panels = Panels(*titles, rows=3, vertical_spacing=0.1, horizontal_spacing=0.07)
    steps = int(of_arm(result, "steps", STANDARD)[0])
    t = drawn_steps(steps)
    lr = _lr(config, t, steps)
    rule = rule_of(config, STANDARD)
    angle = theory_angle(rule) * np.sqrt(lr / rule.lr)
    for panel, arm in enumerate(config.parts):
        angles = of_arm(result, "angle", arm)[0]
        for layer in range(angles.shape[1]):
            panels.line(panel, t, angles[:, layer], f"convolution {layer + 1}", COLOURS[layer], **MEASURED)
        panels.predicted(panel, t, angle, "theory")
        h = of_arm(result, "h", arm)[0][:, DRAWN_LAYER]
        norm = [theory_norm(replace(rule, lr=rate), each) for rate, each in zip(lr, h, strict=True)]
        panels.line(
            3 + panel, t, of_arm(result, "norm", arm)[0][:, DRAWN_LAYER], colour=COLOURS[DRAWN_LAYER], **MEASURED
        )
        panels.predicted(3 + panel, t, norm, "theory")
        gradient = of_arm(result, "gradient", arm)[0][:, DRAWN_LAYER]
        panels.line(6 + panel, t, gradient, "‖g̃‖²", COLOURS[4], width=1.5)
        panels.line(6 + panel, t, h, "h̃", COLOURS[5], width=1)
    panels.figure.update_yaxes(DECADES, matches="y", row=1)
    panels.figure.update_yaxes(matches="y4", row=2)
    panels.figure.update_yaxes(matches="y7", row=3)
    panels.figure.update_xaxes(title_text="step", row=3)
    panels.figure.update_annotations(font_size=13)
    title = "lr falls by 10 three times: angles and norms beside those of theory (Figures 3 and 6)"
    return panels.titled(title).update_layout(height=800, legend_y=-0.1)


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether rescaled stages rotate as predicted, and closer to it than stages without rescaling."""
    ratio = of_arm(result, "angle_ratio", RESCALED).mean(2)
    norm = of_arm(result, "norm_ratio", RESCALED).mean(2)
    alone = of_arm(result, "angle_ratio", STANDARD).mean(2)
    gradient = of_arm(result, "stage_gradient", RESCALED)
    grown = (gradient[:, 1:] / gradient[:, :1]).mean(2)
    nearer = np.abs(np.log(ratio)) - np.abs(np.log(alone))
    stages = range(ratio.shape[1])
    later = stages[1:]
    accuracy = of_arm(result, "accuracy", RESCALED) / of_arm(result, "accuracy", STANDARD)
    table1 = TABLE1[RESCALED] / TABLE1[STANDARD]
    return [
        *(agrees(f"angle over theory in stage {i + 1}, rescaled", 1.0, ratio[:, i], within=0.1) for i in stages),
        *(at_most(f"angle over theory in stage {i + 1}, standard", 0.9, alone[:, i]) for i in stages[2:]),
        *(at_most(f"|ln(angle/theory)| in stage {i + 1}, rescaled less standard", 0.0, nearer[:, i]) for i in later),
        *(agrees(f"norm over theory in stage {i + 1}, rescaled", 1.0, norm[:, i], within=0.1) for i in stages),
        *(agrees(f"E‖g̃‖² in stage {i + 1} over stage 1, rescaled", 1.0, grown[:, i - 1], within=0.2) for i in later),
        agrees("accuracy rescaled over standard (Table 1)", table1, accuracy, within=0.02),
        *_explained(result),
    ]


def _explained(result: Result[Config]) -> list[Claim]:
    """Judge whether angles follow norms, and whether norms set by measured gradients keep the angles (ours)."""
    judged = []
    for arm in (STANDARD, RESCALED):
        product = (of_arm(result, "angle_ratio", arm) * of_arm(result, "norm_ratio", arm) ** 2).mean(2)
        for i in range(1, product.shape[1]):
            sentence = f"angle over theory times (norm/norm of theory)² in stage {i + 1}, {arm} (ours)"
            judged.append(agrees(sentence, 1.0, product[:, i], within=0.05))
    angle = of_arm(result, "angle_ratio", MEASURED_GRADIENTS).mean(2)
    for i in range(1, angle.shape[1]):
        sentence = f"angle over theory in stage {i + 1}, {MEASURED_GRADIENTS} (ours)"
        judged.append(agrees(sentence, 1.0, angle[:, i], within=0.1))
    return judged
