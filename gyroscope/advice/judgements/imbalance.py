"""Layers, and neurons of a layer, that rotate at different speeds."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite, nan
from statistics import median

import numpy as np

from gyroscope._types import Array
from gyroscope.advice import remedies
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import NOTHING, Finding, make_finding
from gyroscope.advice.layer_facts import LayerFacts, Layers
from gyroscope.advice.phrases import RECURSION, format_number
from gyroscope.theory import Forecast
from gyroscope.theory.law import safe_divide
from gyroscope.theory.layer_prediction import LayerPrediction


def layer_imbalance(layers: Layers, speeds: Mapping[str, float]) -> Iterator[Finding]:
    """Judge measured layers by their speeds, each relative to the speed that its settings imply."""
    known = [(layer, speeds[layer.name]) for layer in layers if 0 < speeds.get(layer.name, nan) < inf]
    if len(known) < 2:
        return
    fastest, most = max(known, key=lambda pair: pair[1])
    slowest, least = min(known, key=lambda pair: pair[1])
    ratio = most / least
    if ratio <= limit.MAX_LAYER_RATIO:
        return
    remedy = remedies.balance_layers(fastest, layers)
    yield make_finding(
        "layer_imbalance",
        remedies.severity(remedy),
        f"{_rotates_faster(layers, fastest, slowest, ratio)}: {format_number(most, 2)} and {format_number(least, 2)} "
        "times what their settings predict.",
        (fastest, slowest),
        remedy,
        evidence={"ratio": ratio, "fastest": most, "slowest": least},
    )


def last_speeds(layers: Layers) -> dict[str, float]:
    """Return the rotation of each layer in a last step over the median prediction of its group."""
    speeds = {}
    for group in {layer.group for layer in layers}:
        members = layers.where(lambda layer, group=group: layer.group == group)  # type: ignore[misc]
        predicted = [layer.predicted_rotation for layer in members if isfinite(layer.predicted_rotation)]
        usual = median(predicted) if predicted else nan
        for layer in members:
            speeds[layer.name] = float(safe_divide(layer.rotation_ratio * layer.predicted_rotation, usual))
    return speeds


def planned_imbalance(predictions: Sequence[LayerPrediction], layers: Layers) -> Iterator[Finding]:
    """Judge the middle of a plan. The start depends on the initial norms, and the end on the schedule.

    predictions  of the same layers, each with a forecast
    """
    if len(layers) < 2:
        return
    ratio = imbalance([prediction.forecast for prediction in predictions if prediction.forecast is not None])
    first, middle, last = (float(ratio[step]) for step in (0, len(ratio) // 2, -1))
    # A layer that does not rotate is infinitely slow, and has a separate finding.
    if not isfinite(first + middle + last):
        return
    if max(first, middle, last) < limit.MAX_ALIKE_RATIO:
        sentence = f"All layers rotate alike, within {limit.MAX_ALIKE_RATIO - 1:.0%}."
        yield make_finding("layer_imbalance", "note", sentence, layers, formula=RECURSION)
        return
    fastest = max(layers, key=lambda layer: layer.rotation)
    slowest = min(layers, key=lambda layer: layer.rotation)
    is_uneven = _same_settings(predictions) and middle > limit.MAX_LAYER_RATIO
    remedy = remedies.balance_layers(fastest, layers) if is_uneven else NOTHING
    in_the_middle = _rotates_faster(layers, fastest, slowest, middle)
    if middle < limit.MAX_ALIKE_RATIO:
        in_the_middle = "All layers rotate alike"
    yield make_finding(
        "layer_imbalance",
        remedies.severity(remedy),
        f"{in_the_middle} in the middle of the run. The fastest layer rotates {format_number(first)} times "
        f"as fast as the slowest at the first step and {format_number(last)} times at the last.",
        (fastest, slowest),
        remedy,
        formula=RECURSION,
        evidence={"ratio": middle, "first": first, "last": last},
    )


def imbalance(forecasts: Sequence[Forecast]) -> Array:
    """Return the rotation of the fastest layer over that of the slowest at each step, 1 if no layer rotates."""
    angles = np.stack([forecast.angular_update for forecast in forecasts])
    return np.asarray(np.nan_to_num(safe_divide(angles.max(0), angles.min(0)), nan=1.0))


def _rotates_faster(layers: Layers, fastest: LayerFacts, slowest: LayerFacts, ratio: float) -> str:
    return f"{layers.label(fastest)} rotates {format_number(ratio, 2)} times as fast as {layers.label(slowest)}"


def _same_settings(predictions: Sequence[LayerPrediction]) -> bool:
    """Return whether all layers have one rule and schedule. Groups may be meant to rotate at different speeds."""
    first = predictions[0]
    return all(each.schedule is first.schedule and each.rule == first.rule for each in predictions)


def neuron_imbalance(layers: Layers) -> Iterator[Finding]:
    """Judge layers with enough vectors for percentiles."""
    unequal = layers.where(lambda layer: layer.vectors >= limit.MIN_VECTORS and _excess(layer) > limit.MAX_NEURON_RATIO)
    if not unequal:
        return
    worst = max(unequal, key=_excess)
    remedy = remedies.own_imbalance(worst)
    beginning = f"Neurons of {unequal.describe()} rotate at different speeds: in" if len(unequal) > 1 else "In"
    yield make_finding(
        "neuron_imbalance",
        remedies.severity(remedy),
        f"{beginning} {layers.label(worst)} the 95th percentile of the neurons' rotation is "
        f"{format_number(worst.neuron_ratio, 2)} times the 5th. Noise alone gives "
        f"{format_number(worst.noise_ratio, 2)}.",
        unequal,
        remedy,
        evidence={"ratio": worst.neuron_ratio, "noise_ratio": worst.noise_ratio},
    )


def _excess(layer: LayerFacts) -> float:
    """Return the spread of the neurons' rotation over that of noise."""
    return layer.neuron_ratio / layer.noise_ratio
