"""Runs of 100 layers that no training made, for the benchmarks of pages and of the live server."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gyroscope.store import BINS, STATISTICS, LayerInfo, LayerSample, Quantity, Sample, Writer

LAYERS = 100
VECTORS = 256
FAN_IN = 576
PER_VECTOR = (
    *("angular_update", "norm", "update_norm", "radial_update", "tangential_update", "unit_grad_norm"),
    *("grad_weight_cosine", "grad_momentum_cosine", "lambda_u", "lambda_e", "scaled_grad_norm"),
    *("effective_lr", "max_update", "accumulated_angle", "rotation_discrepancy"),
)
PER_LAYER = {
    "predicted_angular_update": 3e-3,
    "predicted_norm": 1.0,
    "predicted_timescale": 1e4,
    "forecast_angular_update": 3e-3,
    "forecast_norm": 1.0,
    "lr": 1e-3,
    "weight_decay": 0.1,
    "dead_vectors": 0.0,
    "frozen_entries": 0.0,
    "entries": float(VECTORS * FAN_IN),
}
RULE = {"name": "AdamW", "lr": 1e-3, "weight_decay": 0.1, "betas": [0.9, 0.999]}


def writer(path: Path) -> Writer:
    quantities = [Quantity(name, "", "", "") for name in PER_VECTOR]
    quantities += [Quantity(name, "", "", "", per_vector=False) for name in PER_LAYER]
    new = Writer(path, quantities=quantities, config={"groups": [{"optimizer": "AdamW", "rule": RULE}]})
    for i in range(LAYERS):
        name = f"blocks.{i // 4}.part{i % 4}.weight"
        new.add_layer(LayerInfo(name, (VECTORS, FAN_IN), "neuron", 0, 1, VECTORS, FAN_IN, 0, None, None))
    return new


def samples(count: int) -> Iterator[Sample]:
    """Noise around what is predicted: no two numbers alike, so that nothing compresses by luck."""
    rng = np.random.default_rng(0)
    typical = np.array([3e-3 if "angular" in name else 1.0 for name in PER_VECTOR])[:, None]
    places = np.linspace(-0.1, 0.1, len(STATISTICS))
    histograms = np.zeros((len(PER_VECTOR), BINS), np.uint32)
    histograms[:, 94:99] = [9, 60, 120, 60, 7]
    extremes = np.tile(np.array([3, 200], np.int32), (len(PER_VECTOR), 1))
    level = np.fromiter(PER_LAYER.values(), np.float32)
    for step in range(count):
        layers = {}
        for i in range(LAYERS):
            noise = 0.05 * rng.standard_normal((len(PER_VECTOR), 1)) + 0.01 * rng.standard_normal(len(places))
            statistics = (typical * np.exp(places + noise)).astype(np.float32)
            wobble = np.ones(len(level), np.float32)
            wobble[3:5] += 0.001 * rng.standard_normal(2)
            layers[i] = LayerSample(statistics, level * wobble, histograms, extremes)
        yield Sample(10 * step, time.time(), layers)


def write_run(path: Path, count: int) -> Path:
    """A run of so many samples, unless it is there from an earlier benchmark."""
    if not path.exists():
        with writer(path) as new:
            for number, sample in enumerate(samples(count)):
                new.put(sample)
                if number % 20 == 19:  # as often as a training of this size would
                    new.flush()
    return path
