"""Layers that had settled and whose norm is then too large for the learning rate: every decay to zero does it."""

from collections.abc import Iterator, Sequence

from gyroscope.advice import phrases
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.layer_view import LayerView
from gyroscope.advice.norm_state import final_rate
from gyroscope.advice.plan_view import PlanView
from gyroscope.advice.run_view import RunView

DEPARTURE = (
    "norm above 1.3 × equilibrium (SGD 1.2); before the end about sqrt(2x²T/a0) for linear, "
    "(16x²T²/(π²a0))^(1/3) for cosine decay, norm ∝ lr^x"
)


def fell_out(views: Sequence[RunView]) -> Iterator[Finding]:
    """Judge a run."""
    rates = [final_rate(view.history) for view in views if view.departure is not None]
    cause = "the norm could not follow the learning rate and is now"
    # At a rate that has not fallen, the schedule cannot be the cause.
    if max(rates, default=0.0) >= limit.MAX_FALLEN_RATE:
        cause = "updates or gradients shrank, and the norm is still that of before,"
    yield from _departed(views, cause, ("fell", "fell"))


def falls_out(views: Sequence[PlanView]) -> Iterator[Finding]:
    """Judge a plan."""
    cause = "the norm cannot follow the learning rate and becomes"
    yield from _departed(views, cause, ("falls", "fall"), DEPARTURE)


def _departed(views: Sequence[LayerView], cause: str, verbs: tuple[str, str], formula: str = "") -> Iterator[Finding]:
    departures = {view.name: departure for view in views if (departure := view.departure) is not None}
    if departures:
        names = list(departures)
        steps = [departure.step for departure in departures.values()]
        ratios = [departure.norm_ratio for departure in departures.values()]
        sentence = phrases.falls_out(names, steps, cause, ratios, verbs[len(names) > 1])
        evidence = {"step": float(min(steps)), "ratio": max(ratios)}
        yield make_finding("fell_out", "note", sentence, names, formula=formula, evidence=evidence)
