"""A weight forgets its direction at the rate of its decay: cos∠(w_t, w_{t+k}) = exp(-a·k) for every rule."""

from dataclasses import dataclass

import numpy as np

from gyroscope.theory import SGDM, AdamL2, AdamW, Lion, UpdateRule
from gyroscope.tools import Array
from gyroscope_lab.framework.claims import Claim, agrees
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.simulate import random_walk

COST = {"quick": "10 s", "paper": "8 min"}
# In four lifetimes: one of them before the directions are compared, three after.
RECORDS = 50
# Lags, in lifetimes, over which the rate is read: beyond Lion's memory, and before noise is all that is left.
FIT = (0.8, 2.0)


@dataclass(frozen=True)
class Config:
    """All rules decay by about this share per step."""

    decay: float
    vectors: int = 384
    seeds: int = 3
    fan_in: int = 256

    @property
    def rules(self) -> dict[str, UpdateRule]:
        """Decoupled, coupled and adaptive rules. The lr and weight decay of Adam+L2 give about the same decay."""
        a = self.decay
        return {
            "AdamW": AdamW(1e-2, 100 * a),
            "SGDM": SGDM(0.1, a, 0.9),
            "Lion": Lion(1e-3, 1000 * a),
            "Adam+L2": AdamL2(10 * a, a / 2),
        }

    @property
    def steps(self) -> int:
        """Four lifetimes."""
        return RECORDS * round(4 / self.decay / RECORDS)


# Five hundred steps to forget.
QUICK = Config(decay=2e-3)
# Five thousand steps to forget.
PAPER = Config(decay=2e-4)


def rate(config: Config, rule: UpdateRule) -> float:
    """Return the predicted decay per step."""
    return 1 / float(rule.equilibrium(fan_in=config.fan_in, unit_grad_norm=1.0).timescale or np.inf)


def measure(trial: Trial[Config]) -> Measurements:
    """Measure the mean cosine with the direction after one lifetime, (rules, lags), and the rate at which it falls."""
    config = trial.config
    rules = list(config.rules.values())
    norms = [rule.equilibrium(fan_in=config.fan_in, unit_grad_norm=1.0).norm for rule in rules]
    path = random_walk(
        rules,
        norm=np.array(norms),
        shape=(config.vectors, config.fan_in),
        every=config.steps // RECORDS,
        reference=config.steps // 4 - 1,
        **trial.walk(config.steps),
    )
    if path.cosine is None:
        raise RuntimeError("no cosines were recorded")
    cosine = path.cosine[_after(config)].mean(2).T
    lag = lags(config)
    rates = []
    for rule, y in zip(rules, cosine, strict=True):
        chosen = (lag * rate(config, rule) >= FIT[0]) & (lag * rate(config, rule) <= FIT[1])
        # Weighted by the cosine, because the logarithm of a small cosine is mostly noise.
        rates.append(-np.polyfit(lag[chosen], np.log(y[chosen]), 1, w=y[chosen])[0])
    return {"cosine": cosine, "rate": rates}


def lags(config: Config) -> Array:
    """Return the steps since the reference direction, for the records after it."""
    every = config.steps // RECORDS
    return (every * np.arange(1, RECORDS + 1) - config.steps // 4)[_after(config)].astype(np.float64)


def _after(config: Config) -> slice:
    return slice((config.steps // 4) // (config.steps // RECORDS), None)


def plot(result: Result[Config]) -> Figure:
    """Draw cosines on a logarithmic scale, where they are straight lines of slope -a."""
    config = result.config
    panels = Panels()
    for i, (name, rule) in enumerate(config.rules.items()):
        x = lags(config) * rate(config, rule)
        panels.dots(0, x, result["cosine"][:, i].mean(0), f"{name}, measured", COLOURS[i], size=7, symbol=i)
    x = np.linspace(0, 3, 50)
    panels.predicted(0, x, np.exp(-x), "exp(-a·k)")
    panels.figure.update_xaxes(title_text="lag k in lifetimes 1/a", range=[0, 3])
    panels.figure.update_yaxes(type="log", range=[-1.5, 0.05], tickvals=[0.05, 0.1, 0.2, 0.5, 1.0])
    panels.figure.update_yaxes(title_text="cosine with itself k steps ago")
    return panels.titled("Directions are forgotten at the rate of the decay")


def claims(result: Result[Config]) -> list[Claim]:
    """Claim that the rate of forgetting is the decay per step."""
    config = result.config
    return [
        agrees(f"rate at which the cosine falls, {name}", rate(config, rule), result["rate"][:, i], within=0.06)
        for i, (name, rule) in enumerate(config.rules.items())
    ]
