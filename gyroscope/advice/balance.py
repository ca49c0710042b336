"""Do all layers, and all neurons of a layer, turn alike?"""

from collections.abc import Iterator, Sequence
from statistics import NormalDist

import numpy as np

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Verdict
from gyroscope.advice.record import Array, Reading, raw_angles
from gyroscope.advice.words import listed, sig

TAIL = 0.05


def noise_ratio(fan_in: int, vectors: int, *, samples: int = 1, spacing: float = 1.0, momentum: float = 0.0) -> float:
    """95th over 5th percentile, over vectors, of the mean angle of some samples, if nothing but white noise turns them.

        angle ∝ χ_{C-1};  χ²_p ≈ n·(1 - 2/(9n) + z_p·sqrt(2f/(9n)))³ with n = C-1     (Wilson and Hilferty)
        f = (1 + 2 Σ_{k<N} (1 - k/N)·ρ^k)/N,  ρ = β^(2·spacing)

    A step's length is that of a Gaussian vector of C - 1 free entries; squared lengths `spacing` steps apart correlate
    by the square of the momentum's correlation. Percentiles of so many `vectors` are Blom's. Ours.

    >>> f"{noise_ratio(64, 1000):.2f} {noise_ratio(64, 1000, samples=20, spacing=10, momentum=0.9):.2f}"
    '1.34 1.08'
    """
    n = max(fan_in - 1, 1)
    place = 1 + TAIL * (vectors - 1)
    z = -NormalDist().inv_cdf((place - 0.375) / (vectors + 0.25))
    k = np.arange(1, samples)
    f = (1 + 2 * float(np.sum((1 - k / samples) * momentum ** (2 * spacing * k)))) / samples
    centre, spread = 1 - 2 / (9 * n), z * (2 * f / (9 * n)) ** 0.5
    return float(((centre + spread) / max(centre - spread, 1e-3)) ** 1.5)


def layer_imbalance(layers: Sequence[Reading]) -> Iterator[Verdict]:
    """Layers of one group turn at different speeds, relative to what the group's settings ask for."""
    speeds = {reading: speed for reading, speed in _speeds(layers) if np.isfinite(speed) and speed > 0}
    if len(speeds) < 2:
        return
    fastest, slowest = max(speeds, key=lambda r: speeds[r]), min(speeds, key=lambda r: speeds[r])
    ratio = speeds[fastest] / speeds[slowest]
    if ratio < limit.LAYER_IMBALANCE:
        return
    yield Verdict(
        "layer_imbalance",
        "bad" if ratio > limit.LAYER_IMBALANCE_BAD else "warn",
        f"{fastest.name} turns {sig(ratio, 2)} times as fast as {slowest.name}: {sig(speeds[fastest], 2)} and "
        f"{sig(speeds[slowest], 2)} times what their settings predict.",
        _balancing(fastest),
        (fastest.name, slowest.name),
        {"ratio": ratio, "fastest": speeds[fastest], "slowest": speeds[slowest]},
    )


def _speeds(layers: Sequence[Reading]) -> Iterator[tuple[Reading, float]]:
    """Angle over the median prediction of the layer's group: where predictions differ, that is imbalance too."""
    for group in {reading.layer.group for reading in layers}:
        members = [reading for reading in layers if reading.layer.group == group]
        predicted = np.stack([reading.predicted_angle for reading in members])
        known = np.isfinite(predicted).any(0)
        usual = np.full(predicted.shape[1], np.nan)
        usual[known] = np.nanmedian(predicted[:, known], axis=0)
        for reading in members:
            with np.errstate(divide="ignore", invalid="ignore"):
                yield reading, reading.mean(np.where(usual > 0, reading.angle / usual, np.nan))


def _balancing(reading: Reading) -> str:
    rule = reading.rule
    if reading.keeps_norm:
        return "The optimizer sets these angles itself: look at its imbalance= and at the settings of its groups."
    if rule is not None and rule.adam_betas is not None and not rule.is_decoupled:
        return "Decouple the weight decay: with AdamW the rotation does not depend on the gradient's size."
    name = (rule.rotational_twin if rule is not None else None) or "Rotational(optimizer)"
    return f"gyro.optim.{name} turns every layer by the same angle."


def neuron_imbalance(layers: Sequence[Reading]) -> Iterator[Verdict]:
    """Neurons of a layer turn at different speeds, beyond what noise does."""
    found = []
    for reading in layers:
        if measured_vectors(reading) >= limit.VECTORS:
            ratio, noise, least = _spread(reading)
            if np.isfinite(ratio) and ratio > least * noise:
                found.append((reading, ratio, noise))
    if not found:
        return
    worst, ratio, noise = max(found, key=lambda one: one[1] / one[2])
    names = [one.name for one, _, _ in found]
    others = f"Neurons of {listed(names)} turn at different speeds: in" if len(names) > 1 else "In"
    yield Verdict(
        "neuron_imbalance",
        "warn",
        f"{others} {worst.name} the 95th percentile of the neurons' rotation is {sig(ratio, 2)} times the 5th, where "
        f"noise gives {sig(noise, 2)}.",
        _balancing(worst),
        tuple(names),
        {"ratio": ratio, "noise_ratio": noise},
    )


def _spread(reading: Reading) -> tuple[float, float, float]:
    """Ratio of the percentiles, the same for noise, and how many times as large counts: of averages if it can be."""
    layer, rule = reading.layer, reading.rule
    raw = raw_angles(reading)
    if raw is not None:
        steps = reading.steps[reading.window]
        averages = np.array([column[np.isfinite(column)].mean() for column in raw.T if np.isfinite(column).any()])
        spacing = float(np.median(np.diff(steps))) if len(steps) > 1 else 1.0
        momentum = 1 - 1 / rule.momentum_memory if rule is not None else 0.0
        noise = noise_ratio(layer.fan_in, len(averages), samples=len(raw), spacing=spacing, momentum=momentum)
        low, high = np.quantile(averages, [TAIL, 1 - TAIL])
        return (float(high / low) if low > 0 else float("nan")), noise, limit.NEURON_IMBALANCE
    if _dead_share(reading) > TAIL / 2:  # the 5th percentile is then that of the dead, who have a verdict of their own
        return float("nan"), 1.0, 1.0
    ratios: Array = reading.quantile_ratio()
    logs = np.log(np.where(np.isfinite(ratios), ratios, np.nan))
    noise = noise_ratio(layer.fan_in, round(measured_vectors(reading)))
    return float(np.exp(reading.mean(logs))), noise, limit.NEURON_IMBALANCE_AT_ONCE


def _dead_share(reading: Reading) -> float:
    share = reading.mean(reading.series("dead_vectors")) / max(measured_vectors(reading), 1.0)
    return share if np.isfinite(share) else 0.0


def measured_vectors(reading: Reading) -> float:
    """How many vectors of a layer were measured: all, or a sample of rows."""
    entries = reading.mean(reading.series("entries"))
    return entries / reading.layer.fan_in if np.isfinite(entries) else float(reading.layer.vectors)
