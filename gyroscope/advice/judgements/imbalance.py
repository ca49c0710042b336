"""Layers, and neurons of a layer, that rotate at different speeds."""

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite

import numpy as np

from gyroscope._types import Array
from gyroscope.advice import remedies
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import NOTHING, Finding, make_finding
from gyroscope.advice.judged_layers import Layers, View
from gyroscope.advice.layer_view import LayerView
from gyroscope.advice.phrases import RECURSION, format_number
from gyroscope.advice.plan_view import PlanView
from gyroscope.theory import Forecast
from gyroscope.theory.law import safe_divide


def layer_imbalance(layers: Layers[View], speeds: Iterable[tuple[View, float]]) -> Iterator[Finding]:
    """Judge measured layers by their speeds, each relative to the speed that its settings imply."""
    known = [(view, speed) for view, speed in speeds if isfinite(speed) and speed > 0]
    if len(known) < 2:
        return
    fastest, most = max(known, key=lambda pair: pair[1])
    slowest, least = min(known, key=lambda pair: pair[1])
    ratio = most / least
    if ratio <= limit.MAX_LAYER_RATIO:
        return
    remedy = remedies.balance_layers(fastest)
    yield make_finding(
        "layer_imbalance",
        remedies.severity(remedy),
        f"{_rotates_faster(layers, fastest, slowest, ratio)}: {format_number(most, 2)} and {format_number(least, 2)} "
        "times what their settings predict.",
        (fastest, slowest),
        remedy,
        evidence={"ratio": ratio, "fastest": most, "slowest": least},
    )


def planned_imbalance(layers: Layers[PlanView]) -> Iterator[Finding]:
    """Judge the middle of a plan. The start depends on the initial norms, and the end on the schedule."""
    if len(layers) < 2:
        return
    ratio = imbalance([view.forecast for view in layers])
    first, middle, last = (float(ratio[step]) for step in (0, len(ratio) // 2, -1))
    # A layer that does not rotate is infinitely slow, and has a separate finding.
    if not isfinite(first + middle + last):
        return
    if max(first, middle, last) < limit.MAX_ALIKE_RATIO:
        sentence = f"All layers rotate alike, within {limit.MAX_ALIKE_RATIO - 1:.0%}."
        yield make_finding("layer_imbalance", "note", sentence, layers, formula=RECURSION)
        return
    fastest = max(layers, key=lambda view: view.rotation)
    slowest = min(layers, key=lambda view: view.rotation)
    remedy = remedies.balance_layers(fastest) if _same_settings(layers) and middle > limit.MAX_LAYER_RATIO else NOTHING
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


def _rotates_faster(layers: Layers[View], fastest: LayerView, slowest: LayerView, ratio: float) -> str:
    return f"{layers.label(fastest)} rotates {format_number(ratio, 2)} times as fast as {layers.label(slowest)}"


def _same_settings(layers: Layers[PlanView]) -> bool:
    """Return whether all layers have one rule and schedule. Groups may be meant to rotate at different speeds."""
    first = layers[0]
    same_schedule = all(view.prediction.schedule is first.prediction.schedule for view in layers)
    return same_schedule and all(view.rule == first.rule for view in layers)


def neuron_imbalance(layers: Layers[View]) -> Iterator[Finding]:
    """Judge layers with enough vectors for percentiles."""
    spreads = {view: view.neuron_spread for view in layers if view.vectors >= limit.MIN_VECTORS}
    unequal = {view: spread for view, spread in spreads.items() if spread is not None and spread.excess > spread.most}
    if not unequal:
        return
    worst, spread = max(unequal.items(), key=lambda pair: pair[1].excess)
    remedy = remedies.own_imbalance(worst)
    beginning = (
        f"Neurons of {layers.where(unequal.__contains__).describe()} rotate at different speeds: in"
        if len(unequal) > 1
        else "In"
    )
    yield make_finding(
        "neuron_imbalance",
        remedies.severity(remedy),
        f"{beginning} {layers.label(worst)} the 95th percentile of the neurons' rotation is "
        f"{format_number(spread.ratio, 2)} times the 5th. Noise alone gives {format_number(spread.noise, 2)}.",
        unequal,
        remedy,
        evidence={"ratio": spread.ratio, "noise_ratio": spread.noise},
    )
