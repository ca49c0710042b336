"""What to think of a plan: which layers settle, start fast, fall out, or turn at another speed than the others."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from math import exp, isfinite
from typing import TypeVar

import numpy as np

from gyroscope._types import Array
from gyroscope.advice import phrases, remedies
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Diagnosis, Finding
from gyroscope.advice.phrases import clause, sig, span, step_span
from gyroscope.advice.plan_facts import RECURSION, TOTAL_DECAY
from gyroscope.advice.remedies import LOWER_RATE, NOTHING
from gyroscope.theory import Forecast, stability
from gyroscope.theory.law import over
from gyroscope.theory.layer_prediction import LayerPrediction

START = "first step AdamW sqrt(τ)·‖ω̂‖/‖ω_0‖, Lion ‖ω̂‖/‖ω_0‖, SGDM sqrt(1-α²)·(‖ω̂‖/‖ω_0‖)², then the recursion"
KEPT_NORM = "cos∠(w_0, w_T) = e^-X with X = Σ a_t of the rule whose angle is taken (docs/theory.md)"

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
            *fast_rotation({p.name: p.equilibrium.angular_update or 0.0 for p in predictions}),
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


def _settling(predictions: Sequence[LayerPrediction]) -> Iterator[Finding]:
    for case, members in _grouped(predictions, _case):
        yield _settling_finding(case, members)


def _case(prediction: LayerPrediction) -> str:
    """How a layer stands to its equilibrium: follows base, keeps norm, no decay, grows, short, settles or far."""
    if prediction.rule.keeps_norm:
        return "follows base" if prediction.rule.follows_base else "keeps norm"
    if prediction.total_decay == 0:
        return "no decay"
    if prediction.grows_without_end:
        return "grows"
    if not prediction.is_longer_than_memory:
        return "short"
    return "far" if prediction.settled_at is None else "settles"


def _settling_finding(case: str, members: Sequence[LayerPrediction]) -> Finding:
    names = tuple(member.name for member in members)
    totals = [member.total_decay for member in members]
    steps = members[0].schedule.steps
    evidence = {"total_decay": min(totals)}
    if case in ("keeps norm", "follows base"):
        return Finding("well", "note", _kept_norms(members), "", KEPT_NORM, names, evidence)
    if case == "no decay":
        return Finding("short_memory", "note", phrases.no_decay(names), "", TOTAL_DECAY, names, evidence)
    if case == "grows":
        return Finding("well", "note", _growing_norms(members), "", members[0].rule.angle_formula, names, evidence)
    if case == "short":
        sentence = phrases.shorter_than_memory(names, totals, steps)
        return Finding("short_memory", "note", sentence, "", TOTAL_DECAY, names, evidence)
    if case == "far":
        verb = clause(names, "does", "do")
        sentence = (
            f"{verb} not come within 10 % of equilibrium, though X = {span(totals, 2)}: the start is too far off."
        )
        return Finding("transient", "note", sentence, "", RECURSION, names, evidence)
    after = [(member.settled_at or 0) + 1 for member in members]
    share = span([100 * count / steps for count in after], 2)
    angle = span(float(_forecast(member).equilibrium_angular_update.max()) for member in members)
    sentence = (
        f"{clause(names, 'settles', 'settle')} after {step_span(after)} step{'' if max(after) == 1 else 's'} "
        f"({share} % of the run) and then "
        f"{'turns' if len(names) == 1 else 'turn'} {angle} rad per step; X = {span(totals, 2)}."
    )
    return Finding("well", "good", sentence, "", RECURSION, names, {**evidence, "settled_at": max(after) - 1.0})


def _kept_norms(members: Sequence[LayerPrediction]) -> str:
    """How far layers turn whose norms are held, and what the plain rule would do from the same start."""
    names = [member.name for member in members]
    totals = [member.total_decay for member in members]
    sentence = f"{clause(names, 'keeps its norm', 'keep their norms')} and {'turns' if len(names) == 1 else 'turn'}"
    base = members[0].rule.plain.name
    if members[0].rule.follows_base:
        sentence += f" as {base} would from the same initial norms"
    else:
        sentence += " by the equilibrium angle from the first step"
    if not min(totals) > 0:  # Hyperball: the angle is lr, and no weight decay says what is forgotten
        return f"{sentence}."
    left = span([100 * exp(-total) for total in totals], 2)
    sentence += f"; over the run X = {span(totals, 2)}, so {left} % of the initial direction is left."
    speeds = [speed for member in members if (speed := member.base_speed) is not None]
    if speeds:
        sentence += f" {base} would turn {span(speeds, 2)} times as fast on average, from the same initial norms."
    return sentence


def _growing_norms(members: Sequence[LayerPrediction]) -> str:
    """How fast layers turn whose steps are relative to their norms, and what becomes of these."""
    names = [member.name for member in members]
    angle = span(float(_forecast(member).equilibrium_angular_update.max()) for member in members)
    factor = span([float(_forecast(member).norm[-1] / _forecast(member).initial_norm) for member in members], 3)
    turn = clause(names, "turns", "turn")
    return f"{turn} {angle} rad per step at any norm, which no decay holds: it ends at {factor} times its start."


def _start(predictions: Sequence[LayerPrediction]) -> Iterator[Finding]:
    """Layers that start faster than equilibrium: a fact, with a remedy where one is known."""
    # Without decay there is no equilibrium to be faster than.
    fast = [p for p in predictions if p.rule.weight_decay > 0 and p.fastest[0] > limit.OVER_ROTATION]
    if not fast:
        return
    fast.sort(key=lambda prediction: -prediction.fastest[0])
    names = tuple(prediction.name for prediction in fast)
    ratios = [prediction.fastest[0] for prediction in fast]
    step = fast[0].fastest[1]
    remedy = remedies.slower_start(fast[0].schedule.warmup, [prediction.warmup for prediction in fast])
    yield Finding(
        "over_rotation",
        "note",
        phrases.starts_faster(names, ratios, step, happened=False),
        remedy.text,
        START,
        names,
        {"ratio": ratios[0], "step": float(step)},
        remedy.trial,
    )


def fast_rotation(angles: Mapping[str, float]) -> Iterator[Finding]:
    """Layers of a plan or a run whose equilibrium turns very fast; `angles` are those of all layers."""
    fast = {name: angle for name, angle in angles.items() if angle > limit.FAST_ROTATION}
    if fast:
        yield Finding(
            "fast_rotation",
            "warn",
            f"{clause(list(fast), 'turns', 'turn')} {span(fast.values(), 2)} rad per step in equilibrium, which is "
            "very fast.",
            LOWER_RATE.text,
            layers=tuple(fast),
            evidence={"angular_update": max(fast.values())},
            trial=LOWER_RATE.trial,
        )


def _end(predictions: Sequence[LayerPrediction]) -> Iterator[Finding]:
    """Layers whose norm cannot follow the end of the schedule: a note, for every decay to zero does it."""
    steps = {
        prediction.name: prediction.falls_out_at for prediction in predictions if prediction.falls_out_at is not None
    }
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
        "",
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
    is_unbalanced = same_settings and moments[1] > limit.LAYER_IMBALANCE
    remedy = remedies.balance(fastest.rule, fastest.rule.keeps_norm) if is_unbalanced else NOTHING
    in_the_middle = phrases.turns_faster(fastest.name, slowest.name, moments[1])
    if moments[1] < limit.ALIKE:
        in_the_middle = "All layers turn alike"
    yield Finding(
        "layer_imbalance",
        remedies.severity(remedy),
        f"{in_the_middle} in the middle of the run; rotation of the fastest layer over that of the slowest is "
        f"{sig(moments[0])} at the first step and {sig(moments[2])} at the last.",
        remedy.text,
        RECURSION,
        (fastest.name, slowest.name),
        {"ratio": moments[1], "first": moments[0], "last": moments[2]},
        remedy.trial,
    )


def _betas(predictions: Sequence[LayerPrediction]) -> Iterator[Finding]:
    for betas, members in _grouped(predictions, lambda prediction: prediction.rule.adam_betas):
        if betas is None or stability.exact_margin(*betas) > 0:
            continue
        growth_rate = float(stability.growth_rate(*betas, exact=True))
        remedy = remedies.stable_betas(betas[0])
        yield Finding(
            "unstable_betas",
            "warn",
            phrases.unstable_betas(*betas, growth_rate),
            remedy.text,
            "stable iff ln(β2/β1²) > 0 (exact), C = 2/β1 - 1/β2 - 1 > 0 (CT, continuous)",
            tuple(member.name for member in members),
            {"margin": float(stability.exact_margin(*betas))},
            remedy.trial,
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
