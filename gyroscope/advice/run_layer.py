"""A layer of a run in numbers: its start and its end, its neurons, and the gradient along its weights."""

from collections.abc import Sequence
from math import isfinite, nan, sqrt
from statistics import NormalDist

import numpy as np

from gyroscope._types import Array, Mask
from gyroscope.advice import thresholds as limit
from gyroscope.advice.history import LayerHistory
from gyroscope.advice.record import finite_ratio
from gyroscope.theory import UpdateRule, sensitivity
from gyroscope.theory.law import Weights
from gyroscope.theory.layer_prediction import InitialLayer, needed_warmups, tried_warmups


def is_measured(layer: LayerHistory) -> bool:
    """Return whether any step with a gradient was seen."""
    return bool(np.isfinite(layer.angle).any())


def is_transient(layer: LayerHistory) -> bool:
    """Return whether the norm approaches its prediction about as fast as in theory: d ln‖w‖/dt = a·(1/q - 1).

    It does not if it has settled, or if another force holds it.
    """
    ratio = layer.mean(layer.distance)
    norm = layer.series("norm", "rms")
    used = layer.window & np.isfinite(norm) & (norm > 0)
    if isfinite(layer.settled_at) or not isfinite(ratio) or used.sum() < limit.MIN_MEAN_SAMPLES:
        return False
    # Slope of ln‖w‖ over the judged part of the run.
    measured = float(np.polyfit(layer.steps[used], np.log(norm[used]), 1)[0])
    exponent = layer.rule.norm_power if layer.rule is not None else 0.0
    power = 1 / exponent if exponent > 0 else limit.UNKNOWN_NORM_POWER
    expected = layer.mean(layer.decay) * (ratio**-power - 1)
    return bool(measured / expected > limit.MIN_APPROACH_SPEED) if isfinite(expected) and expected else False


def has_fallen_out(layer: LayerHistory) -> bool:
    """Return whether the norm of a layer that had settled is now too large for its learning rate."""
    known = layer.distance[np.isfinite(layer.distance)]
    most = layer.rule.falls_out_ratio if layer.rule is not None else limit.UNKNOWN_FALLS_OUT_RATIO
    # A norm above its equilibrium counts only if it slows the layer. Otherwise the prediction is off.
    last_speeds = layer.speeds[np.isfinite(layer.speeds)][-limit.MIN_MEAN_SAMPLES :]
    slow = not last_speeds.size or float(np.median(last_speeds)) < limit.MAX_SLOWED_ROTATION
    return bool(known.size and known[-1] > most and slow)


def fastest_start(layer: LayerHistory) -> tuple[float, float]:
    """Return the fastest rotation at the start, as RMS over vectors, and its step.

    Both are NaN if the optimizer sets the angle.
    """
    # The start lasts until the layer has settled, but no longer than a tenth of the run after its warmup.
    until = layer.steps[layer.peak : layer.peak + 1].sum() + limit.START_SHARE * layer.step_count
    until = min(until, layer.settled_at) if isfinite(layer.settled_at) else until
    early = np.isfinite(layer.rms_angle) & (layer.steps <= until)
    if layer.keeps_norm or not early.any():
        return nan, nan
    rotation, place = fastest(layer.rms_angle[early])
    return rotation, float(layer.steps[early][place])


def fastest(angles: Array) -> tuple[float, int]:
    """Return the largest angle and its place."""
    place = int(angles.argmax())
    return float(angles[place]), place


def start_norm(rule: UpdateRule, initial: InitialLayer) -> float:
    """Return the initial norm over the equilibrium norm of the plain rule. NaN unless the optimizer keeps norms.

    It is known for rules like AdamW's, which were tried.
    """
    plain = rule.plain
    is_tried = rule.keeps_norm and not rule.follows_base and plain.is_decoupled and plain.adam_betas is not None
    if not is_tried or plain is rule or initial.missing(plain):
        return nan
    norm = plain.equilibrium(**initial.known).norm
    return float(initial.norm / norm) if norm is not None and np.isfinite(norm) and norm > 0 else nan


def late_ratio(layer: LayerHistory) -> float:
    """Return measured over predicted rotation at the end of the run, as root mean squares."""
    ratios = finite_ratio(layer.rms_angle, layer.reference_angle)
    known = ratios[layer.late & np.isfinite(ratios)]
    return sqrt(float((known**2).mean())) if known.size else nan


def final_rate(layer: LayerHistory) -> float:
    """Return the last learning rate over the highest, or 1 if rates are unknown."""
    known = layer.lr[np.isfinite(layer.lr)]
    return float(known[-1] / known.max()) if known.size and known.max() > 0 else 1.0


def stopped_at(layer: LayerHistory) -> float:
    """Return the step since which a layer does not move, by itself or by its learning rate. NaN if it moves."""
    moves: Mask
    if late_ratio(layer) < limit.MAX_STOPPED_ROTATION:
        moves = layer.speeds >= limit.MAX_STOPPED_ROTATION
    elif final_rate(layer) < limit.MIN_RATE_SHARE:
        moves = layer.lr >= limit.MIN_RATE_SHARE * np.nanmax(layer.lr)
    else:
        return nan
    moving = np.flatnonzero(moves)
    first = min(int(moving[-1]) + 1, len(layer.steps) - 1) if moving.size else 0
    return float(layer.steps[first])


def vectors(layer: LayerHistory) -> float:
    """Return how many vectors were measured: all, or a sample of rows."""
    entries = layer.mean(layer.series("entries"))
    return entries / layer.layer.fan_in if isfinite(entries) else float(layer.layer.vectors)


def dead_vectors(layer: LayerHistory) -> int:
    """Return the number of vectors without a gradient in every judged sample."""
    # The smallest count: a vector that had a gradient in any judged sample is alive.
    counts = layer.series("dead_vectors")
    counts = counts[layer.window & np.isfinite(counts)]
    return int(counts.min()) if counts.size >= limit.MIN_MEAN_SAMPLES else 0


def frozen_share(layer: LayerHistory) -> float:
    """Return the share of the entries that have a gradient and did not change in a step."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = layer.mean(layer.series("frozen_entries") / layer.series("entries"))
    return share if isfinite(share) else 0.0


def neuron_spread(layer: LayerHistory) -> tuple[float, float]:
    """Return the 95th over the 5th percentile of the neurons' rotation, and the same under noise."""
    count = vectors(layer)
    if count < 1:
        return nan, nan
    # The 5th percentile is then that of dead vectors, which have a separate finding.
    if layer.mean(layer.series("dead_vectors")) / max(count, 1.0) > limit.OUTER_SHARE / 2:
        return nan, nan
    # A geometric mean, so that a ratio and its inverse have the same weight.
    ratio = float(np.exp(layer.mean(np.log(layer.quantile_ratio()))))
    return ratio, noise_ratio(layer.layer.fan_in, round(count))


def noise_ratio(fan_in: int, vectors: int) -> float:
    """Return the 95th over the 5th percentile of the vectors' angles in one step if only white noise rotates them.

        angle ∝ χ_{C-1},  χ²_p ≈ n·(1 - 2/(9n) + z_p·sqrt(2/(9n)))³ with n = C-1     (Wilson and Hilferty)

    Ours. A step's length is that of a Gaussian vector of C - 1 free entries. Percentiles of `vectors` values are
    Blom's.

    >>> f"{noise_ratio(64, 1000):.2f}"
    '1.34'
    """
    # One of the C directions of a step is radial and does not rotate the vector.
    n = max(fan_in - 1, 1)
    # Blom: the expected i-th of N ordered normal numbers is the quantile of (i - 3/8)/(N + 1/4).
    place = 1 + limit.OUTER_SHARE * (vectors - 1)
    z = -NormalDist().inv_cdf((place - 0.375) / (vectors + 0.25))
    # The cube root of χ² is nearly normal. Angles are the square root of χ², hence the power 3/2.
    centre = 1 - 2 / (9 * n)
    spread = z * (2 / (9 * n)) ** 0.5
    return float(((centre + spread) / max(centre - spread, 1e-3)) ** 1.5)


def radial_decay(layer: LayerHistory) -> tuple[float, float]:
    """Return λ_u of the median vector, and λ_e/λ. Both are NaN if λ_u may be 0."""
    # The median vector: a few rows with tiny norms would dominate a mean.
    values = layer.series("lambda_u", "q50")
    judged = values[layer.window & np.isfinite(values)]
    decay = layer.mean(layer.series("weight_decay"))
    if judged.size < limit.MIN_MEAN_SAMPLES or not decay > 0:
        return nan, nan
    mean = float(judged.mean())
    standard_error = float(judged.std(ddof=1)) / judged.size**0.5
    if not abs(mean) > limit.MIN_STANDARD_ERRORS * standard_error:
        return nan, nan
    return mean, float(sensitivity.decay_error(decay, mean))


def speeds_in_groups(layers: Sequence[LayerHistory]) -> dict[str, float]:
    """Return rotation over the median prediction of the layer's group. Differing predictions are imbalance too."""
    speeds = {}
    for group in {layer.layer.group for layer in layers}:
        members = [layer for layer in layers if layer.layer.group == group]
        predicted = np.stack([layer.predicted_angle for layer in members])
        known = np.isfinite(predicted).any(0)
        # The median over the group: one layer with an odd prediction does not move it.
        usual = np.full(predicted.shape[1], nan)
        usual[known] = np.nanmedian(predicted[:, known], axis=0)
        for layer in members:
            with np.errstate(divide="ignore", invalid="ignore"):
                speeds[layer.name] = layer.rms(np.where(usual > 0, layer.rms_angle / usual, nan))
    return speeds


def warmups_from_start(layers: Sequence[LayerHistory]) -> list[int]:
    """Return the warmups that the first layers need, searched as in a plan, from the first measurements.

    A layer for which no warmup is enough gets the longest that is tried.
    """
    steps = layers[0].step_count
    starts: dict[UpdateRule, list[InitialLayer]] = {}
    for layer in layers[: limit.MAX_WARMUP_SEARCHES]:
        initial = initial_layer(layer)
        if layer.rule is not None and initial is not None and not initial.missing(layer.rule):
            starts.setdefault(layer.rule, []).append(initial)
    longest = tried_warmups(steps)[-1]
    needed = [warmup for rule, group in starts.items() for warmup in needed_warmups(rule, steps, group)]
    return [longest if warmup is None else warmup for warmup in needed] or [longest]


def initial_layer(layer: LayerHistory) -> InitialLayer | None:
    """Return the layer in the form of a plan, from the first measurement. None if it never had a norm."""
    norms = layer.series("norm", "rms")
    grads = layer.series("unit_grad_norm", "rms")
    norms = norms[norms > 0]
    grads = grads[grads > 0]
    if not norms.size:
        return None
    # A mean over the first samples, because one batch is too noisy and later ones belong to other weights.
    grad = float(np.sqrt(np.mean(grads[: limit.MIN_SAMPLES] ** 2))) if grads.size else None
    weights = Weights(float(layer.layer.fan_in), grad, tuple(layer.layer.shape))
    # A record may have the norms of neurons, but Muon treats a whole matrix as one vector.
    whole = layer.rule is not None and layer.rule.whole_matrix
    return InitialLayer(layer.name, weights, float(norms[0]) * (weights.norm_of_matrix if whole else 1.0))
