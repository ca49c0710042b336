"""Lion feels how much gradient norms vary: in small batches its norms are larger than for Gaussian gradients."""

from dataclasses import dataclass
from math import pi

import numpy as np
from plotly.graph_objects import Figure, Scatter

from gyroscope.lab.bench import Bench, Values
from gyroscope.lab.claim import Claim, agrees
from gyroscope.lab.experiment import FloatArray, Result
from gyroscope.lab.picture import COLOURS, INK, PREDICTED, styled
from gyroscope.lab.re._walks import telling
from gyroscope.simulate import network
from gyroscope.theory import Lion
from gyroscope.theory.law import law

COST = {"quick": "40 s", "paper": "5 min"}
SAMPLES, SEED = 200_000, 0
"""Of the expectation over gradient norms."""


@dataclass(frozen=True)
class Config:
    """The simple system of RE Appendix J with unit gammas, at several batch sizes."""

    lr: float
    weight_decay: float
    steps: int
    vectors: int
    seeds: int
    batches: tuple[int, ...] = (8, 16, 32, 128)
    fan_in: int = 256

    @classmethod
    def quick(cls) -> "Config":
        """A decay of 2e-3 per step."""
        return cls(lr=1e-3, weight_decay=2.0, steps=4000, vectors=48, seeds=3)

    @classmethod
    def paper(cls) -> "Config":
        """A decay of 5e-4 per step."""
        return cls(lr=5e-4, weight_decay=1.0, steps=16_000, vectors=96, seeds=3)

    @property
    def rule(self) -> Lion:
        """Lion with its usual betas."""
        return Lion(self.lr, self.weight_decay)


def run(config: Config, bench: Bench) -> Result[Config]:
    """One batch size after the other."""
    return bench.over_parts(config, config.batches, lambda seed, batch: settle(config, batch, seed, bench))


def settle(config: Config, batch: int, seed: int, bench: Bench) -> Values:
    """Norm and angle from two lifetimes on."""
    path = network(
        config.rule,
        steps=config.steps,
        norm=float(config.rule.equilibrium(fan_in=config.fan_in).norm or 0.0),
        shape=(config.vectors, config.fan_in),
        batch=batch,
        every=20,
        average=4,
        seed=seed,
        progress=telling(bench, config.steps),
    )
    found = path.averages(after=round(2 / (config.lr * config.weight_decay)))
    return {"norm": found.layer_norm, "angle": found.layer_angular_update}


def predicted(config: Config, batch: int) -> tuple[float, float]:
    """Norm and angle by the law, with a correlation time that knows how the gradient's size varies.

    Given the squared sizes s and s' of two gradients over their mean, Lion's interpolations k steps apart have the
    correlation β2^(k-1)·(c0·β1(1-β2)·s + β1²β2·M)/sqrt((c0²s + β1²M)(c0²s' + β1²M)), c0 = 1-β1, M = (1-β2)/(1+β2),
    and the arcsine law holds for their signs; its mean over s and s' is τ. Sizes all alike give the usual τ.
    """
    s, other = (relative_sizes(batch, rng) for rng in np.random.default_rng(SEED).spawn(2))
    rule, decay = config.rule, config.lr * config.weight_decay
    beta1, beta2 = rule.betas
    c0, rest = 1 - beta1, beta1**2 * (1 - beta2) / (1 + beta2)
    first = (c0 * beta1 * (1 - beta2) * s + beta2 * rest) / np.sqrt((c0**2 * s + rest) * (c0**2 * other + rest))
    k = np.arange(1, round(12 / (1 - beta2)))[:, None]
    grid = np.linspace(first.min(), first.max(), 200)
    signs = ((1 - decay) ** k * np.arcsin(grid * beta2 ** (k - 1))).sum(0)
    tau = 1 + 4 / pi * float(np.interp(first, grid, signs).mean())
    eq = law(decay, tau, config.lr * config.fan_in**0.5)
    return float(eq.norm or 0.0), float(eq.angular_update or 0.0)


def relative_sizes(batch: int, rng: np.random.Generator) -> FloatArray:
    """Squared gradient norms in the simple system over their mean: χ²(B-2)/(B-2) · (B-3)/χ²(B-1)."""
    upstream, variance = rng.chisquare(batch - 2, SAMPLES), rng.chisquare(batch - 1, SAMPLES)
    return np.asarray(upstream / (batch - 2) * (batch - 3) / variance)


def plot(result: Result[Config]) -> Figure:
    """Norm and angle over those of Gaussian gradients, against the batch."""
    config = result.config
    eq = config.rule.equilibrium(fan_in=config.fan_in)
    fine = np.unique(np.geomspace(config.batches[0], config.batches[-1], 20).astype(int))
    figure = Figure()
    for i, (name, base) in enumerate((("norm", float(eq.norm or 0.0)), ("angle", float(eq.angular_update or 0.0)))):
        marker, line = {"color": COLOURS[i], "size": 10}, PREDICTED | {"color": COLOURS[i]}
        y = result[name].mean(0) / base
        figure.add_trace(Scatter(x=config.batches, y=y, mode="markers", marker=marker, name=f"{name}, measured"))
        y = [predicted(config, int(batch))[i] / base for batch in fine]
        figure.add_trace(Scatter(x=fine, y=y, mode="lines", line=line, name=f"{name}, predicted"))
    figure.add_hline(y=1, line={"dash": "dot", "color": INK, "width": 1})
    figure.update_xaxes(type="log", title_text="batch", tickvals=config.batches)
    figure.update_yaxes(title_text="over the arcsine law for Gaussian gradients")
    return styled(figure, "Lion in small batches: gradient norms vary, signs stay correlated, norms grow")


def claims(result: Result[Config]) -> list[Claim]:
    """The mean over gradient sizes explains norm and angle at every batch."""
    found = []
    for j, batch in enumerate(result.config.batches):
        norm, angle = predicted(result.config, batch)
        found.append(agrees(f"norm at batch {batch}", norm, result["norm"][:, j], within=0.015))
        found.append(agrees(f"angle at batch {batch}", angle, result["angle"][:, j], within=0.015))
    return found
