"""Too fast a start, and what would have slowed it down."""

from collections.abc import Iterator, Sequence
from math import isfinite

import numpy as np

from gyroscope.advice import thresholds as limit
from gyroscope.advice.course import Course, planned
from gyroscope.advice.findings import Verdict
from gyroscope.advice.plan_summary import to_equilibrium
from gyroscope.advice.record import Reading
from gyroscope.advice.words import sig, span, who
from gyroscope.theory.layers import Layer, at_equilibrium, needed_warmups
from gyroscope.theory.rules.base import UpdateRule

MOST_WARMUPS = 12
"""Layers for which the needed warmup is worked out: those with the fastest start."""


def over_rotation(courses: Sequence[Course]) -> Iterator[Verdict]:
    """Layers that turned too fast at the start, and the warmup or initial norm that would have prevented it."""
    judged = [c.reading for c in courses if c.state not in ("weak", "unknown") and not c.reading.keeps_norm]
    found = [(reading, *_fastest(reading)) for reading in judged]
    found = sorted((one for one in found if one[1] > limit.OVER_ROTATION), key=lambda one: -one[1])
    if not found:
        return
    ratios, names = [ratio for _, ratio, _ in found], [reading.name for reading, _, _ in found]
    worst = found[0]
    yield Verdict(
        "over_rotation",
        "bad" if worst[1] > limit.OVER_ROTATION_BAD else "warn",
        f"{who(names, 'turned', 'turned')} too fast at the start, {span(ratios, 2)} times the rotation of equilibrium "
        f"(step {worst[2]:,.0f} in {worst[0].name}).",
        _slower_start([reading for reading, _, _ in found[:MOST_WARMUPS]]),
        tuple(names),
        {"ratio": worst[1], "step": worst[2]},
    )


def _fastest(reading: Reading) -> tuple[float, float]:
    """The largest angle before it settled over the equilibrium's at full rate, and its step."""
    high = np.isfinite(reading.predicted_angle) & (reading.lr >= 0.9 * reading.lr[reading.peak])
    if not high.any():
        return 0.0, 0.0
    usual = float(np.median(reading.predicted_angle[high]))
    until = reading.settled_at if isfinite(reading.settled_at) else reading.steps[0] + 0.2 * np.ptp(reading.steps)
    early = np.isfinite(reading.angle) & (reading.steps <= until)
    if not early.any() or not usual > 0:
        return 0.0, 0.0
    first = int(np.flatnonzero(early)[np.argmax(reading.angle[early])])
    return float(reading.angle[first] / usual), float(reading.steps[first])


def _slower_start(ones: Sequence[Reading]) -> str:
    """The planner's advice: a warmup if one helps, else an initial norm and the warmup that it leaves to do."""
    steps, has = int(ones[0].steps[-1]) + 1, int(ones[0].steps[ones[0].peak])
    alone: list[int | None] = []
    settled: list[int | None] = []
    for rule, layers in _starts(ones).items():
        alone += needed_warmups(rule, steps, layers)
        settled += needed_warmups(rule, steps, [at_equilibrium(rule, layer) for layer in layers])
    if alone and all(warmup is not None for warmup in alone):
        return f"Use a warmup of about {sig(max(warmup or 0 for warmup in alone), 2)} steps (now {has:,})."
    longest = max((warmup for warmup in settled if warmup is not None), default=0)
    brief = f", and warm up over about {sig(longest, 2)} steps (now {has:,})" if longest > has else ""
    return f"Start at the equilibrium norm, {to_equilibrium(ones[0].rule)}{brief}: norms begin too small."


def _starts(ones: Sequence[Reading]) -> dict[UpdateRule, list[Layer]]:
    """Layers as the planner knows them, by rule; only those of which it knows enough."""
    found: dict[UpdateRule, list[Layer]] = {}
    for reading in ones:
        start = planned(reading)
        if reading.rule is not None and start is not None and not start.missing(reading.rule):
            found.setdefault(reading.rule, []).append(start)
    return found
