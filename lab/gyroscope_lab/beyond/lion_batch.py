"""Lion feels how much gradient norms vary: in small batches its norms are larger than for Gaussian gradients."""

from dataclasses import dataclass
from math import pi

import numpy as np

from gyroscope.theory import Lion
from gyroscope.theory.law import law
from gyroscope.tools import Array
from gyroscope_lab.framework.claims import Claim, agrees
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, Figure, Panels
from gyroscope_lab.simulate import network

COST = {"quick": "30 s", "paper": "5 min"}
# For the expectation over gradient norms.
SAMPLES = 200_000
SEED = 0


@dataclass(frozen=True)
class Config:
    """The simple system of RE Appendix J with unit gammas, at several batch sizes."""

    lr: float
    weight_decay: float
    steps: int
    vectors: int
    seeds: int = 3
    batches: tuple[int, ...] = (8, 16, 32, 128)
    fan_in: int = 256

    @property
    def parts(self) -> tuple[int, ...]:
        """One batch size after the other."""
        return self.batches

    @property
    def rule(self) -> Lion:
        """Lion with its usual betas."""
        return Lion(self.lr, self.weight_decay)

    @property
    def gaussian(self) -> tuple[float, float]:
        """Norm and angle under Gaussian gradients, by the arcsine law."""
        eq = self.rule.equilibrium(fan_in=self.fan_in)
        return float(eq.norm or 0.0), float(eq.angular_update or 0.0)


# A decay of 2e-3 per step.
QUICK = Config(lr=1e-3, weight_decay=2.0, steps=4000, vectors=48)
# A decay of 5e-4 per step.
PAPER = Config(lr=5e-4, weight_decay=1.0, steps=16_000, vectors=96)


def measure(trial: Trial[Config]) -> Measurements:
    """Measure norm and angle from two lifetimes on."""
    config = trial.config
    path = network(
        config.rule,
        norm=config.gaussian[0],
        shape=(config.vectors, config.fan_in),
        batch=trial.part,
        every=20,
        average=4,
        **trial.walk(config.steps),
    )
    settled = path.averages(after=round(2 / (config.lr * config.weight_decay)))
    return {"norm": settled.layer_norm, "angle": settled.layer_angular_update}


def predicted(config: Config, batch: int) -> tuple[float, float]:
    """Return norm and angle by the law, with a correlation time for gradients of varying size.

    Let s and s' be the squared sizes of two gradients over their mean. Lion's interpolations k steps apart then have
    the correlation β2^(k-1)·(c0·β1(1-β2)·s + β1²β2·M)/sqrt((c0²s + β1²M)(c0²s' + β1²M)), c0 = 1-β1, M = (1-β2)/(1+β2),
    and the arcsine law holds for their signs. Its mean over s and s' is τ. Equal sizes give the usual τ.
    """
    s, other = (relative_sizes(batch, rng) for rng in np.random.default_rng(SEED).spawn(2))
    decay = config.lr * config.weight_decay
    beta1, beta2 = config.rule.betas
    c0 = 1 - beta1
    rest = beta1**2 * (1 - beta2) / (1 + beta2)  # β1²·M
    first = (c0 * beta1 * (1 - beta2) * s + beta2 * rest) / np.sqrt((c0**2 * s + rest) * (c0**2 * other + rest))
    k = np.arange(1, round(12 / (1 - beta2)))[:, None]  # beyond twelve lifetimes nothing is left
    # The sum over k is smooth in the first correlation, so it is interpolated from a grid and not computed for each
    # sample.
    grid = np.linspace(first.min(), first.max(), 200)
    signs = ((1 - decay) ** k * np.arcsin(grid * beta2 ** (k - 1))).sum(0)
    tau = 1 + 4 / pi * float(np.interp(first, grid, signs).mean())
    eq = law(decay, tau, config.lr * config.fan_in**0.5)
    return float(eq.norm or 0.0), float(eq.angular_update or 0.0)


def relative_sizes(batch: int, rng: np.random.Generator) -> Array:
    """Return squared gradient norms in the simple system over their mean: χ²(B-2)/(B-2) · (B-3)/χ²(B-1)."""
    upstream = rng.chisquare(batch - 2, SAMPLES)
    variance = rng.chisquare(batch - 1, SAMPLES)
    return np.asarray(upstream / (batch - 2) * (batch - 3) / variance)


def plot(result: Result[Config]) -> Figure:
    """Draw norm and angle over those of Gaussian gradients, against the batch."""
    config = result.config
    fine = np.unique(np.geomspace(config.batches[0], config.batches[-1], 20).astype(int))
    panels = Panels()
    for i, name in enumerate(("norm", "angle")):
        base = config.gaussian[i]
        panels.dots(0, config.batches, result[name].mean(0) / base, f"{name}, measured", COLOURS[i], size=10)
        y = [predicted(config, int(batch))[i] / base for batch in fine]
        panels.predicted(0, fine, y, f"{name}, predicted", COLOURS[i])
    panels.level(0, 1, dash="dot", width=1)
    panels.figure.update_xaxes(type="log", title_text="batch", tickvals=config.batches)
    panels.figure.update_yaxes(title_text="over the arcsine law for Gaussian gradients")
    return panels.titled("Lion in small batches: gradient norms vary, signs stay correlated, norms grow")


def claims(result: Result[Config]) -> list[Claim]:
    """Claim that the mean over gradient sizes explains norm and angle at every batch."""
    judged = []
    for j, batch in enumerate(result.config.batches):
        norm, angle = predicted(result.config, batch)
        judged.append(agrees(f"norm at batch {batch}", norm, result["norm"][:, j], within=0.015))
        judged.append(agrees(f"angle at batch {batch}", angle, result["angle"][:, j], within=0.015))
    return judged
