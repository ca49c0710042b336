"""Rotation in a run: faster at the start than in equilibrium, or at different speeds among layers and neurons."""

from collections.abc import Iterator, Sequence
from math import isfinite
from statistics import NormalDist

import numpy as np

from gyroscope.advice import phrases, remedies
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding
from gyroscope.advice.history import LayerHistory, raw_angles
from gyroscope.advice.phrases import listed, sig
from gyroscope.advice.remedies import Remedy
from gyroscope.advice.settling import NormState, initial_layer
from gyroscope.theory import UpdateRule
from gyroscope.theory.layer_prediction import InitialLayer, needed_warmups

# Share of the vectors below the low percentile, and above the high one, that are compared.
OUTER = 0.05
# Layers for which the warmup that they need is searched, the fastest first: a page is not to wait for a hundred.
MOST_WARMUPS = 12


def over_rotation(states: Sequence[NormState]) -> Iterator[Finding]:
    """Layers that turned faster at the start than in equilibrium: a fact, with a remedy where one is known."""
    judged = [s.history for s in states if s.state != "unknown" and not s.history.keeps_norm]
    fastest = {history.name: _fastest(history) for history in judged}
    fast = [history for history in judged if fastest[history.name][0] > limit.OVER_ROTATION]
    if not fast:
        return
    fast.sort(key=lambda history: -fastest[history.name][0])
    names = tuple(history.name for history in fast)
    ratio, step = fastest[names[0]]
    remedy = _slower_start(fast)
    yield Finding(
        "over_rotation",
        "note",
        phrases.starts_faster(names, [fastest[name][0] for name in names], step, happened=True),
        remedy.text,
        layers=names,
        evidence={"ratio": ratio, "step": step},
        trial=remedy.trial,
    )


def _fastest(history: LayerHistory) -> tuple[float, float]:
    """The largest angle of the start over the equilibrium's at full rate, and its step."""
    # Within 10 % of the peak: equilibrium at full rate, whatever warmup came before.
    high = np.isfinite(history.predicted_angle) & (history.lr >= 0.9 * history.lr[history.peak])
    if not high.any():
        return 0.0, 0.0
    usual = float(np.median(history.predicted_angle[high]))
    # The start lasts until the layer has settled, but no longer than a tenth of the run after its warmup.
    until = history.steps[history.peak] + limit.START * np.ptp(history.steps)
    until = min(until, history.settled_at) if isfinite(history.settled_at) else until
    early = np.isfinite(history.angle) & (history.steps <= until)
    if not early.any() or not usual > 0:
        return 0.0, 0.0
    first = int(np.flatnonzero(early)[np.argmax(history.angle[early])])
    return float(history.angle[first] / usual), float(history.steps[first])


def _slower_start(histories: Sequence[LayerHistory]) -> Remedy:
    """The same advice that a plan gives, for layers as they were first measured, the fastest first."""
    steps = int(histories[0].steps[-1]) + 1
    starts: dict[UpdateRule, list[InitialLayer]] = {}
    for history in histories[:MOST_WARMUPS]:
        layer = initial_layer(history)
        if history.rule is not None and layer is not None and not layer.missing(history.rule):
            starts.setdefault(history.rule, []).append(layer)
    needed = [warmup for rule, layers in starts.items() for warmup in needed_warmups(rule, steps, layers)]
    # The first sample at the peak rate ends the warmup.
    return remedies.slower_start(int(histories[0].steps[histories[0].peak]), needed)


def noise_ratio(fan_in: int, vectors: int, *, samples: int = 1, spacing: float = 1.0, momentum: float = 0.0) -> float:
    """95th over 5th percentile, over vectors, of the mean angle of some samples, if nothing but white noise turns them.

        angle ∝ χ_{C-1};  χ²_p ≈ n·(1 - 2/(9n) + z_p·sqrt(2f/(9n)))³ with n = C-1     (Wilson and Hilferty)
        f = (1 + 2 Σ_{k<N} (1 - k/N)·ρ^k)/N,  ρ = β^(2·spacing)

    Ours. A step's length is that of a Gaussian vector of C - 1 free entries; squared lengths `spacing` steps apart
    correlate by the square of the momentum's correlation. Percentiles of so many `vectors` are Blom's.

    >>> f"{noise_ratio(64, 1000):.2f} {noise_ratio(64, 1000, samples=20, spacing=10, momentum=0.9):.2f}"
    '1.34 1.08'
    """
    # One of the C directions of a step is radial and turns nothing.
    n = max(fan_in - 1, 1)
    # Blom: the expected i-th of N ordered normal numbers is the quantile of (i - 3/8)/(N + 1/4).
    place = 1 + OUTER * (vectors - 1)
    z = -NormalDist().inv_cdf((place - 0.375) / (vectors + 0.25))
    k = np.arange(1, samples)
    f = (1 + 2 * float(np.sum((1 - k / samples) * momentum ** (2 * spacing * k)))) / samples
    # The cube root of χ² is nearly normal; angles are the square root of χ², hence the power 3/2.
    centre = 1 - 2 / (9 * n)
    spread = z * (2 * f / (9 * n)) ** 0.5
    return float(((centre + spread) / max(centre - spread, 1e-3)) ** 1.5)


def layer_imbalance(histories: Sequence[LayerHistory]) -> Iterator[Finding]:
    """Layers of one group turn at different speeds, relative to what the group's settings ask for."""
    speeds = {history: speed for history, speed in _speeds(histories) if np.isfinite(speed) and speed > 0}
    if len(speeds) < 2:
        return
    fastest = max(speeds, key=lambda history: speeds[history])
    slowest = min(speeds, key=lambda history: speeds[history])
    ratio = speeds[fastest] / speeds[slowest]
    if ratio <= limit.LAYER_IMBALANCE:
        return
    remedy = remedies.balance(fastest.rule, fastest.keeps_norm)
    yield Finding(
        "layer_imbalance",
        remedies.severity(remedy),
        f"{phrases.turns_faster(fastest.name, slowest.name, ratio)}: {sig(speeds[fastest], 2)} and "
        f"{sig(speeds[slowest], 2)} times what their settings predict.",
        remedy.text,
        layers=(fastest.name, slowest.name),
        evidence={"ratio": ratio, "fastest": speeds[fastest], "slowest": speeds[slowest]},
        trial=remedy.trial,
    )


def _speeds(histories: Sequence[LayerHistory]) -> Iterator[tuple[LayerHistory, float]]:
    """Angle over the median prediction of the layer's group: where predictions differ, that is imbalance too."""
    for group in {history.layer.group for history in histories}:
        members = [history for history in histories if history.layer.group == group]
        predicted = np.stack([history.predicted_angle for history in members])
        known = np.isfinite(predicted).any(0)
        # The median over the group: one layer with an odd prediction does not move it.
        usual = np.full(predicted.shape[1], np.nan)
        usual[known] = np.nanmedian(predicted[:, known], axis=0)
        for history in members:
            with np.errstate(divide="ignore", invalid="ignore"):
                yield history, history.rms(np.where(usual > 0, history.rms_angle / usual, np.nan))


def neuron_imbalance(histories: Sequence[LayerHistory]) -> Iterator[Finding]:
    """Neurons of a layer turn at different speeds, beyond what noise does."""
    unequal: dict[str, tuple[float, float]] = {}
    for history in histories:
        if measured_vectors(history) >= limit.VECTORS:
            ratio, noise, least = _spread(history)
            if np.isfinite(ratio) and ratio > least * noise:
                unequal[history.name] = ratio, noise
    if not unequal:
        return
    names = tuple(unequal)
    worst = max(names, key=lambda name: unequal[name][0] / unequal[name][1])
    ratio, noise = unequal[worst]
    remedy = next(remedies.balance(h.rule, h.keeps_norm) for h in histories if h.name == worst)
    beginning = f"Neurons of {listed(names)} turn at different speeds: in" if len(names) > 1 else "In"
    yield Finding(
        "neuron_imbalance",
        remedies.severity(remedy),
        f"{beginning} {worst} the 95th percentile of the neurons' rotation is {sig(ratio, 2)} times the 5th, where "
        f"noise gives {sig(noise, 2)}.",
        remedy.text,
        layers=names,
        evidence={"ratio": ratio, "noise_ratio": noise},
        trial=remedy.trial,
    )


def _spread(history: LayerHistory) -> tuple[float, float, float]:
    """Ratio of the percentiles, the same for noise, and how many times as large counts: of averages if it can be."""
    raw = raw_angles(history)
    if raw is not None:
        steps = history.steps[history.window]
        averages = np.array([column[np.isfinite(column)].mean() for column in raw.T if np.isfinite(column).any()])
        spacing = float(np.median(np.diff(steps))) if len(steps) > 1 else 1.0
        momentum = 1 - 1 / history.rule.momentum_memory if history.rule is not None else 0.0
        noise = noise_ratio(history.layer.fan_in, len(averages), samples=len(raw), spacing=spacing, momentum=momentum)
        low, high = np.quantile(averages, [OUTER, 1 - OUTER])
        return (float(high / low) if low > 0 else float("nan")), noise, limit.NEURON_IMBALANCE
    # The 5th percentile is then that of dead vectors, which have a finding of their own.
    if _dead_share(history) > OUTER / 2:
        return float("nan"), 1.0, 1.0
    # A geometric mean: a ratio and its inverse weigh alike.
    ratios = history.quantile_ratio()
    logs = np.log(np.where(np.isfinite(ratios), ratios, np.nan))
    noise = noise_ratio(history.layer.fan_in, round(measured_vectors(history)))
    return float(np.exp(history.mean(logs))), noise, limit.NEURON_IMBALANCE_AT_ONCE


def _dead_share(history: LayerHistory) -> float:
    share = history.mean(history.series("dead_vectors")) / max(measured_vectors(history), 1.0)
    return share if np.isfinite(share) else 0.0


def measured_vectors(history: LayerHistory) -> float:
    """How many vectors of a layer were measured: all, or a sample of rows."""
    entries = history.mean(history.series("entries"))
    return entries / history.layer.fan_in if np.isfinite(entries) else float(history.layer.vectors)
