"""Layers that turn at different speeds."""

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite

import numpy as np

from gyroscope._types import Array
from gyroscope.advice import phrases, remedies
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import NOTHING, Finding, make_finding
from gyroscope.advice.layer_view import LayerView
from gyroscope.advice.phrases import RECURSION, sig
from gyroscope.advice.plan_view import PlanView
from gyroscope.theory import Forecast
from gyroscope.theory.law import over


def layer_imbalance(speeds: Iterable[tuple[LayerView, float]]) -> Iterator[Finding]:
    """Judge measured layers by their speeds, each relative to what its settings ask for."""
    known = [(view, speed) for view, speed in speeds if isfinite(speed) and speed > 0]
    if len(known) < 2:
        return
    fastest, most = max(known, key=lambda pair: pair[1])
    slowest, least = min(known, key=lambda pair: pair[1])
    ratio = most / least
    if ratio <= limit.MAX_LAYER_RATIO:
        return
    remedy = remedies.balance(fastest.rule, fastest.keeps_norm)
    yield make_finding(
        "layer_imbalance",
        remedies.severity(remedy),
        f"{phrases.turns_faster(fastest.name, slowest.name, ratio)}: {sig(most, 2)} and {sig(least, 2)} times what "
        "their settings predict.",
        (fastest.name, slowest.name),
        remedy,
        evidence={"ratio": ratio, "fastest": most, "slowest": least},
    )


def planned_imbalance(views: Sequence[PlanView]) -> Iterator[Finding]:
    """Judge the middle of a plan: the start depends on the initial norms, the end on the schedule."""
    if len(views) < 2:
        return
    ratio = imbalance([view.forecast for view in views])
    middle = len(ratio) // 2
    moments = [float(ratio[step]) for step in (0, middle, -1)]
    # A layer that stands still is infinitely slow; its own finding says why.
    if not all(map(isfinite, moments)):
        return
    if max(moments) < limit.MAX_ALIKE_RATIO:
        sentence = f"All layers turn alike, within {limit.MAX_ALIKE_RATIO - 1:.0%}."
        yield make_finding("layer_imbalance", "note", sentence, [view.name for view in views], formula=RECURSION)
        return
    angles = [float(view.forecast.angular_update[middle]) for view in views]
    fastest = views[int(np.argmax(angles))]
    slowest = views[int(np.argmin(angles))]
    first = views[0]
    same_schedule = all(view.prediction.schedule is first.prediction.schedule for view in views)
    same_settings = same_schedule and all(view.rule == first.rule for view in views)
    # Groups with settings of their own may be meant to turn at different speeds.
    is_unbalanced = same_settings and moments[1] > limit.MAX_LAYER_RATIO
    remedy = remedies.balance(fastest.rule, fastest.keeps_norm) if is_unbalanced else NOTHING
    in_the_middle = phrases.turns_faster(fastest.name, slowest.name, moments[1])
    if moments[1] < limit.MAX_ALIKE_RATIO:
        in_the_middle = "All layers turn alike"
    yield make_finding(
        "layer_imbalance",
        remedies.severity(remedy),
        f"{in_the_middle} in the middle of the run; rotation of the fastest layer over that of the slowest is "
        f"{sig(moments[0])} at the first step and {sig(moments[2])} at the last.",
        (fastest.name, slowest.name),
        remedy,
        formula=RECURSION,
        evidence={"ratio": moments[1], "first": moments[0], "last": moments[2]},
    )


def imbalance(forecasts: Sequence[Forecast]) -> Array:
    """Return the rotation of the fastest layer over that of the slowest, step by step; 1 if no layer turns."""
    angles = np.stack([forecast.angular_update for forecast in forecasts])
    return np.asarray(np.nan_to_num(over(angles.max(0), angles.min(0)), nan=1.0))
