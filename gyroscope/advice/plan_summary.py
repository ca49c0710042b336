"""What to think of many layers at once, and of several groups with settings of their own: worst first."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import exp, isfinite
from typing import Any

import numpy as np

from gyroscope._types import Array
from gyroscope.advice.plan_sentences import RECURSION, Level, Sentence, stable
from gyroscope.advice.question import Question
from gyroscope.advice.words import sig, span, who
from gyroscope.theory import Forecast, UpdateRule
from gyroscope.theory.convergence import SETTLES, settling
from gyroscope.theory.law import over
from gyroscope.theory.layers import Prediction, at_equilibrium, needed_warmups

TOO_FAST = 1.5
"""Rotation at the start, over the equilibrium's at full rate, that is worth a word: a learning rate 2.25 times as high
would turn settled vectors as fast."""
UNEQUAL = 2.0
"""Rotation of the fastest layer over the slowest's that is worth a word: as if lr × decay differed four times."""
LARGEST_DECAY = 0.02
"""lr × weight decay beyond which no advice goes: a direction would be forgotten within 50 steps."""
ALIKE = 1.05
"""The same ratio below which layers turn alike."""

Told = tuple[Question, Prediction]
ORDER: dict[Level, int] = {"warning": 0, "missing": 1, "fact": 2, "good": 3}


def summary(told: Sequence[Told]) -> list[Sentence]:
    """Sentences about all layers of a plan, warnings first; each names the layers it speaks of."""
    known = [(question, one) for question, one in told if one.forecast is not None]
    found = [
        *_missing([(question, one) for question, one in told if one.forecast is None]),
        *_settling(known),
        *_start(known),
        *_end(known),
        *_imbalance(known),
        *_betas(told),
    ]
    return worst_first(found)


def worst_first(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Warnings, what is missing, facts, and what is good."""
    return sorted(sentences, key=lambda sentence: ORDER[sentence.level])


def decay_to_settle(rule: UpdateRule, lr: Array) -> float | None:
    """The weight decay with which a run with these learning rates settles, Σ a_t = 3.

    None where the decay per step depends on the gradient, or where the run is so short that directions would have
    to be forgotten within 50 steps.

    >>> from gyroscope.theory import AdamW
    >>> decay_to_settle(AdamW(1e-2, 0.0), np.full(1000, 1e-2))
    0.3
    """
    if not rule.has_weight_decay or rule.lr == 0:
        return None
    small = 1e-6 / rule.lr
    timescale = rule.replace(weight_decay=small).timescale
    if timescale is None:
        return None
    total = float(np.sum((lr / rule.lr) ** (2 if rule.corrected_decay else 1))) / timescale
    needed = small * SETTLES / total if total > 0 else np.inf
    return float(f"{needed:.2g}") if needed * rule.lr < LARGEST_DECAY else None


def to_equilibrium(rule: UpdateRule | None) -> str:
    """The call that starts every vector at its equilibrium norm."""
    measure = ", loss=…" if rule is not None and "unit_grad_norm" in rule.needs else ""
    return f"gyro.optim.to_equilibrium_(model, optimizer{measure})"


def _missing(told: Sequence[Told]) -> Iterator[Sentence]:
    for (needs, rule), ones in _grouped(told, lambda q, p: (p.layer.missing(q.rule), q.rule.name)):
        text = f"{who(_names(ones), 'has', 'have')} no forecast: {rule} needs {' and '.join(needs)}"
        yield Sentence("missing", f"{text}.", "", "missing")


def _settling(told: Sequence[Told]) -> Iterator[Sentence]:
    for case, ones in _grouped(told, _case):
        yield Sentence("settles", *_settling_text(case, ones))


def _case(question: Question, one: Prediction) -> tuple[str, str]:
    """How it settles, and what to do about it: layers of which both are the same share a sentence."""
    f, rule = _known(one), question.rule
    if not rule.has_weight_decay:
        return "held", ""
    decay = decay_to_settle(rule, f.lr)
    remedy = "" if decay is None else f"set weight_decay={decay:g} (now {rule.weight_decay:g})"
    if f.total_decay == 0:
        return "no decay", remedy or "give it a weight decay"
    extent = settling(f.total_decay)
    if one.settles_at is not None and (extent == "settles" or one.falls_out_at is None):
        return ("late", "") if one.settles_at + 1 > question.schedule.steps / 2 else ("good", "")
    if extent == "settles":
        return "far", ""
    return ("never" if one.settles_at is None and extent == "never" else "partly"), remedy


def _settling_text(case: tuple[str, str], told: Sequence[Told]) -> tuple[str, str, Level]:
    (kind, remedy), names, ones = case, _names(told), [_known(one) for _, one in told]
    X = span(f.total_decay for f in ones)
    if kind in ("never", "partly"):
        longer = f"train {sig(SETTLES / min(f.total_decay for f in ones), 2)} times longer"
        remedy = f"To settle, {' or '.join(filter(None, [longer, remedy]))}."
    if kind == "held":
        return f"{who(names, 'keeps its norm', 'keep their norms')}: nothing has to settle.", "", "good"
    if kind == "no decay":
        text = f"{who(names, 'has', 'have')} no weight decay: norms grow, and rotation slows, without end; {remedy}."
        return text, "X = Σ a_t = 0", "warning"
    if kind == "never":
        text = f"{who(names, 'never settles', 'never settle')}, X = {X} (below 0.3): the initial norm sets the rotation"
        return f"{text}. {remedy}", "X = Σ a_t: what was there at the start shrinks by e^-X", "warning"
    if kind == "partly":
        left = span((100 * exp(-f.total_decay) for f in ones), 2)
        text = f"{who(names, 'settles', 'settle')} only in part, X = {X}: {left} % of the start remains."
        return f"{text} {remedy}", "X = Σ a_t: what was there at the start shrinks by e^-X", "warning"
    if kind == "far":
        text = (
            f"{who(names, 'does', 'do')} not come within 10 % of equilibrium, though X = {X}: the start is too far off"
        )
        return f"{text}. {_initial_norm(told)}.", RECURSION, "warning"
    at, total = [(one.settles_at or 0) + 1 for _, one in told], told[0][0].schedule.steps
    share = span([100 * steps / total for steps in at], 2)
    angle = span(float(f.equilibrium_angular_update.max()) for f in ones)
    when = f"after {span(at)} steps ({share} % of the run)"
    if kind == "late":
        return f"{who(names, 'settles', 'settle')} late, {when}: until then the start decides.", RECURSION, "warning"
    return (
        f"{who(names, 'settles', 'settle')} {when} and then {_turns(names)} as predicted, {angle} rad per step.",
        "",
        "good",
    )


def _turns(names: Sequence[str]) -> str:
    return "turns" if len(names) == 1 else "turn"


def _start(told: Sequence[Told]) -> Iterator[Sentence]:
    """Too fast at first, and the warmup or the initial norm that would mend it."""
    fast = [(q, one) for q, one in told if q.rule.weight_decay > 0 and worst(one) > TOO_FAST]
    formula = "first step AdamW sqrt(τ)·‖ω̂‖/‖ω_0‖, Lion ‖ω̂‖/‖ω_0‖, SGDM sqrt(1-α²)·(‖ω̂‖/‖ω_0‖)², then the recursion"
    for helps, ones in _grouped(fast, lambda q, one: one.warmup is not None):
        fastest = span([worst(one) for _, one in ones], 2)
        text = f"{who(_names(ones), 'starts', 'start')} too fast, {fastest} times the rotation of equilibrium"
        longest, has = max(one.warmup or 0 for _, one in ones), max(q.schedule.warmup for q, _ in ones)
        warmup = f"use a warmup of about {sig(longest, 2)} steps (now {has:,})"
        advice = f"; {warmup}" if helps else f", and no warmup alone helps. {_initial_norm(ones)}"
        yield Sentence("start", f"{text}{advice}.", formula, "warning")


def _initial_norm(told: Sequence[Told]) -> str:
    """Where to start instead, for the layer that is worst off, and the warmup that is then left to do."""
    question, one = max(told, key=lambda each: worst(each[1]))
    norm, layer, rule = one.equilibrium.norm or 0.0, one.layer, question.rule
    entries = f", entries of deviation {sig(norm / layer.weights.fan_in**0.5)}" if layer.weights.fan_in else ""
    warmup = needed_warmups(rule, question.schedule.steps, [at_equilibrium(rule, layer)])[0] or 0
    brief = f", and warm up over about {sig(warmup, 2)} steps" if warmup > question.schedule.warmup else ""
    return (
        f"Start {layer.name} at norm {sig(norm)}{entries} (now norm {sig(layer.norm)}), or every layer at its own with "
        f"{to_equilibrium(rule)}{brief}"
    )


def _end(told: Sequence[Told]) -> Iterator[Sentence]:
    out = [(q, one) for q, one in told if one.falls_out_at is not None]
    if not out:
        return
    first = min(one.falls_out_at or 0 for _, one in out)
    left = 100 - 100 * first / out[0][0].schedule.steps
    yield Sentence(
        "falls out",
        f"{who(_names(out), 'falls', 'fall')} out of equilibrium from step {first:,} on, the last {sig(left, 2)} % of "
        "the run: the norm cannot follow the rate, and the rotation falls below its equilibrium. "
        "Where that matters, end the schedule above 0 or wrap it in gyro.optim.EquilibriumRescale.",
        "norm above 1.3 × equilibrium (SGD 1.2)",
    )


def imbalance(forecasts: Sequence[Forecast]) -> Array:
    """Rotation of the fastest layer over that of the slowest, step by step; 1 where no layer turns."""
    angles = np.stack([f.angular_update for f in forecasts])
    return np.asarray(np.nan_to_num(over(angles.max(0), angles.min(0)), nan=1.0))


def _imbalance(told: Sequence[Told]) -> Iterator[Sentence]:
    if len(told) < 2:
        return
    ratio = imbalance([_known(one) for _, one in told])
    same_settings = len({id(question) for question, _ in told}) == 1  # else the difference may be meant
    start, middle, end = (float(ratio[t]) for t in (0, len(ratio) // 2, -1))
    if not all(map(isfinite, (start, middle, end))):
        return
    if max(start, middle, end) < ALIKE:
        yield Sentence("imbalance", f"All layers turn alike, within {ALIKE - 1:.0%}.", RECURSION)
        return
    yield Sentence(
        "imbalance",
        f"The fastest layer turns {sig(start)} times as far as the slowest at the first step, {sig(middle)} times in "
        f"the middle of the run, {sig(end)} times at its end.",
        RECURSION,
        "warning" if middle > UNEQUAL and same_settings else "fact",
    )


def _betas(told: Sequence[Told]) -> Iterator[Sentence]:
    yield from {s: None for question, _ in told for s in stable(question) if s.level == "warning"}


def worst(one: Prediction) -> float:
    """The fastest step over the equilibrium at full rate."""
    f = _known(one)
    return float(over(f.angular_update.max(), f.equilibrium_angular_update.max()))


def _known(one: Prediction) -> Forecast:
    assert one.forecast is not None
    return one.forecast


def _names(told: Sequence[Told]) -> list[str]:
    return [one.layer.name for _, one in told]


def _grouped(told: Sequence[Told], key: Callable[[Question, Prediction], Any]) -> Iterator[tuple[Any, list[Told]]]:
    """Layers of which the same is said, in the order of their first."""
    groups: dict[Any, list[Told]] = {}
    for question, one in told:
        groups.setdefault(key(question, one), []).append((question, one))
    yield from groups.items()
