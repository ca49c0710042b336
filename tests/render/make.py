"""Runs for the tests of reports: weights in a random walk as theory has it, measured as a tracker would."""

from dataclasses import dataclass, field

import numpy as np

from gyroscope.store import LayerInfo, LayerSample, Quantity, Sample, Writer
from gyroscope.theory import AdamW, constant, cosine, forecast
from tests.store.make import count_bins

PER_VECTOR = (
    *("angular_update", "norm", "update_norm", "radial_update", "tangential_update", "unit_grad_norm"),
    *("grad_weight_cosine", "grad_momentum_cosine", "lambda_u", "lambda_e", "scaled_grad_norm"),
    *("effective_lr", "max_update", "accumulated_angle", "angle_to_start"),
    "rotation_discrepancy",
)
PER_LAYER = (
    *("predicted_angular_update", "predicted_norm", "predicted_timescale", "forecast_angular_update"),
    *("forecast_norm", "lr", "weight_decay", "dead_vectors", "frozen_entries", "entries", "alignment"),
    "non_finite",
)
QUANTITIES = [
    *(Quantity(name, "", "", "", True) for name in PER_VECTOR),
    *(Quantity(name, "", "", "", False) for name in PER_LAYER),
]
RULE = AdamW(1e-2, 0.5, betas=(0.9, 0.99))
NAMES = ("stem.weight", "block.0.conv1.weight", "block.0.conv2.weight", "block.1.conv1.weight", "block.1.conv2.weight")
SMALL = {"names": NAMES[:2], "vectors": 8, "steps": 300}
"""What makes a story short."""


@dataclass
class Story:
    """What happens in a run. `speeds` multiplies the rotation of each layer, `uneven` spreads that of its neurons."""

    names: tuple = NAMES
    steps: int = 1000
    every: int = 10
    schedule: object = None
    rule: object = RULE
    speeds: tuple = (1.0,)
    uneven: float = 0.0
    radial: float = 0.0
    vectors: int = 32
    fan_in: int = 144
    start: float = 0.7
    config: dict = field(default_factory=dict)


def healthy(**changes):
    return Story(**{"schedule": constant(1000, warmup=100), **changes})


def imbalanced(**changes):
    return Story(
        **{"schedule": constant(1000, warmup=100), "speeds": (1.0, 3.1, 0.35, 1.2, 0.8), "uneven": 0.6, **changes}
    )


def fell_out(**changes):
    return Story(**{"schedule": cosine(1000, warmup=100), **changes})


def samples(story, seed=0):
    """(step, arrays of each layer) of a run, one after the other."""
    rng = np.random.default_rng(seed)
    rule, count = story.rule, len(story.names)
    start = story.start * rule.equilibrium(fan_in=story.fan_in).norm
    known = {"norm": start, "fan_in": story.fan_in, "unit_grad_norm": 1.0}
    f = forecast(rule, story.schedule, steps=None if story.schedule else story.steps, **known)
    character = np.exp(story.uneven * rng.standard_normal((count, story.vectors)))
    for step in range(0, story.steps, story.every):
        yield step, [_layer_sample(story, rng, f, step, i, character[i]) for i in range(count)]


def _layer_sample(story, rng, f, step, index, character):
    rule, n = story.rule, story.vectors
    walk = np.sqrt(rng.chisquare(story.fan_in - 1, n) / (story.fan_in - 1))
    speed = story.speeds[index % len(story.speeds)]
    angle = f.angular_update[step] * walk * speed * character
    norm = f.norm[step] * (1 + 0.02 * rng.standard_normal(n))
    lr = float(f.lr[step])
    cosine = story.radial + rng.standard_normal(n) / np.sqrt(story.fan_in)
    lambda_u = 0.02 * rng.standard_normal(n) + story.radial
    predicted = f.equilibrium_angular_update[step]
    with np.errstate(all="ignore"):
        rows = [angle, norm, angle * norm, -lr * rule.weight_decay * norm, angle * norm, norm / norm, cosine, cosine]
        rows += [lambda_u, rule.weight_decay + lambda_u, walk, lr / norm**2]
        # Turns at random leave a vector at a right angle to its start.
        to_start = np.arccos(np.exp(-0.5 * step * f.angular_update[step] ** 2)) * walk
        rows += [0.8 * walk, 3 * angle, to_start, (predicted / angle) ** 2]
        scalars = [predicted, f.equilibrium_norm[step], 1 / (lr * rule.weight_decay), f.angular_update[step]]
    scalars += [f.norm[step], lr, rule.weight_decay, 0, 0, n * story.fan_in, float(np.mean(walk**2)), 0]
    return layer_sample(np.stack(rows), scalars)


def layer_sample(x, scalars):
    """(quantities, vectors) and numbers per layer as the store wants them."""
    x = np.where(np.isfinite(x), x, np.nan)
    full = np.isfinite(x).all(1)
    statistics = np.full((len(x), 9), np.nan, np.float32)
    known = x[full]
    quantiles = np.quantile(known, [0.05, 0.25, 0.5, 0.75, 0.95], axis=1).T
    columns = [known.mean(1), np.sqrt((known**2).mean(1)), *quantiles.T, known.min(1), known.max(1)]
    statistics[full] = np.stack(columns, axis=1)
    extremes = np.full((len(x), 2), -1, np.int32)
    extremes[full] = np.stack([known.argmin(1), known.argmax(1)], axis=1)
    histograms = np.stack([count_bins(row) for row in x])
    return LayerSample(statistics, np.array(scalars, np.float32), histograms, extremes)


def not_finite(sample):
    """The same sample with what a tracker stores when weights or gradients are not finite: the rest is NaN."""
    scalars = sample.scalars.copy()
    scalars[: PER_LAYER.index("lr")] = np.nan
    scalars[PER_LAYER.index("non_finite")] = 1
    statistics = np.full_like(sample.statistics, np.nan)
    return LayerSample(statistics, scalars, np.zeros_like(sample.histograms), np.full_like(sample.extremes, -1))


def writer(path, story, rows=None):
    rule = {"name": type(story.rule).__name__, **vars(story.rule)}
    group = {"optimizer": type(story.rule).__name__, "rule": rule, "lr": story.rule.lr}
    config = {"model": "Sequential", "optimizer": "AdamW", "every": story.every, "seed": 0, "groups": [group]}
    new = Writer(path, quantities=QUANTITIES, config={**config, **story.config})
    for name in story.names:
        shape = (rows or story.vectors, story.fan_in)
        new.add_layer(LayerInfo(name, shape, "neuron", 0, 1, story.vectors, story.fan_in, 0, repr(story.rule), None))
    return new


def run_at(path, story=None, seed=0, status="finished"):
    """Write a run; its path."""
    story = story or healthy()
    with writer(path, story) as new:
        for number, (step, layers) in enumerate(samples(story, seed)):
            new.put(Sample(step, 1.7e9 + step, dict(enumerate(layers))))
            if number % 20 == 19:
                new.flush()
        new.close(status)
    return path


def log_at(path, story=None, seed=0):
    """Write a run whose training logged a loss at every second step, an accuracy at few, and the number of tokens."""
    story = story or healthy(**SMALL)
    with writer(path, story) as new:
        for step, layers in samples(story, seed):
            new.put(Sample(step, 1.7e9 + step, dict(enumerate(layers))))
        new.put_scalars([(step, {"loss": loss_at(step, seed)}) for step in range(0, story.steps, 2)])
        new.put_scalars([(step, {"accuracy": 1 - 0.9**step}) for step in range(0, story.steps, 50)])
        new.put_scalars([(step, {"tokens": 4096.0 * step}) for step in range(story.steps)])
    return path


def loss_at(step, seed=0):
    return 5.0 * (1 + seed) / (1 + step)
