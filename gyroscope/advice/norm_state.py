"""The norm of a layer in a run: on the way into equilibrium, out of it again, or never there."""

from math import inf, isfinite, log

import numpy as np

from gyroscope.advice import thresholds as limit
from gyroscope.advice.history import LayerHistory
from gyroscope.advice.layer_view import Departure, NormState
from gyroscope.theory import Forecast, forecast
from gyroscope.theory.forecast import SETTLED
from gyroscope.theory.law import Weights
from gyroscope.theory.layer_prediction import InitialLayer


def norm_state(history: LayerHistory) -> NormState:
    """Judge a layer by its norm over the equilibrium's, and by how fast that changes."""
    if history.keeps_norm:
        return "follows base" if history.follows_base else "keeps norm"
    # This comes first, because a layer that has not forgotten its start has neither settled nor fallen out.
    if _no_decay(history):
        return "no decay"
    if history.run_length > 0 and not history.is_longer_than_memory:
        return "short"
    known = history.distance[np.isfinite(history.distance)]
    if not known.size:
        return "unknown"
    if isfinite(history.settled_at):
        # A norm above its equilibrium counts only if it slows the layer. Otherwise the prediction is off.
        last_speeds = history.speeds[np.isfinite(history.speeds)][-limit.MIN_MEAN_SAMPLES :]
        slow = not last_speeds.size or float(np.median(last_speeds)) < limit.MAX_SLOWED_ROTATION
        return "fell out" if known[-1] > _falls_out_ratio(history) and slow else "settled"
    ratio = history.mean(history.distance)
    if not isfinite(ratio):
        return "unknown"
    if abs(ratio - 1) <= SETTLED:
        return "settled"
    return "transient" if _approaches(history, ratio) else "steady"


def _no_decay(history: LayerHistory) -> bool:
    """Return whether nothing settles because weight decay is 0, under a rule that has weight decay."""
    decays = history.rule is not None and history.rule.has_weight_decay
    return decays and history.weight_decay == 0 and not history.keeps_norm


def _approaches(history: LayerHistory, ratio: float) -> bool:
    """Return whether the norm approaches its prediction about as fast as in theory: d ln‖w‖/dt = a·(1/q - 1)."""
    norm = history.series("norm", "rms")
    used = history.window & np.isfinite(norm) & (norm > 0)
    if used.sum() < limit.MIN_MEAN_SAMPLES:
        return False
    # Slope of ln‖w‖ over the judged part of the run.
    measured = float(np.polyfit(history.steps[used], np.log(norm[used]), 1)[0])
    expected = history.mean(history.decay) * (ratio ** -_power(history) - 1)
    return bool(measured / expected > limit.MIN_APPROACH_SPEED) if isfinite(expected) and expected else False


def settles_at(history: LayerHistory) -> float:
    """Return the step at which the norm will be within 10 % if rates stay, by the forecast of the whole run.

    If the forecast lacks an input, is too long, or would have settled already, the approach to leading order gives it
    (ours, docs/theory.md). It is inf without decay.
        q - 1 with q = (‖w‖/‖ω̂‖)^(1/x) shrinks by e^(-a/x) per step, x = 1/2 for AdamW, 1/4 for SGD
    """
    known = np.flatnonzero(np.isfinite(history.distance) & (history.decay > 0))
    if not known.size:
        return inf
    last = int(known[-1])
    ratio = float(history.distance[last])
    power = _power(history)
    # The approach is exponential in q, so the number of steps left is a logarithm.
    target = (1 + SETTLED if ratio > 1 else 1 - SETTLED) ** power - 1
    now = float(history.steps[last])
    timescale = 1 / float(history.decay[last])
    left = log(max((ratio**power - 1) / target, 1.0)) * timescale / power
    return _forecast_settling(history, now, left + limit.SETTLING_TIMESCALES * timescale) or now + left


def _forecast_settling(history: LayerHistory, now: float, left: float) -> float | None:
    """Step at which a forecast from the first sample settles, if that is after `now` and at most `left` steps later."""
    first = float(history.steps[0])
    course = course_from_start(history, first, now + left)
    if course is None:
        return None
    start = int(now - first)
    # A forecast that settles at `start` itself contradicts the measurement and is not used.
    settled_at = course.settled_after(start)[0]
    return None if settled_at is None or settled_at == start else first + settled_at


def course_from_start(history: LayerHistory, first: float, until: float) -> Forecast | None:
    """Return the forecast of a layer from its first sample, at the measured rates. None if it lacks an input."""
    layer = initial_layer(history)
    rule = history.rule
    known = np.isfinite(history.lr)
    if rule is None or layer is None or layer.missing(rule) or not (rule.lr > 0 and known.any()):
        return None
    if not 1 <= until - first <= limit.MAX_FORECAST_STEPS:
        return None
    # Beyond the last sample np.interp repeats its value, so the learning rate is assumed to stay.
    rates = np.interp(np.arange(first, until), history.steps[known], history.lr[known])
    try:
        return forecast(rule, (rates / rule.lr).tolist(), norm=layer.norm, **layer.known)
    except ValueError:  # extreme numbers overflow
        return None


def initial_layer(history: LayerHistory) -> InitialLayer | None:
    """Return the layer in the form of a plan, from the first measurement. None if it never had a norm."""
    norms = history.series("norm", "rms")
    grads = history.series("unit_grad_norm", "rms")
    norms = norms[norms > 0]
    grads = grads[grads > 0]
    if not norms.size:
        return None
    # A mean over the first samples, because one batch is too noisy and later ones belong to other weights.
    grad = float(np.sqrt(np.mean(grads[: limit.MIN_SAMPLES] ** 2))) if grads.size else None
    weights = Weights(float(history.layer.fan_in), grad, tuple(history.layer.shape))
    # A record may have the norms of neurons, but Muon treats a whole matrix as one vector.
    whole = history.rule is not None and history.rule.whole_matrix
    return InitialLayer(history.name, weights, float(norms[0]) * (weights.norm_of_matrix if whole else 1.0))


def _power(history: LayerHistory) -> float:
    """Return 1/x of an equilibrium norm that follows lr^x."""
    exponent = history.rule.norm_power if history.rule is not None else 0.0
    return 1 / exponent if exponent > 0 else limit.UNKNOWN_NORM_POWER


def _falls_out_ratio(history: LayerHistory) -> float:
    return history.rule.falls_out_ratio if history.rule is not None else limit.UNKNOWN_FALLS_OUT_RATIO


def departure(history: LayerHistory) -> Departure:
    """Return the step after which the norm stayed too large, and its ratio to equilibrium at the end.

    If the schedule goes to zero, the end is before the rate is almost zero.
    """
    known = np.isfinite(history.distance)
    inside = np.flatnonzero(known & (history.distance <= _falls_out_ratio(history)))
    step = float(history.steps[min(inside[-1] + 1, len(history.steps) - 1)])
    counts = known & (history.lr >= limit.MIN_RATE_SHARE * history.lr[history.peak])
    return Departure(step, float(history.distance[counts if counts.any() else known][-1]))


def final_rate(history: LayerHistory) -> float:
    """Return the last learning rate over the highest, or 1 if rates are unknown."""
    known = history.lr[np.isfinite(history.lr)]
    return float(known[-1] / known.max()) if known.size and known.max() > 0 else 1.0
