"""At a fixed lr, norm and rotation of a network's layers meet their predictions, with momentum sooner (SMD Figure 2).

Differences from the paper: a small CNN on CIFAR-10 of 8 × 8 pixels replaces ResNet-50 on ImageNet. All four of its
convolutions are measured, not one. The product lr·wd is 20 times as large, so that SGD settles within 3,000 steps.
Weights start at 4.5 times their usual norm, above equilibrium, so that they have to settle. Expectations are means over
200 steps of SGD, or 200·(1-α) steps with momentum α, because the layers then change faster by that factor. The medium
size has 16 × 16 pixels, four times the steps and five times the paper's product. Its weights start at 9 times their
usual norm.
"""

from dataclasses import dataclass, replace

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.framework.arms import Arms, of_arm
from gyroscope_lab.framework.claims import Claim, agrees, at_least
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, MEASURED, Figure, Panels
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.smd._networks import (
    SMALL,
    averaged,
    drawn,
    drawn_steps,
    rule_of,
    theory_angle,
    theory_norm,
    train_arm,
)
from gyroscope_lab.smd._norm_statistics import contraction_near_equilibrium, least_gradient_share

COST = {"quick": "2 min", "medium": "15 min", "paper": "2 days"}
SGD = "SGD"
SGDM = "SGD with momentum"
# Steps of SGD over which the paper takes an expectation.
AVERAGE = 200
# Share of the run after which layers count as settled.
LATE = 0.75
# Settled is a norm within so much of the theoretical one.
NEAR = 1.1
# lr·wd of the paper, for which it says that its assumptions hold.
PAPERS_PRODUCT = (0.2, 1e-4)


@dataclass(frozen=True)
class Config(Arms):
    """One arm without momentum and one with it, at the same lr and wd."""


QUICK = Config(
    base={**SMALL, "lr": 0.2, "weight_decay": 2e-3, "schedule": "constant", "batch_size": 64, "init_scale": 4.5},
    arms={SGD: {"momentum": 0.0, "steps": 3000}, SGDM: {"momentum": 0.9, "steps": 600}},
    seeds=5,
)
MEDIUM = replace(
    QUICK,
    base={**QUICK.base, "shrink": 2, "weight_decay": 5e-4, "init_scale": 9.0},
    arms={SGD: {"momentum": 0.0, "steps": 12_000}, SGDM: {"momentum": 0.9, "steps": 2400}},
    seeds=3,
)
PAPER = Config(base={}, arms={SGD: preset("smd/fixed-sgd"), SGDM: preset("smd/fixed-sgdm")})


def measure(trial: Trial[Config]) -> Measurements:
    """Train, and compare norm and angle with theory over time and after settling. Measure how fast the norm settles."""
    motion, _ = train_arm(trial)
    rule = rule_of(trial.config, trial.part)
    norm = np.sqrt(motion["norm2"])
    h = averaged(motion["h"], round(AVERAGE * (1 - rule.momentum)))
    theory = theory_norm(rule, h)
    late = slice(int(LATE * len(norm)), None)
    return {
        "norm": drawn(norm),
        "theory": drawn(theory),
        "angle": drawn(motion["angle"]),
        "gradient": drawn(motion["gradient"]),
        "h": drawn(motion["h"]),
        "steps": len(norm),
        "angle_settled": motion["angle"][late].mean(0) / theory_angle(rule),
        "norm_settled": norm[late].mean(0) / theory[late].mean(0),
        "h_over_gradient": motion["h"][late].mean(0) / motion["gradient"][late].mean(0),
        "smallest_h": motion["h"][late].min(0) / motion["h"][late].mean(0),
        "e_fold": [_steps_per_e_fold(norm[:, i], theory[:, i]) for i in range(norm.shape[1])],
    }


def _steps_per_e_fold(norm: Array, theory: Array) -> float:
    """Return the steps in which ‖w‖⁴ comes closer to its equilibrium by a factor e, until it is `NEAR`."""
    near = np.flatnonzero(norm <= NEAR * theory)
    settled = near[0] if len(near) else len(norm) - 1
    excess = (norm[0] / theory[settled]) ** 4 - 1
    return float((settled + 1) / np.log(max(excess / (NEAR**4 - 1), 1 + 1e-9)))


def plot(result: Result[Config]) -> Figure:
    """Draw gradient, norm and angle of the third convolution and the first seed, without momentum and with it."""
    layer = 2
    titles = [f"{name}, {arm}" for arm in result.config.parts for name in ("unit gradient norm²", "norm", "angle")]
    panels = Panels(*titles, rows=2, vertical_spacing=0.16)
    for row, arm in enumerate(result.config.parts):
        first = {name: of_arm(result, name, arm)[0][:, layer] for name in ("gradient", "h", "norm", "theory", "angle")}
        t = drawn_steps(int(of_arm(result, "steps", arm)[0]))
        panels.line(3 * row, t, first["gradient"], "‖g̃‖²", COLOURS[0], **MEASURED)
        panels.line(3 * row, t, first["h"], "h̃", COLOURS[1], **MEASURED)
        panels.line(3 * row + 1, t, first["norm"], "norm", COLOURS[2], **MEASURED)
        panels.predicted(3 * row + 1, t, first["theory"], "theory")
        panels.line(3 * row + 2, t, first["angle"], "angle", COLOURS[3], **MEASURED)
        panels.level(3 * row + 2, theory_angle(rule_of(result.config, arm)))
    panels.figure.update_xaxes(title_text="step", row=2)
    panels.figure.update_yaxes(rangemode="tozero")
    return panels.titled("A fixed learning rate: norm and rotation settle where theory says, with momentum sooner")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether theory agrees, momentum settles 1/(1-α) times sooner, and the theorems' assumptions hold."""
    config = result.config
    alpha = rule_of(config, SGDM).momentum
    ratio = of_arm(result, "e_fold", SGD).mean(1) / of_arm(result, "e_fold", SGDM).mean(1)
    cross = of_arm(result, "h_over_gradient", SGDM).mean(1)
    return [
        *(claim for arm in config.parts for claim in _predictions(result, arm)),
        agrees("SGD takes 1/(1-α) times the steps of SGD with momentum to settle", 1 / (1 - alpha), ratio, within=0.25),
        agrees("E h̃ over E‖g̃‖²: ⟨v,g⟩ is close to 0 on average", 1.0, cross, within=0.1),
        *_assumptions(result),
    ]


def _predictions(result: Result[Config], arm: str) -> list[Claim]:
    rule = rule_of(result.config, arm)
    expected = 1 / (1 - float(contraction_near_equilibrium(rule.lr, rule.weight_decay, rule.momentum)))
    rotation = of_arm(result, "angle_settled", arm).mean(1)
    norm = of_arm(result, "norm_settled", arm).mean(1)
    time = of_arm(result, "e_fold", arm).mean(1)
    return [
        agrees(f"settled angle over theory, {arm}", 1.0, rotation, within=0.1),
        agrees(f"settled norm over theory, {arm}", 1.0, norm, within=0.1),
        agrees(f"steps in which ‖w‖⁴ comes e times nearer to equilibrium, {arm}", expected, time, within=0.25),
    ]


def _assumptions(result: Result[Config]) -> list[Claim]:
    """Judge assumption 3 in the layer furthest from it, and assumption 6 in the layer nearest to it."""
    sgd = rule_of(result.config, SGD)
    sgdm = rule_of(result.config, SGDM)
    needed = {
        "here": least_gradient_share(sgdm.lr, sgdm.weight_decay, sgdm.momentum),
        "at the lr·wd of the paper": least_gradient_share(*PAPERS_PRODUCT, sgdm.momentum),
    }
    furthest = of_arm(result, "smallest_h", SGD).min(1)
    nearest = of_arm(result, "smallest_h", SGDM).max(1)
    sentence = "smallest ‖g̃‖² over its mean in any layer, what assumption 3 needs"
    return [
        at_least(sentence, least_gradient_share(sgd.lr, sgd.weight_decay), furthest),
        *(
            at_least(f"smallest h̃ over its mean in the best layer, what assumption 6 needs {where}", share, nearest)
            for where, share in needed.items()
        ),
    ]
