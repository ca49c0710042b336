"""The judgement of a plan: which layers settle, which start too fast, fall out, or turn at another speed."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from math import exp, isfinite
from typing import NamedTuple, TypeVar

import numpy as np

from gyroscope._types import Array
from gyroscope.advice import phrases
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Diagnosis, Finding, Severity
from gyroscope.advice.phrases import clause, sig, span, step_span
from gyroscope.advice.plan_facts import RECURSION, TOTAL_DECAY
from gyroscope.theory import Forecast, stability
from gyroscope.theory.convergence import settling
from gyroscope.theory.law import over
from gyroscope.theory.layer_prediction import LayerPrediction, at_equilibrium, needed_warmups

START = "first step AdamW sqrt(τ)·‖ω̂‖/‖ω_0‖, Lion ‖ω̂‖/‖ω_0‖, SGDM sqrt(1-α²)·(‖ω̂‖/‖ω_0‖)², then the recursion"
# Layers for which the warmup after another start is worked out: those with the fastest start, or a remedy is slow.
MOST_WARMUPS = 12

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def plan_findings(
    predictions: Sequence[LayerPrediction], missing: Mapping[str, str], notes: Sequence[str] = ()
) -> Diagnosis:
    """What to think of a plan, worst first. The same rules judge a plan from settings and one from a model.

    predictions  of all layers; those without a forecast are judged by their equilibrium alone
    missing      layers without a forecast, and why
    notes        what the forecast leaves out
    """
    forecasts = [prediction for prediction in predictions if prediction.forecast is not None]
    return Diagnosis(
        [
            *_missing(missing),
            *_settling(forecasts),
            *_start(forecasts),
            *_fast_rotation(predictions),
            *_end(forecasts),
            *_imbalance(forecasts),
            *_betas(predictions),
            *(Finding("assumption", "note", f"{note}.") for note in notes),
        ]
    )


def _missing(missing: Mapping[str, str]) -> Iterator[Finding]:
    for reason, names in _grouped(missing, lambda name: missing[name]):
        yield Finding(
            "missing_input", "note", f"{clause(names, 'has', 'have')} no forecast: {reason}.", layers=tuple(names)
        )


class Settling(NamedTuple):
    """How a layer settles, and the weight decay that would change it; layers for which both agree share a finding."""

    case: str
    weight_decay: str = ""


def _settling(predictions: Sequence[LayerPrediction]) -> Iterator[Finding]:
    for settled, members in _grouped(predictions, _case):
        yield _settling_finding(settled, members)


def _case(prediction: LayerPrediction) -> Settling:
    forecast = _forecast(prediction)
    rule = prediction.rule
    if rule.keeps_norm:
        return Settling("keeps norm")
    weight_decay = phrases.set_weight_decay(phrases.decay_to_settle(rule, forecast.lr), rule.weight_decay)
    if forecast.total_decay == 0:
        return Settling("never", weight_decay or "give it a weight decay")
    extent = settling(forecast.total_decay)
    # A layer that starts in equilibrium and stays there has settled, however little the run decays.
    if prediction.settled_at is not None and (extent == "settles" or prediction.falls_out_at is None):
        late = prediction.settled_at + 1 > limit.LATE * prediction.schedule.steps
        return Settling("late" if late else "settles")
    if extent == "settles":
        return Settling("far")
    never = prediction.settled_at is None and extent == "never"
    return Settling("never" if never else "partly", weight_decay)


def _settling_finding(settled: Settling, members: Sequence[LayerPrediction]) -> Finding:
    names = tuple(member.name for member in members)
    totals = [_forecast(member).total_decay for member in members]
    steps = members[0].schedule.steps
    evidence = {"total_decay": min(totals)}
    remedy = phrases.to_settle(min(totals), settled.weight_decay)
    if settled.case == "keeps norm":
        sentence = f"{clause(names, 'keeps its norm', 'keep their norms')}: nothing has to settle."
        return Finding("well", "good", sentence, layers=names)
    if settled.case == "never":
        sentence = phrases.decays_too_little(names, totals, steps)
        return Finding("weak_decay", "warn", sentence, remedy, TOTAL_DECAY, names, evidence)
    if settled.case == "partly":
        left = span((100 * exp(-total) for total in totals), 2)
        verb = clause(names, "settles", "settle")
        sentence = f"{verb} only in part, X = {span(totals)}: {left} % of the start remains."
        return Finding("transient", "warn", sentence, remedy, TOTAL_DECAY, names, evidence)
    if settled.case == "far":
        verb = clause(names, "does", "do")
        sentence = f"{verb} not come within 10 % of equilibrium, though X = {span(totals)}: the start is too far off."
        remedy = phrases.slower_start(members[0].rule, 0, (), (), _initial_norm(members[0]))
        return Finding("transient", "warn", sentence, remedy, RECURSION, names, evidence)
    after = [(member.settled_at or 0) + 1 for member in members]
    share = span([100 * count / steps for count in after], 2)
    sentence = f"{clause(names, 'settles', 'settle')} after {step_span(after)} steps ({share} % of the run)"
    evidence = {"settled_at": max(after) - 1.0}
    if settled.case == "late":
        sentence += ", late: until then the initial norm sets the rotation."
        return Finding("transient", "warn", sentence, "", RECURSION, names, evidence)
    angle = span(float(_forecast(member).equilibrium_angular_update.max()) for member in members)
    sentence += f" and then {'turns' if len(names) == 1 else 'turn'} as predicted, {angle} rad per step."
    return Finding("well", "good", sentence, formula=RECURSION, layers=names, evidence=evidence)


def _start(predictions: Sequence[LayerPrediction]) -> Iterator[Finding]:
    """Layers that start too fast, and the warmup or the initial norm that slows them down."""
    # Without decay there is no equilibrium to be faster than.
    fast = [p for p in predictions if p.rule.weight_decay > 0 and p.fastest[0] > limit.OVER_ROTATION]
    if not fast:
        return
    fast.sort(key=lambda prediction: -prediction.fastest[0])
    names = tuple(prediction.name for prediction in fast)
    ratios = [prediction.fastest[0] for prediction in fast]
    step = fast[0].fastest[1]
    yield Finding(
        "over_rotation",
        over_rotation_severity(ratios[0]),
        phrases.starts_too_fast(names, ratios, names[0], step, happened=False),
        _slower_start(fast),
        START,
        names,
        {"ratio": ratios[0], "step": float(step)},
    )


def over_rotation_severity(ratio: float) -> Severity:
    """Of a start so many times as fast as equilibrium, planned or measured."""
    return "bad" if ratio > limit.OVER_ROTATION_BAD else "warn"


def imbalance_severity(ratio: float) -> Severity:
    """Of a fastest layer that turns so many times as fast as the slowest with the same settings."""
    return "bad" if ratio > limit.LAYER_IMBALANCE_BAD else "warn" if ratio > limit.LAYER_IMBALANCE else "note"


def _slower_start(members: Sequence[LayerPrediction]) -> str:
    needed = [member.warmup for member in members]
    at_equilibrium_norm: list[int | None] = []
    # AdamW's first step is sqrt(τ) times too long even at the equilibrium norm: some warmup may remain.
    if None in needed:
        for member in members[:MOST_WARMUPS]:
            layer = at_equilibrium(member.rule, member.layer)
            at_equilibrium_norm += needed_warmups(member.rule, member.schedule.steps, [layer])
    first = members[0]
    return phrases.slower_start(first.rule, first.schedule.warmup, needed, at_equilibrium_norm, _initial_norm(first))


def _initial_norm(prediction: LayerPrediction) -> str:
    """Where a layer starts and where it would settle, as a clause."""
    norm = prediction.equilibrium.norm or 0.0
    fan_in = prediction.layer.weights.fan_in
    whole = prediction.rule.whole_matrix
    entries = f" (entries of deviation {sig(norm / fan_in**0.5)})" if fan_in and not whole else ""
    return f"{prediction.name} starts at norm {sig(prediction.layer.norm)} and settles at {sig(norm)}{entries}"


def _fast_rotation(predictions: Sequence[LayerPrediction]) -> Iterator[Finding]:
    angles = {p.name: p.equilibrium.angular_update for p in predictions}
    fast = {name: angle for name, angle in angles.items() if angle is not None and angle > limit.FAST_ROTATION}
    if fast:
        sentence = f"{clause(list(fast), 'turns', 'turn')} {span(fast.values(), 2)} rad per step in equilibrium, "
        sentence += "which is very fast."
        remedy = "Lower lr or weight decay."
        evidence = {"angular_update": max(fast.values())}
        yield Finding("fast_rotation", "warn", sentence, remedy, layers=tuple(fast), evidence=evidence)


def _end(predictions: Sequence[LayerPrediction]) -> Iterator[Finding]:
    """Layers whose norm cannot follow the end of the schedule: a note, for every decay to zero does it."""
    steps = {p.name: p.falls_out_at for p in predictions if p.falls_out_at is not None}
    if not steps:
        return
    names = tuple(steps)
    ratios = [_end_ratio(_forecast(prediction)) for prediction in predictions if prediction.name in steps]
    cause = "the norm cannot follow the learning rate and becomes"
    verb = "falls" if len(names) == 1 else "fall"
    yield Finding(
        "fell_out",
        "note",
        phrases.falls_out(names, list(steps.values()), cause, ratios, verb),
        phrases.FOLLOW_THE_RATE,
        "norm above 1.3 × equilibrium (SGD 1.2); before the end about sqrt(2x²T/a0) for linear, "
        "(16x²T²/(π²a0))^(1/3) for cosine decay, norm ∝ lr^x",
        names,
        {"step": float(min(steps.values())), "ratio": max(ratios)},
    )


def _end_ratio(forecast: Forecast) -> float:
    """Norm over its equilibrium at the end, before the rate is next to nothing."""
    # The equilibrium norm of a rate next to 0 is next to 0, and any ratio to it is huge and means nothing.
    last = int(np.flatnonzero(forecast.lr >= limit.NEXT_TO_NOTHING * forecast.lr.max())[-1])
    return float(over(forecast.norm[last], forecast.equilibrium_norm[last]))


def imbalance(forecasts: Sequence[Forecast]) -> Array:
    """Rotation of the fastest layer over that of the slowest, step by step; 1 where no layer turns."""
    angles = np.stack([forecast.angular_update for forecast in forecasts])
    return np.asarray(np.nan_to_num(over(angles.max(0), angles.min(0)), nan=1.0))


def _imbalance(predictions: Sequence[LayerPrediction]) -> Iterator[Finding]:
    if len(predictions) < 2:
        return
    ratio = imbalance([_forecast(prediction) for prediction in predictions])
    middle = len(ratio) // 2
    # The middle of the run is judged: the start is the initial norms', the end the schedule's.
    moments = [float(ratio[step]) for step in (0, middle, -1)]
    # A layer that stands still is infinitely slow; its own finding says why.
    if not all(map(isfinite, moments)):
        return
    names = tuple(prediction.name for prediction in predictions)
    if max(moments) < limit.ALIKE:
        sentence = f"All layers turn alike, within {limit.ALIKE - 1:.0%}."
        yield Finding("layer_imbalance", "note", sentence, formula=RECURSION, layers=names)
        return
    angles = [float(_forecast(prediction).angular_update[middle]) for prediction in predictions]
    fastest = predictions[int(np.argmax(angles))]
    slowest = predictions[int(np.argmin(angles))]
    first = predictions[0]
    same_settings = all(p.rule == first.rule and p.schedule is first.schedule for p in predictions)
    # Groups with settings of their own may be meant to turn at different speeds.
    severity: Severity = imbalance_severity(moments[1]) if same_settings else "note"
    yield Finding(
        "layer_imbalance",
        severity,
        f"{phrases.turns_faster(fastest.name, slowest.name, moments[1])} in the middle of the run; the fastest layer "
        f"turns {sig(moments[0])} times as fast as the slowest at the first step and {sig(moments[2])} times at the "
        "last.",
        "" if severity == "note" else phrases.balance_layers(fastest.rule, fastest.rule.keeps_norm),
        RECURSION,
        (fastest.name, slowest.name),
        {"ratio": moments[1], "first": moments[0], "last": moments[2]},
    )


def _betas(predictions: Sequence[LayerPrediction]) -> Iterator[Finding]:
    for betas, members in _grouped(predictions, lambda prediction: prediction.rule.adam_betas):
        if betas is None or stability.exact_margin(*betas) > 0:
            continue
        growth_rate = float(stability.growth_rate(*betas, exact=True))
        yield Finding(
            "unstable_betas",
            "warn",
            phrases.unstable_betas(*betas, growth_rate),
            phrases.stable_betas(betas[0]),
            "stable iff ln(β2/β1²) > 0 (exact), C = 2/β1 - 1/β2 - 1 > 0 (CT, continuous)",
            tuple(member.name for member in members),
            {"margin": float(stability.exact_margin(*betas))},
        )


def _forecast(prediction: LayerPrediction) -> Forecast:
    assert prediction.forecast is not None
    return prediction.forecast


def _grouped(members: Sequence[T] | Mapping[T, object], key: Callable[[T], K]) -> Iterator[tuple[K, list[T]]]:
    """Members with the same key, in the order of their first."""
    groups: dict[K, list[T]] = {}
    for member in members:
        groups.setdefault(key(member), []).append(member)
    yield from groups.items()
