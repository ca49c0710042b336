"""All verdicts on a run."""

from collections.abc import Iterator, Sequence
from math import isfinite

import numpy as np

from gyroscope.advice import thresholds as limit
from gyroscope.advice.balance import layer_imbalance, neuron_imbalance
from gyroscope.advice.course import Course, fell_out, transient, weak_decay
from gyroscope.advice.findings import Diagnosis, Verdict
from gyroscope.advice.health import dead_vectors, frozen_entries, not_measured, scale_sensitive, unstable_betas
from gyroscope.advice.record import Reading, Record, readings
from gyroscope.advice.start import over_rotation
from gyroscope.advice.words import sig, span, who


def diagnose(record: Record) -> Diagnosis:
    """What a run's measurements mean: sentences with numbers and a remedy, worst first.

    Only what the record holds the numbers for is judged. A run too short to judge says so, and nothing else.
    """
    layers = readings(record)
    measured = [reading for reading in layers if np.isfinite(reading.angle).any()]
    short = list(_too_short(record, measured))
    if short:
        return Diagnosis(short)
    courses = [Course.of(reading) for reading in measured]
    explained = [*scale_sensitive(measured), *frozen_entries(measured)]
    usual = [course for course in courses if not any(course.name in verdict.layers for verdict in explained)]
    found = [
        *explained,
        *transient(usual),
        *weak_decay(courses, getattr(record, "status", "finished") == "running"),
        *fell_out(usual),
        *over_rotation(courses),
        *layer_imbalance([course.reading for course in usual if course.state not in ("transient", "weak")]),
        *neuron_imbalance([course.reading for course in usual]),
        *dead_vectors(measured),
        *unstable_betas(measured),
        *not_measured(layers),
    ]
    if not any(verdict.severity in ("bad", "warn") for verdict in found):
        found += _well(courses)
    return Diagnosis(found or _undecided(courses))


def _too_short(record: Record, measured: Sequence[Reading]) -> Iterator[Verdict]:
    samples = max((int(np.isfinite(reading.angle).sum()) for reading in measured), default=0)
    steps = int(np.max(record.steps)) + 1 if len(record.steps) else 0
    memories = [reading.rule.momentum_memory for reading in measured if reading.rule is not None]
    needed = round(limit.MEMORIES * max(memories, default=10.0))
    if samples < limit.SAMPLES or steps < needed:
        yield Verdict(
            "too_short",
            "note",
            f"Too short to judge: {samples:,} samples in {steps:,} steps; it takes {limit.SAMPLES} samples and "
            f"{needed:,} steps, {limit.MEMORIES} memories of the momentum.",
            "Train on, or measure more often (a smaller every=).",
            (),
            {"samples": float(samples), "steps": float(steps)},
        )


def _undecided(courses: Sequence[Course]) -> Iterator[Verdict]:
    """Nothing is wrong, and yet no layer turns as predicted."""
    names = [course.name for course in courses]
    yield Verdict(
        "not_measured",
        "note",
        f"Nothing stands out, but {who(names, 'cannot', 'cannot')} be confirmed either: the norm stays off its "
        "equilibrium, or there is none to compare with.",
        "Compare angular_update with predicted_angular_update; a persistent gradient holds a norm off its prediction.",
        tuple(names),
    )


def _well(courses: Sequence[Course]) -> Iterator[Verdict]:
    """The evidence that all is as it should be."""
    known = [c.reading for c in courses if c.state in ("settled", "fell out") and c.reading.speed > 0]
    if not known:
        return
    angles, speeds = [reading.mean(reading.angle) for reading in known], [reading.speed for reading in known]
    off = max(max(speed, 1 / speed) - 1 for speed in speeds)
    since = [reading.settled_at for reading in known if isfinite(reading.settled_at)]
    settled = f", settled since step {sig(max(since))}" if len(since) == len(known) else ""
    count = f"All {len(known)}" if len(known) == len(courses) else f"{len(known)} of {len(courses)}"
    fell = any(c.state == "fell out" for c in courses)
    turn = "turn as predicted, or did before they fell out" if fell else "turn as predicted"
    size = f"{span(angles, 2)} rad per step, within {sig(100 * off, 2)} % of theory"
    yield Verdict(
        "well",
        "good",
        f"{count} layers {turn}: {size}{settled}.",
        "",
        tuple(reading.name for reading in known),
        {"largest_error": off, "slowest": min(speeds), "fastest": max(speeds)},
    )
