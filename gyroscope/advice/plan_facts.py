"""What a plan states without judging it: the numbers of equilibrium, of the start and of other optimizers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import degrees, isfinite

from gyroscope.advice.findings import Finding
from gyroscope.advice.judgements.unstable_betas import STABILITY
from gyroscope.advice.phrases import RECURSION, TOTAL_DECAY, sig
from gyroscope.advice.thresholds import MAX_EXACT_NUMBER
from gyroscope.theory import Forecast, Match, stability
from gyroscope.theory.convergence import NEVER, SETTLES, settling
from gyroscope.theory.forecast import SETTLED
from gyroscope.theory.layer_prediction import LayerPrediction

EXTENT = {
    "never": f"too little ever to settle (below {NEVER:g})",
    "partly": f"enough to settle in part ({NEVER:g} to {SETTLES:g})",
    "settles": f"enough to settle (above {SETTLES:g})",
}


def plan_facts(
    predictions: Sequence[LayerPrediction],
    steps_per_epoch: float | None = None,
    equivalents: Mapping[str, Match | str] | None = None,
) -> tuple[Finding, ...]:
    """The facts of a plan, in the order in which they build on each other.

    predictions      of all layers; what differs between several of them stands in a table instead
    steps_per_epoch  to state steps in epochs as well
    equivalents      other optimizers by name: settings with which they train alike, or why there are none
    """
    facts: list[Finding] = []
    if predictions:
        facts += _rotation(predictions)
        facts += _memory(predictions, steps_per_epoch)
        facts += _single(predictions[0], steps_per_epoch) if len(predictions) == 1 else []
        facts += _stability(predictions)
    facts += _equivalents(equivalents or {})
    return tuple(facts)


def _fact(kind: str, sentence: str, formula: str, **evidence: float) -> Finding:
    return Finding(kind, "note", sentence, formula=formula, evidence=evidence)


def _common(predictions: Sequence[LayerPrediction], value: Callable[[LayerPrediction], float | None]) -> float | None:
    """A number that is written alike for all layers; None if there is none."""
    values = [value(prediction) for prediction in predictions]
    # Numbers that are written alike are one fact; where they differ, the table has them.
    known = [number for number in values if number is not None]
    alike = len(known) == len(values) and len({sig(number) for number in known}) == 1
    return known[0] if alike else None


def _rotation(predictions: Sequence[LayerPrediction]) -> Iterator[Finding]:
    angle = _common(predictions, lambda prediction: prediction.equilibrium.angular_update)
    if angle is None:
        return
    rule = predictions[0].rule
    follows = {1.0: "lr", 0.5: "sqrt(lr)"}.get(rule.angle_exponent, f"lr^{rule.angle_exponent:.2f}")
    yield _fact(
        "rotation",
        f"In equilibrium a weight vector turns {sig(angle)} rad ({sig(degrees(angle))}°) per step at the peak learning "
        f"rate; under the schedule this follows {follows}.",
        rule.angle_formula,
        angular_update=angle,
    )


def _memory(predictions: Sequence[LayerPrediction], steps_per_epoch: float | None) -> Iterator[Finding]:
    timescale = _common(predictions, lambda prediction: prediction.equilibrium.timescale)
    half_life = predictions[0].equilibrium.half_life
    if timescale is None or half_life is None:
        return
    yield _fact(
        "memory",
        f"A direction is forgotten over {_steps(timescale, steps_per_epoch)}; its half-life is "
        f"{_steps(half_life, steps_per_epoch)}.",
        "cos∠(w_t, w_{t+k}) = exp(-a·k): timescale 1/a, half-life ln 2/a",
        timescale=timescale,
        half_life=half_life,
    )


def _single(prediction: LayerPrediction, steps_per_epoch: float | None) -> Iterator[Finding]:
    """What a table has of several layers, in sentences."""
    yield from _norm(prediction)
    if prediction.forecast is not None and not prediction.rule.keeps_norm:
        yield from _start(prediction, prediction.forecast, steps_per_epoch)
        yield from _course(prediction, prediction.forecast, steps_per_epoch)


def _norm(prediction: LayerPrediction) -> Iterator[Finding]:
    norm = prediction.equilibrium.norm
    start = prediction.layer.norm
    if norm is None:
        return
    if prediction.grows_without_end:
        yield _fact("norm", "The norm of a vector grows without end.", "E‖u‖² > a(2-a)·‖w‖² at any norm", norm=norm)
        return
    change = f"{sig(norm / start)} times its initial {sig(start)}"
    if 1 - SETTLED < norm / start < 1 + SETTLED:
        change = "as it starts"
    yield _fact(
        "norm",
        f"The norm of a vector settles at {sig(norm)}, {change}.",
        "‖ω‖² = update_rms²·τ(a)/(a(2-a)); AdamW to leading order sqrt(lr·C/(2λ)), SGDM (lr·g̃²/(2λ(1-α)))^(1/4) "
        "(RE Table 1, SMD Theorem 2)",
        norm=norm,
        initial_norm=start,
    )


def _start(prediction: LayerPrediction, forecast: Forecast, steps_per_epoch: float | None) -> Iterator[Finding]:
    if not isfinite(forecast.over_rotation):  # without decay there is no equilibrium to compare with
        return
    ratio, step = prediction.fastest
    if prediction.warmup is None:
        slowed_by = "the norm starts too small for a warmup to slow it down"
    elif prediction.warmup == 0:
        slowed_by = "no warmup is needed"
    else:
        warmup = _steps(float(f"{prediction.warmup:.2g}"), steps_per_epoch)
        slowed_by = f"a warmup of about {warmup} keeps it within 10 % of the rotation at full rate"
    yield _fact(
        "start",
        f"The first step turns {sig(forecast.over_rotation)} times its equilibrium angle, "
        f"{sig(forecast.filled_over_rotation)} times once the momentum has filled; the fastest, step {step:,}, turns "
        f"{sig(ratio)} times the equilibrium angle at full rate; {slowed_by}.",
        "measured/equilibrium: first step AdamW sqrt(τ)·‖ω̂‖/‖ω_0‖, Lion ‖ω̂‖/‖ω_0‖, SGDM sqrt(1-α²)·(‖ω̂‖/‖ω_0‖)²; "
        "then ‖ω̂‖/‖ω_t‖ (SGDM squared), by the mean-field recursion",
        over_rotation=forecast.over_rotation,
        fastest=ratio,
    )


def _course(prediction: LayerPrediction, forecast: Forecast, steps_per_epoch: float | None) -> Iterator[Finding]:
    if prediction.grows_without_end and forecast.total_decay > 0:  # what is forgotten is not by decay
        return
    total = forecast.total_decay
    yield _fact(
        "total_decay",
        f"Over the run the decay adds up to X = {sig(total)}: {EXTENT[settling(total)]}.",
        TOTAL_DECAY,
        total_decay=total,
    )
    if prediction.settled_at is not None:
        settled = _steps(prediction.settled_at + 1, steps_per_epoch)
        yield _fact(
            "settles",
            f"The norm comes within 10 % of its equilibrium after {settled}, and ends at "
            f"{sig(forecast.end_norm_ratio)} times the equilibrium norm of the peak.",
            RECURSION,
            settled_at=prediction.settled_at,
            end_norm_ratio=forecast.end_norm_ratio,
        )


def _stability(predictions: Sequence[LayerPrediction]) -> Iterator[Finding]:
    """Bounds of Adam's updates where its betas are stable; others are a judgement."""
    steps = predictions[0].schedule.steps
    for betas in dict.fromkeys(prediction.rule.adam_betas for prediction in predictions):
        if betas is None or stability.exact_margin(*betas) <= 0:
            continue
        exact = float(stability.exact_margin(*betas))
        paper = float(stability.margin(*betas))
        bound = float(stability.update_bound(steps, *betas, exact=True))
        yield _fact(
            "stability",
            f"Betas ({betas[0]:g}, {betas[1]:g}) are stable, margin {sig(exact)} (the paper's C = {sig(paper)}): no "
            f"entry ever moves more than {sig(bound)} × lr in a step.",
            f"{STABILITY}; bound by Cauchy–Schwarz over all gradient sequences",
            margin=exact,
            update_bound=bound,
        )


def _equivalents(equivalents: Mapping[str, Match | str]) -> Iterator[Finding]:
    formula = "same decay a and same norm; the rotation then differs by sqrt(τ1/τ2)"
    for name, equivalent in equivalents.items():
        if isinstance(equivalent, str):
            yield _fact("equivalent", f"{name}: {equivalent}.", formula)
            continue
        shown = {key: value for key, value in equivalent.rule.settings.items() if isinstance(value, float | tuple)}
        settings = ", ".join(f"{k} {sig(v) if isinstance(v, float) else v}" for k, v in shown.items())
        kept = " and ".join(equivalent.kept) or "nothing"
        changed = "".join(f", {quantity} × {sig(ratio)}" for quantity, ratio in equivalent.differs.items())
        power = equivalent.schedule_power
        converted = "" if power == 1 else f" Raise this schedule's multipliers to the power {sig(power)}."
        yield _fact("equivalent", f"{name} with {settings} keeps {kept}{changed}.{converted}", formula)


def _steps(count: float, steps_per_epoch: float | None) -> str:
    """A number of steps, and of epochs where the batch and the data set are known."""
    if not isfinite(count):
        return "∞ steps"
    text = f"{count:,.0f} step{'' if round(count) == 1 else 's'}" if count < MAX_EXACT_NUMBER else f"{count:.1e} steps"
    return text if steps_per_epoch is None else f"{text} ({sig(count / steps_per_epoch)} epochs)"
