"""Before a schedule ends, norms can no longer follow their equilibrium: when, and how large they stay."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from gyroscope.theory import SGDM, AdamW, Forecast, Lion, UpdateRule, cosine, forecast, linear
from gyroscope.tools import Array, Number
from gyroscope_lab.framework.claims import Claim, agrees
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels, shown_steps
from gyroscope_lab.simulate import random_walk

COST = {"quick": "40 s", "paper": "6 min"}
Schedule: TypeAlias = Literal["linear", "cosine"]
SCHEDULES: tuple[Schedule, ...] = ("linear", "cosine")
MULTIPLIERS = {"linear": linear, "cosine": cosine}
POINTS = 250


def falls_out_before_end(schedule: Schedule, steps: Number, decay: Number, norm_power: float = 0.5) -> Number:
    """Return how many steps before the end a decay to zero over `steps` steps from a0 = `decay` leaves equilibrium.

        linear: sqrt(2x²T/a0),   cosine: (16x²T²/(π²a0))^(1/3),   x = norm_power     (ours)

    At that step the equilibrium norm ∝ lr^x begins to fall faster than the norm, whose square relaxes by a/x per step,
    can follow. x is 1/2 for AdamW and Lion, and 1/4 for SGDM with a0 = lr·λ/(1-α). Derived in docs/theory.md, "Settling
    and falling out".

    >>> f"{falls_out_before_end('cosine', 10_000, 1e-3):.0f}"
    '3435'
    """
    if schedule == "linear":
        return (2 * norm_power**2 * steps / decay) ** 0.5
    return (16 * norm_power**2 * steps**2 / (math.pi**2 * decay)) ** (1 / 3)


def end_norm_ratio(total_decay: Number, norm_power: float = 0.5) -> Number:
    """Return the norm at the end of a linear decay to zero over its peak norm, for a total decay X above 5.

        (sqrt(π/8)/sqrt(X/(2x)))^x,   x = norm_power     (ours: docs/theory.md, "Settling and falling out")

    >>> f"{end_norm_ratio(20.0) ** 2:.3f}"
    '0.140'
    """
    return ((math.pi / 8) / (total_decay / (2 * norm_power))) ** (norm_power / 2)


@dataclass(frozen=True)
class Config:
    """Schedules that fall to zero over `steps` from a decay per step of `decay`."""

    decay: float
    steps: int
    vectors: int = 48
    seeds: int = 3
    fan_in: int = 256
    parts: ClassVar = SCHEDULES

    @property
    def rules(self) -> dict[str, UpdateRule]:
        """AdamW with β2 = 0.99. A longer memory of gradients keeps norms up, which only the forecast includes."""
        a = self.decay
        return {
            "AdamW": AdamW(1e-2, 100 * a, (0.9, 0.99)),
            "SGDM": SGDM(0.1, a, 0.9),
            "Lion": Lion(1e-3, 1000 * a),
        }

    def forecast(self, rule: UpdateRule, schedule: str) -> Forecast:
        """Return the forecast of a run that starts in equilibrium."""
        norm = rule.equilibrium(fan_in=self.fan_in, unit_grad_norm=1.0).norm
        assert norm is not None  # fan-in and gradient determine it
        return forecast(rule, MULTIPLIERS[schedule](self.steps), norm=norm, fan_in=self.fan_in, unit_grad_norm=1.0)

    def closed_form(self, rule: UpdateRule, schedule: Schedule) -> float:
        """Return the number of steps before the end at which norms leave their equilibrium."""
        return float(falls_out_before_end(schedule, self.steps, self.decay, rule.norm_power))

    @property
    def every(self) -> int:
        """Steps between records."""
        return max(1, self.steps // 5000)


# A total decay of 10 or more within ten thousand steps.
QUICK = Config(decay=2e-3, steps=10_000)
# Ten times as long, at a tenth of the decay.
PAPER = Config(decay=2e-4, steps=100_000)


def measure(trial: Trial[Config]) -> Measurements:
    """Measure the norm over its equilibrium during the run, when it leaves before the end, and the norm at the end."""
    config = trial.config
    rules = list(config.rules.values())
    forecasts = [config.forecast(rule, trial.part) for rule in rules]
    peak = np.array([predicted.initial_norm for predicted in forecasts])
    path = random_walk(
        rules,
        MULTIPLIERS[trial.part](config.steps),
        norm=peak,
        shape=(config.vectors, config.fan_in),
        every=config.every,
        **trial.walk(config.steps),
    )
    norm = np.sqrt((path.norm**2).mean(2)).T
    ratio = norm / np.stack([predicted.equilibrium_norm[path.steps] for predicted in forecasts])
    left = [_crossing(r, rule.falls_out_ratio) for r, rule in zip(ratio, rules, strict=True)]
    return {
        "ratio": ratio[:, shown_steps(ratio.shape[1], POINTS)],
        # Records are `every` steps apart, the first after step `every` - 1.
        "left": config.steps - config.every * (np.array(left) + 1) + 1,
        "end": norm[:, -1] / peak,
    }


def _crossing(ratio: Array, threshold: float) -> int:
    """Return the first record above the threshold, or one beyond the last if there is none."""
    above = np.flatnonzero(ratio > threshold)
    return int(above[0]) if len(above) else len(ratio)


def plot(result: Result[Config]) -> Figure:
    """Draw the norm over its equilibrium, measured and predicted, and the step of the closed form."""
    config = result.config
    panels = Panels(*(f"{schedule} decay to zero" for schedule in SCHEDULES))
    t = np.linspace(config.every - 1, config.steps - 1, POINTS).astype(int)
    for panel, schedule in enumerate(SCHEDULES):
        for i, (name, rule) in enumerate(config.rules.items()):
            predicted = config.forecast(rule, schedule)
            # Wide, to be seen on both sides of the forecast.
            panels.line(panel, t, result["ratio"][:, panel, i].mean(0), f"{name}, measured", COLOURS[i], width=3.5)
            panels.predicted(panel, t, (predicted.norm / predicted.equilibrium_norm)[t], "forecast")
            panels.moment(panel, config.steps - config.closed_form(rule, schedule), color=COLOURS[i], width=1.5)
    panels.figure.update_xaxes(title_text="step (dotted: the closed form for when it leaves)")
    panels.figure.update_yaxes(range=[0.8, 2])
    panels.figure.update_yaxes(title_text="norm over equilibrium norm", col=1)
    return panels.titled("Falling out of equilibrium at the end of a schedule")


def claims(result: Result[Config]) -> list[Claim]:
    """Claim that the forecast agrees closely, and the closed forms roughly."""
    config = result.config
    judged = []
    for j, schedule in enumerate(SCHEDULES):
        for i, (name, rule) in enumerate(config.rules.items()):
            predicted = config.forecast(rule, schedule)
            where = f"{name}, {schedule}"
            leave = f"steps before the end at which norms leave, {where}"
            left = result["left"][:, j, i]
            end = result["end"][:, j, i]
            judged += [
                agrees(f"{leave} (forecast)", config.steps - predicted.falls_out_at, left, within=0.03),
                agrees(f"{leave} (closed form)", config.closed_form(rule, schedule), left, within=0.15),
                agrees(f"end norm over peak norm, {where} (forecast)", predicted.end_norm_ratio, end, within=0.02),
            ]
            if schedule == "linear":
                ratio = end_norm_ratio(config.decay * config.steps / 2, rule.norm_power)
                judged.append(agrees(f"end norm over peak norm, {where} (closed form)", ratio, end, within=0.1))
    return judged
