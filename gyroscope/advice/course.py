"""The way of the norms: into equilibrium, out of it again, or never there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite, log
from typing import Literal, final

import numpy as np

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Severity, Verdict
from gyroscope.advice.plan_summary import LARGEST_DECAY, decay_to_settle, to_equilibrium
from gyroscope.advice.record import Reading
from gyroscope.advice.words import sig, span, who
from gyroscope.theory import forecast
from gyroscope.theory.convergence import NEVER, SETTLES
from gyroscope.theory.law import Weights
from gyroscope.theory.layers import Layer

LONGEST = 50_000
"""Steps that a forecast of the rest of a transient takes at most."""

State = Literal["unknown", "settled", "transient", "weak", "held", "fell out"]


@final
@dataclass(frozen=True)
class Course:
    """Where a layer stands: `held` is steady far from its prediction, by a force that theory does not know."""

    reading: Reading
    state: State

    @classmethod
    def of(cls, reading: Reading) -> "Course":
        """Judge a layer by its norm over the equilibrium's, and by how fast that changes."""
        return cls(reading, _state(reading))

    @property
    def name(self) -> str:
        """The layer's."""
        return self.reading.name

    @property
    def settles_at(self) -> float:
        """Step at which the norm will be within 10 % if rates stay: by the forecast of the whole run, from its start.

        Adam's v remembers for long. Where the forecast lacks an input, is too long, or would have settled already, by
        the approach to leading order; inf without decay.
            q - 1 with q = (‖w‖/‖ω̂‖)^(1/x) shrinks by e^(-a/x) per step, x = 1/2 for AdamW, 1/4 for SGD
        """
        reading = self.reading
        known = np.flatnonzero(np.isfinite(reading.distance) & (reading.decay > 0))
        if not known.size:
            return inf
        last = int(known[-1])
        r, power = float(reading.distance[last]), _power(reading)
        target = (1 + limit.SETTLED if r > 1 else 1 - limit.SETTLED) ** power - 1
        now, timescale = float(reading.steps[last]), 1 / float(reading.decay[last])
        left = log(max((r**power - 1) / target, 1.0)) * timescale / power
        return _foretold(reading, now, left + 5 * timescale) or now + left


def _foretold(reading: Reading, now: float, left: float) -> float | None:
    """Step at which a forecast from the first sample settles, if that is after `now` and at most `left` steps later."""
    layer, rule, known = planned(reading), reading.rule, np.isfinite(reading.lr)
    if rule is None or layer is None or layer.missing(rule) or not (rule.lr > 0 and known.any()):
        return None
    first, until = float(reading.steps[0]), now + left
    if until - first > LONGEST:
        return None
    rates = np.interp(np.arange(first, until), reading.steps[known], reading.lr[known])  # the last one stays
    try:
        course = forecast(rule, (rates / rule.lr).tolist(), norm=layer.norm, **layer.known)
    except ValueError:  # numbers out of all proportion
        return None
    start = int(now - first)
    found = course.settled_after(start)[0]
    return None if found is None or found == start else first + found


def planned(reading: Reading) -> Layer | None:
    """The layer as the planner knows it, from what was measured first; None if it never had a norm."""
    norms, grads = reading.series("norm", "rms"), reading.series("unit_grad_norm", "rms")
    alive, measured = norms[norms > 0], grads[grads > 0]
    if not alive.size:
        return None
    grad = float(np.sqrt(np.mean(measured[: limit.SAMPLES] ** 2))) if measured.size else None
    weights = Weights(float(reading.layer.fan_in), grad, tuple(reading.layer.shape))
    whole = reading.rule is not None and "shape" in reading.rule.needs  # Muon's matrix, measured neuron by neuron
    return Layer(reading.name, weights, float(alive[0]) * (reading.layer.vectors**0.5 if whole else 1.0))


def _power(reading: Reading) -> float:
    """1/x where the equilibrium norm follows lr^x; 2 where the rule is unknown."""
    x = reading.rule.norm_power if reading.rule is not None else 0.5
    return 1 / x if x > 0 else 2.0


def _state(reading: Reading) -> State:
    ratio = reading.rule.falls_out_ratio if reading.rule is not None else 1.3
    known = reading.distance[np.isfinite(reading.distance)]
    if not known.size:
        return "weak" if _no_decay(reading) else "unknown"
    if isfinite(reading.settled_at):
        ends = reading.speeds[np.isfinite(reading.speeds)][-3:]
        slow = not ends.size or float(np.median(ends)) < limit.SLOW
        return "fell out" if known[-1] > ratio and slow else "settled"
    r = reading.mean(reading.distance)
    if not isfinite(r):
        return "unknown"
    if abs(r - 1) <= limit.SETTLED:
        return "settled"
    if reading.total_decay < NEVER:
        return "weak"
    return "transient" if _approaches(reading, r) else "held"


def _no_decay(reading: Reading) -> bool:
    """Whether nothing settles because nothing decays, by a rule that could."""
    return reading.weight_decay == 0 and reading.rule is not None and reading.rule.has_weight_decay


def _approaches(reading: Reading, r: float) -> bool:
    """Whether the norm moves towards its prediction about as fast as theory has it: d ln‖w‖/dt = a·(1/q - 1)."""
    norm = reading.series("norm", "rms")
    used = reading.window & np.isfinite(norm) & (norm > 0)
    if used.sum() < 3:
        return False
    measured = float(np.polyfit(reading.steps[used], np.log(norm[used]), 1)[0])
    expected = reading.mean(reading.decay) * (r ** -_power(reading) - 1)
    return bool(measured / expected > limit.FOLLOWS) if isfinite(expected) and expected else False


def transient(courses: Sequence[Course]) -> Iterator[Verdict]:
    """Layers on their way, and when they will be there."""
    ones = [course for course in courses if course.state == "transient"]
    if not ones:
        return
    now, when = ones[0].reading.steps[-1], [course.settles_at for course in ones]
    in_reach = max(when) <= limit.IN_REACH * (now + 1)
    ratios = [float(course.reading.distance[np.isfinite(course.reading.distance)][-1]) for course in ones]
    yield Verdict(
        "transient",
        "warn",
        f"{who([course.name for course in ones], 'is', 'are')} still in transient after {now + 1:,.0f} steps, "
        f"{span(ratios, 2)} times the equilibrium norm; "
        + (f"at this rate settled at about step {_steps(when)}." if in_reach else "at this rate it will not settle."),
        (f"Train on to about step {_steps([max(when)])}, raise" if in_reach else "Raise")
        + f" lr × weight decay, or start at the equilibrium norm with {to_equilibrium(ones[0].reading.rule)}.",
        tuple(course.name for course in ones),
        {"settles_at": max(when), "smallest_ratio": min(ratios), "largest_ratio": max(ratios)},
    )


def _steps(steps: Sequence[float]) -> str:
    finite = [step for step in steps if isfinite(step)]
    return span(finite, 2) if finite else "∞"


def weak_decay(courses: Sequence[Course], running: bool) -> Iterator[Verdict]:
    """Layers whose decay is too weak to bring them to equilibrium within a run of this length."""
    ones = [course for course in courses if course.state == "weak"]
    if not ones:
        return
    totals = [0.0 if _no_decay(course.reading) else course.reading.total_decay for course in ones]
    names, X = [course.name for course in ones], min(totals)
    worst = ones[totals.index(X)]
    steps = worst.reading.steps[-1] + 1
    turns = "it turns" if len(ones) == 1 else "they turn"
    if X > 0:
        have = span(totals)
        told = (
            f"{who(names, 'has', 'have')} decayed by X = {have} in {steps:,.0f} steps, too little to settle (below 0.3)"
        )
        remedies = [f"train {sig(SETTLES / X, 2)} times longer", _more_decay(worst.reading, X)]
        remedy = f"To settle, {' or '.join(remedies)}."
    else:
        told, remedy = f"{who(names, 'has', 'have')} no weight decay", f"To settle, {_more_decay(worst.reading, X)}."
    if running and X > 0:
        remedy = f"If the run ends before about step {sig(steps * SETTLES / X, 2)}: {_more_decay(worst.reading, X)}."
    severity: Severity = "note" if running else "warn"
    sentence = f"{told}: the initial norm, not the settings, decides how fast {turns}."
    yield Verdict("weak_decay", severity, sentence, remedy, tuple(names), {"total_decay": X})


def _more_decay(reading: Reading, X: float) -> str:
    """The weight decay with which a run of this length settles."""
    now, needed = reading.weight_decay, None
    known = np.isfinite(reading.lr)
    if reading.rule is not None and known.any():
        every_step = np.linspace(0, reading.steps[-1], 10_000)
        lr = np.interp(every_step, reading.steps[known], reading.lr[known]) * (reading.steps[-1] + 1) / len(every_step)
        needed = decay_to_settle(reading.rule, lr)
    if needed is None and X > 0 and now * SETTLES / X * float(np.nan_to_num(reading.lr).max()) < LARGEST_DECAY:
        needed = float(f"{now * SETTLES / X:.2g}")
    return f"set weight_decay={needed:g} (now {now:g})" if needed is not None else "raise lr × weight decay"


def fell_out(courses: Sequence[Course]) -> Iterator[Verdict]:
    """Layers that had settled and whose norm is now too large for the learning rate."""
    ones = [course for course in courses if course.state == "fell out"]
    if not ones:
        return
    since = [_left_at(course.reading) for course in ones]
    ends = [_end(course.reading) for course in ones]
    rate = max(_final_rate(course.reading) for course in ones)
    if rate < limit.FALLEN_RATE:
        why = "the norm could not follow the learning rate and is now"
        remedy = "End the schedule at a tenth of the peak rather than at 0, or wrap the scheduler in "
        remedy += "gyro.optim.EquilibriumRescale, which keeps the norms in equilibrium."
    else:
        why = "updates or gradients shrank, and the norm is still that of before,"
        again = _steps([max(course.settles_at for course in ones)])
        remedy = f"At this rate settled again at about step {again}: wait, or look for what changed."
    yield Verdict(
        "fell_out",
        "note" if rate < limit.FULL_RATE else "warn",
        f"{who([course.name for course in ones], 'fell', 'fell')} out of equilibrium at step {span(since)}: {why} "
        f"{span(ends, 2)} times too large, so the rotation is too slow.",
        remedy,
        tuple(course.name for course in ones),
        {"step": min(since), "ratio": max(ends)},
    )


def _end(reading: Reading) -> float:
    """Norm over its equilibrium at the end; where the schedule goes to zero, before the rate is next to nothing."""
    known = np.isfinite(reading.distance)
    worth = known & (reading.lr >= limit.NEXT_TO_NOTHING * reading.lr[reading.peak])
    return float(reading.distance[worth if worth.any() else known][-1])


def _left_at(reading: Reading) -> float:
    """Step after which the norm stayed too large."""
    ratio = reading.rule.falls_out_ratio if reading.rule is not None else 1.3
    inside = np.flatnonzero(np.isfinite(reading.distance) & (reading.distance <= ratio))
    return float(reading.steps[min(inside[-1] + 1, len(reading.steps) - 1)])


def _final_rate(reading: Reading) -> float:
    known = reading.lr[np.isfinite(reading.lr)]
    return float(known[-1] / known.max()) if known.size and known.max() > 0 else 1.0
