"""Before a schedule ends, norms can no longer follow their equilibrium: when, and how large they stay."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from plotly.graph_objects import Figure, Scatter
from plotly.subplots import make_subplots

from gyroscope._types import Array
from gyroscope.lab.claims import Claim, agrees
from gyroscope.lab.experiment import Measurements, Result, Trial
from gyroscope.lab.figures import COLOURS, PREDICTED, shown_steps, styled
from gyroscope.simulate import random_walk
from gyroscope.theory import SGDM, AdamW, Forecast, Lion, UpdateRule, cosine, forecast, linear
from gyroscope.theory.convergence import end_norm_ratio, falls_out_before_end

COST = {"quick": "30 s", "paper": "6 min"}
NAMES = ("AdamW", "SGDM", "Lion")
SCHEDULES: tuple[Literal["linear", "cosine"], ...] = ("linear", "cosine")
MULTIPLIERS = {"linear": linear, "cosine": cosine}
POINTS = 250


@dataclass(frozen=True)
class Config:
    """Schedules that fall to zero over `steps` from a decay per step of `decay`."""

    decay: float
    steps: int
    vectors: int
    seeds: int
    fan_in: int = 256
    parts: ClassVar = SCHEDULES

    @property
    def rules(self) -> tuple[UpdateRule, ...]:
        """AdamW with β2 = 0.99: a longer memory of gradients keeps norms up, which only the forecast includes."""
        a = self.decay
        return AdamW(1e-2, 100 * a, (0.9, 0.99)), SGDM(0.1, a, 0.9), Lion(1e-3, 1000 * a)

    def forecast(self, rule: UpdateRule, schedule: str) -> Forecast:
        """The forecast of a run that starts in equilibrium."""
        norm = rule.equilibrium(fan_in=self.fan_in, unit_grad_norm=1.0).norm
        assert norm is not None  # fan-in and gradient determine it
        return forecast(rule, MULTIPLIERS[schedule](self.steps), norm=norm, fan_in=self.fan_in, unit_grad_norm=1.0)


# A total decay of 10 or more within ten thousand steps.
QUICK = Config(decay=2e-3, steps=10_000, vectors=48, seeds=3)
# Ten times as long, at a tenth of the decay.
PAPER = Config(decay=2e-4, steps=100_000, vectors=48, seeds=3)


def measure(trial: Trial[Config]) -> Measurements:
    """Norm over equilibrium norm through the run; steps before the end at which it leaves; the norm at the end."""
    config = trial.config
    forecasts = [config.forecast(rule, trial.part) for rule in config.rules]
    peak = np.array([predicted.initial_norm for predicted in forecasts])
    path = random_walk(
        config.rules,
        MULTIPLIERS[trial.part](config.steps),
        norm=peak,
        shape=(config.vectors, config.fan_in),
        every=every(config),
        seed=trial.seed,
        progress=trial.progress(config.steps),
    )
    norm = np.sqrt((path.norm**2).mean(2)).T
    ratio = norm / np.stack([predicted.equilibrium_norm[path.steps] for predicted in forecasts])
    left = [_crossing(r, rule.falls_out_ratio) for r, rule in zip(ratio, config.rules, strict=True)]
    return {
        "ratio": ratio[:, shown_steps(ratio.shape[1], POINTS)],
        # Records are `every` steps apart, the first after step `every` - 1.
        "left": config.steps - every(config) * (np.array(left) + 1) + 1,
        "end": norm[:, -1] / peak,
    }


def every(config: Config) -> int:
    """Steps between records."""
    return max(1, config.steps // 5000)


def _crossing(ratio: Array, threshold: float) -> int:
    """First record above the threshold; one beyond the last where there is none."""
    above = np.flatnonzero(ratio > threshold)
    return int(above[0]) if len(above) else len(ratio)


def plot(result: Result[Config]) -> Figure:
    """Norm over its equilibrium of the moment: measured, predicted, and where the closed form has it leave."""
    config = result.config
    figure = make_subplots(cols=2, subplot_titles=[f"{schedule} decay to zero" for schedule in SCHEDULES])
    for col, schedule in enumerate(SCHEDULES):
        for i, (name, rule) in enumerate(zip(NAMES, config.rules, strict=True)):
            predicted = config.forecast(rule, schedule)
            t = np.linspace(every(config) - 1, config.steps - 1, POINTS).astype(int)
            measured = result["ratio"][:, col, i].mean(0)
            ratio = (predicted.norm / predicted.equilibrium_norm)[t]
            wide = {"color": COLOURS[i], "width": 3.5}  # to be seen on both sides of the forecast
            line = Scatter(x=t, y=measured, mode="lines", line=wide, name=f"{name}, measured")
            dashed = Scatter(x=t, y=ratio, mode="lines", line=PREDICTED, name="forecast")
            figure.add_trace(line.update(showlegend=col == 0), row=1, col=col + 1)
            figure.add_trace(dashed.update(showlegend=col == 0 and name == NAMES[-1]), row=1, col=col + 1)
            when = config.steps - falls_out_before_end(schedule, config.steps, config.decay, rule.norm_power)
            figure.add_vline(x=when, line={"color": COLOURS[i], "dash": "dot", "width": 1.5}, row=1, col=col + 1)
    figure.update_xaxes(title_text="step (dotted: the closed form for when it leaves)")
    figure.update_yaxes(title_text="norm over equilibrium norm", range=[0.8, 2], col=1)
    figure.update_yaxes(range=[0.8, 2], col=2)
    return styled(figure, "Falling out of equilibrium at the end of a schedule")


def claims(result: Result[Config]) -> list[Claim]:
    """The forecast closely, the closed forms roughly."""
    config = result.config
    judged = []
    for j, schedule in enumerate(SCHEDULES):
        for i, (name, rule) in enumerate(zip(NAMES, config.rules, strict=True)):
            predicted = config.forecast(rule, schedule)
            where = f"{name}, {schedule}"
            closed = falls_out_before_end(schedule, config.steps, config.decay, rule.norm_power)
            left = result["left"][:, j, i]
            end = result["end"][:, j, i]
            before_end = config.steps - predicted.falls_out_at
            judged += [
                agrees(f"steps before the end at which norms leave, {where} (forecast)", before_end, left, within=0.03),
                agrees(f"steps before the end at which norms leave, {where} (closed form)", closed, left, within=0.15),
                agrees(f"end norm over peak norm, {where} (forecast)", predicted.end_norm_ratio, end, within=0.02),
            ]
            if schedule == "linear":
                ratio = end_norm_ratio(config.decay * config.steps / 2, rule.norm_power)
                judged.append(agrees(f"end norm over peak norm, {where} (closed form)", ratio, end, within=0.1))
    return judged
