"""A⟨c,u⟩ and η_e‖c⊥‖ stay small for every filter of a ResNet-20, and so does Theorem 4's variable (SP Figures 3–5).

So 1 - A⟨c,u⟩ is positive, the expansion of Theorem 2 is valid for SGD-M and Adam, and that of Theorem 4 for SGD. The
largest value over all filters counts at every step. Differences from the paper: the whole network trains from its
initial weights, while the paper first trains the rest and then only filters. The network has half the width and trains
on CIFAR-10 of 8 × 8 pixels for 60 steps. The medium size has the paper's width and batch of 128, 16 × 16 pixels and 100
steps. The paper prints the variable of Theorem 4 as (η‖∇L(u)‖)²/r². The expansion needs (η‖∇L(u)‖)²/r⁴, which has no
unit, to be small.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gyroscope.geometry import Split
from gyroscope_lab.framework.arms import Arms, of_arm
from gyroscope_lab.framework.claims import Claim, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, DECADES, Figure, Panels, shown_steps
from gyroscope_lab.framework.weight_steps import WeightStep, train_and_see
from gyroscope_lab.sp._presets import SMALL, settings_of

COST = {"quick": "40 s", "medium": "15 min", "paper": "1 day"}
COVERS = ("sp/fig4", "sp/fig5")
FILTERS = Split()
POINTS = 150
# Radial parts far below 1.
SMALL_RADIAL = 0.1
# Tangents that differ from their angle by 3 %, the first term that Theorem 2 leaves out.
SMALL_TANGENT = 0.3
# The paper has 10⁻². At 0.1 the expansion sqrt(1 + 2z) = 1 + z is half a percent off.
SMALL_TAYLOR = 0.1


@dataclass(frozen=True)
class Config(Arms):
    """SGD-M and Adam for Theorem 2, SGD for Theorem 4."""


def _arms() -> dict[str, dict[str, Any]]:
    adam = settings_of("cifar10", "resnet20", "Adam")
    sgd = settings_of("cifar10", "resnet20", "SGD-M")
    return {"SGD-M": sgd, "Adam": adam, "SGD": {**sgd, "momentum": 0.0, "weight_decay": 1e-4}}


_CONSTANT = {"schedule": "constant"}
# The largest steps are the first ones.
_SHORT = {**SMALL, **_CONSTANT, "steps": 60}
QUICK = Config(base={}, arms={arm: {**each, **_SHORT} for arm, each in _arms().items()}, seeds=7)
_MEDIUM = {"model": "resnet20", "shrink": 2, "batch_size": 128, "steps": 100}
MEDIUM = replace(QUICK, arms={arm: {**each, **_MEDIUM} for arm, each in QUICK.arms.items()}, seeds=8)
PAPER = Config(base={}, arms={arm: {**each, **_CONSTANT, "epochs": 150} for arm, each in _arms().items()})


def measure(trial: Trial[Config]) -> Measurements:
    """Train, and measure the largest |A⟨c,u⟩|, η_e‖c⊥‖ and variable of Theorem 4 over all filters and steps."""
    settings = trial.config.arms[trial.part]
    rows: list[list[float]] = []
    train_and_see(trial, settings, lambda step, weights: rows.append(largest(weights, settings["lr"])))
    table = np.array(rows)
    shown = shown_steps(len(table), POINTS)
    names = ("radial", "tangent", "taylor", "taylor_as_printed")
    return {
        **{name: table[shown, i] for i, name in enumerate(names)},
        **{f"largest_{name}": table[:, i].max() for i, name in enumerate(names)},
        "typical_taylor_as_printed": np.median(table[:, 3]),
    }


def largest(weights: dict[str, WeightStep], lr: float) -> list[float]:
    """Return the largest value over all filters of |A⟨c,u⟩|, η_e‖c⊥‖, and (lr‖∇L(u)‖)² over r⁴ and over r².

    A step d = -lr·a/b has A·c = -d/r (SP 30). Its radial part is A⟨c,u⟩. The rest over 1 - A⟨c,u⟩ is η_e·c⊥.
    """
    values = []
    for step in weights.values():
        w = step.before
        d = step.after - w
        r2 = FILTERS.dot(w, w)
        growth = FILTERS.dot(w, d) / r2  # -A⟨c,u⟩
        tangent = FILTERS.norm(d - FILTERS.broadcast(growth, w.shape) * w) / ((1 + growth) * r2.sqrt())
        gradient2 = FILTERS.dot(step.gradient, step.gradient)  # ‖∇L(u)‖²/r²
        values.append([growth.abs().max(), tangent.max(), (lr**2 * gradient2 / r2).max(), lr**2 * gradient2.max()])
    return [float(max(column)) for column in zip(*values, strict=True)]


def plot(result: Result[Config]) -> Figure:
    """Draw the largest values over training of the first seed."""
    panels = Panels("|A⟨c,u⟩|", "η_e‖c⊥‖", "(η‖∇L(u)‖)²/r⁴, SGD")
    t = np.linspace(0, 1, result["radial"].shape[2])
    for i, arm in enumerate(("SGD-M", "Adam")):
        panels.line(0, t, of_arm(result, "radial", arm)[0], arm, COLOURS[i], width=1.5)
        panels.line(1, t, of_arm(result, "tangent", arm)[0], arm, COLOURS[i], width=1.5)
    panels.line(2, t, of_arm(result, "taylor", "SGD")[0], "SGD", COLOURS[2], width=1.5)
    for panel, bound in enumerate((SMALL_RADIAL, SMALL_TANGENT, SMALL_TAYLOR)):
        panels.level(panel, bound)
    panels.figure.update_yaxes(DECADES)
    panels.figure.update_xaxes(title_text="share of the run")
    return panels.titled("The largest of all filters of a ResNet-20, and where it would no longer be small")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge whether each is small at every step and for every filter."""
    judged = []
    for arm in ("SGD-M", "Adam"):
        radial = of_arm(result, "largest_radial", arm)
        tangent = of_arm(result, "largest_tangent", arm)
        judged += [
            at_most(f"largest |A⟨c,u⟩| of all filters and steps, {arm} (Figure 3)", SMALL_RADIAL, radial),
            at_most(f"largest η_e‖c⊥‖ of all filters and steps, {arm} (Figure 4)", SMALL_TANGENT, tangent),
        ]
    taylor = of_arm(result, "largest_taylor", "SGD")
    printed = of_arm(result, "typical_taylor_as_printed", "SGD")
    return [
        *judged,
        at_most("largest (η‖∇L(u)‖)²/r⁴ of all filters and steps, SGD (Figure 5)", SMALL_TAYLOR, taylor),
        at_most("median over steps of the largest (η‖∇L(u)‖)²/r², as printed, SGD (Figure 5)", 1e-2, printed),
    ]
