"""Norms in a run: on the way into equilibrium, out of it again, or never there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite, log
from typing import Literal, final

import numpy as np

from gyroscope.advice import phrases
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding
from gyroscope.advice.history import LayerHistory
from gyroscope.advice.phrases import clause, span
from gyroscope.theory import Forecast, forecast
from gyroscope.theory.forecast import SETTLED
from gyroscope.theory.law import Weights
from gyroscope.theory.layer_prediction import InitialLayer

# Steps that a forecast of the rest of a transient takes at most: a page is not to wait for it.
LONGEST = 50_000
# `UpdateRule.falls_out_ratio` where the rule is unknown: that of most rules.
FALLS_OUT = 1.3

State = Literal["unknown", "settled", "transient", "short", "steady", "fell out"]


@final
@dataclass(frozen=True)
class NormState:
    """Where a layer's norm stands.

    settled    within 10 % of equilibrium
    transient  on the way there, about as fast as theory has it
    short      in a run shorter than its memory: mostly where it started
    steady     far from it and still, by a force that theory does not know
    fell out   was settled, and is now too large for its learning rate
    unknown    without a prediction to compare with
    """

    history: LayerHistory
    state: State

    @classmethod
    def of(cls, history: LayerHistory) -> "NormState":
        """Judge a layer by its norm over the equilibrium's, and by how fast that changes."""
        return cls(history, _state(history))

    @property
    def name(self) -> str:
        """The layer's name."""
        return self.history.name

    @property
    def settles_at(self) -> float:
        """Step at which the norm will be within 10 % if rates stay: by the forecast of the whole run, from its start.

        Adam's v remembers for long. Where the forecast lacks an input, is too long, or would have settled already, by
        the approach to leading order (ours, docs/theory.md); inf without decay.
            q - 1 with q = (‖w‖/‖ω̂‖)^(1/x) shrinks by e^(-a/x) per step, x = 1/2 for AdamW, 1/4 for SGD
        """
        history = self.history
        known = np.flatnonzero(np.isfinite(history.distance) & (history.decay > 0))
        if not known.size:
            return inf
        last = int(known[-1])
        ratio = float(history.distance[last])
        power = _power(history)
        # In q the approach is exponential, so that the steps left are a logarithm.
        target = (1 + SETTLED if ratio > 1 else 1 - SETTLED) ** power - 1
        now = float(history.steps[last])
        timescale = 1 / float(history.decay[last])
        left = log(max((ratio**power - 1) / target, 1.0)) * timescale / power
        # Five timescales more: Adam's v delays the approach, and a forecast past its end would find nothing.
        return _forecast_settling(history, now, left + 5 * timescale) or now + left


def _forecast_settling(history: LayerHistory, now: float, left: float) -> float | None:
    """Step at which a forecast from the first sample settles, if that is after `now` and at most `left` steps later."""
    first = float(history.steps[0])
    course = course_from_start(history, first, now + left)
    if course is None:
        return None
    start = int(now - first)
    # Settled at `start` itself would contradict the measurement: the forecast is of no use then.
    settled_at = course.settled_after(start)[0]
    return None if settled_at is None or settled_at == start else first + settled_at


def course_from_start(history: LayerHistory, first: float, until: float) -> Forecast | None:
    """The forecast of a layer from its first sample, at the rates that were measured; None where it lacks an input."""
    layer = initial_layer(history)
    rule = history.rule
    known = np.isfinite(history.lr)
    if rule is None or layer is None or layer.missing(rule) or not (rule.lr > 0 and known.any()):
        return None
    if not 1 <= until - first <= LONGEST:
        return None
    # Beyond the last sample np.interp repeats its value: the learning rate is taken to stay.
    rates = np.interp(np.arange(first, until), history.steps[known], history.lr[known])
    try:
        return forecast(rule, (rates / rule.lr).tolist(), norm=layer.norm, **layer.known)
    except ValueError:  # numbers out of all proportion
        return None


def initial_layer(history: LayerHistory) -> InitialLayer | None:
    """The layer as a plan has it, from what was measured first; None if it never had a norm."""
    norms = history.series("norm", "rms")
    grads = history.series("unit_grad_norm", "rms")
    norms = norms[norms > 0]
    grads = grads[grads > 0]
    if not norms.size:
        return None
    # A mean over the first samples: one batch alone is too noisy, and later ones belong to other weights.
    grad = float(np.sqrt(np.mean(grads[: limit.SAMPLES] ** 2))) if grads.size else None
    weights = Weights(float(history.layer.fan_in), grad, tuple(history.layer.shape))
    # A record may hold norms neuron by neuron, of which Muon takes a whole matrix for one vector.
    whole = history.rule is not None and history.rule.whole_matrix
    return InitialLayer(history.name, weights, float(norms[0]) * (weights.norm_of_matrix if whole else 1.0))


def _power(history: LayerHistory) -> float:
    """1/x where the equilibrium norm follows lr^x; 2 where the rule is unknown."""
    exponent = history.rule.norm_power if history.rule is not None else 0.5
    return 1 / exponent if exponent > 0 else 2.0


def _falls_out_ratio(history: LayerHistory) -> float:
    return history.rule.falls_out_ratio if history.rule is not None else FALLS_OUT


def _state(history: LayerHistory) -> State:
    # Before anything else: what has not forgotten its start has neither settled nor fallen out.
    if _no_decay(history) or (history.total_decay > 0 and not history.is_longer_than_memory):
        return "short"
    known = history.distance[np.isfinite(history.distance)]
    if not known.size:
        return "unknown"
    if isfinite(history.settled_at):
        # A norm above its equilibrium counts only if it slows the layer: else the prediction is off.
        last_speeds = history.speeds[np.isfinite(history.speeds)][-3:]
        slow = not last_speeds.size or float(np.median(last_speeds)) < limit.SLOW
        return "fell out" if known[-1] > _falls_out_ratio(history) and slow else "settled"
    ratio = history.mean(history.distance)
    if not isfinite(ratio):
        return "unknown"
    if abs(ratio - 1) <= SETTLED:
        return "settled"
    return "transient" if _approaches(history, ratio) else "steady"


def _no_decay(history: LayerHistory) -> bool:
    """Whether nothing settles because nothing decays, by a rule that could."""
    decays = history.rule is not None and history.rule.has_weight_decay
    return decays and history.weight_decay == 0 and not history.keeps_norm


def _approaches(history: LayerHistory, ratio: float) -> bool:
    """Whether the norm moves towards its prediction about as fast as theory has it: d ln‖w‖/dt = a·(1/q - 1)."""
    norm = history.series("norm", "rms")
    used = history.window & np.isfinite(norm) & (norm > 0)
    if used.sum() < 3:
        return False
    # Slope of ln‖w‖ over the judged part of the run.
    measured = float(np.polyfit(history.steps[used], np.log(norm[used]), 1)[0])
    expected = history.mean(history.decay) * (ratio ** -_power(history) - 1)
    return bool(measured / expected > limit.FOLLOWS) if isfinite(expected) and expected else False


def transient(states: Sequence[NormState]) -> Iterator[Finding]:
    """Layers on their way, and when they will have settled: a fact, for training goes on all the while."""
    members = [state for state in states if state.state == "transient"]
    if not members:
        return
    names = tuple(member.name for member in members)
    now = members[0].history.steps[-1]
    steps = [member.settles_at for member in members]
    distances = [member.history.distance for member in members]
    ratios = [float(distance[np.isfinite(distance)][-1]) for distance in distances]
    in_reach = max(steps) <= limit.IN_REACH * (now + 1)
    when = (
        f"settled at about step {span(steps, 2)}" if in_reach else f"not within {limit.IN_REACH:g} times as many steps"
    )
    yield Finding(
        "transient",
        "note",
        f"{clause(names, 'is', 'are')} on the way to equilibrium after {now + 1:,.0f} steps, at {span(ratios, 2)} "
        f"times its norm; at this rate {when}.",
        layers=names,
        evidence={"settles_at": max(steps), "smallest_ratio": min(ratios), "largest_ratio": max(ratios)},
    )


def shorter_than_memory(states: Sequence[NormState], running: bool) -> Iterator[Finding]:
    """Layers that have not forgotten where they started: a fact; they are compared with their forecast."""
    short = [state.history for state in states if state.state == "short"]
    without = [history for history in short if _no_decay(history)]
    if without:
        yield _short_memory(phrases.no_decay([history.name for history in without]), without, total_decay=0.0)
    decaying = [history for history in short if not _no_decay(history)]
    if decaying:
        names = [history.name for history in decaying]
        totals = [history.total_decay for history in decaying]
        sentence = phrases.shorter_than_memory(names, totals, decaying[0].steps[-1] + 1, so_far=running)
        yield _short_memory(sentence, decaying, total_decay=min(totals))


def _short_memory(sentence: str, members: Sequence[LayerHistory], total_decay: float) -> Finding:
    evidence = {"total_decay": total_decay}
    speeds = [history.speed for history in members if isfinite(history.speed)]
    if speeds:
        evidence |= {"slowest": min(speeds), "fastest": max(speeds)}
    return Finding("short_memory", "note", sentence, layers=tuple(h.name for h in members), evidence=evidence)


def fell_out(states: Sequence[NormState]) -> Iterator[Finding]:
    """Layers that had settled and whose norm is now too large for the learning rate."""
    members = [state for state in states if state.state == "fell out"]
    if not members:
        return
    names = tuple(member.name for member in members)
    since = [_left_at(member.history) for member in members]
    ratios = [_end_ratio(member.history) for member in members]
    # At a rate that has not fallen, the schedule cannot be the cause.
    scheduled = max(_final_rate(member.history) for member in members) < limit.FALLEN_RATE
    cause = "the norm could not follow the learning rate and is now"
    if not scheduled:
        cause = "updates or gradients shrank, and the norm is still that of before,"
    yield Finding(
        "fell_out",
        "note",
        phrases.falls_out(names, since, cause, ratios, "fell"),
        layers=names,
        evidence={"step": min(since), "ratio": max(ratios)},
    )


def _end_ratio(history: LayerHistory) -> float:
    """Norm over its equilibrium at the end; where the schedule goes to zero, before the rate is next to nothing."""
    known = np.isfinite(history.distance)
    counts = known & (history.lr >= limit.NEXT_TO_NOTHING * history.lr[history.peak])
    return float(history.distance[counts if counts.any() else known][-1])


def _left_at(history: LayerHistory) -> float:
    """Step after which the norm stayed too large."""
    inside = np.flatnonzero(np.isfinite(history.distance) & (history.distance <= _falls_out_ratio(history)))
    return float(history.steps[min(inside[-1] + 1, len(history.steps) - 1)])


def _final_rate(history: LayerHistory) -> float:
    known = history.lr[np.isfinite(history.lr)]
    return float(known[-1] / known.max()) if known.size and known.max() > 0 else 1.0
