"""Facts of a plan that need no judgement: equilibrium and the start."""

from collections.abc import Callable, Iterator, Sequence
from math import degrees, isfinite, isnan

from gyroscope.advice.findings import Finding
from gyroscope.advice.judgements.optimizer_options import STABILITY
from gyroscope.advice.phrases import RECURSION, RUN_LENGTH, format_memories, format_number
from gyroscope.advice.thresholds import MAX_EXACT_NUMBER
from gyroscope.theory import Forecast, stability
from gyroscope.theory.convergence import MEMORY_PASSED, SETTLES
from gyroscope.theory.forecast import SETTLED
from gyroscope.theory.layer_prediction import LayerPrediction


def plan_facts(
    predictions: Sequence[LayerPrediction],
    steps_per_epoch: float | None = None,
) -> tuple[Finding, ...]:
    """Return the facts of a plan, in the order in which they build on each other.

    predictions      of all layers. A table shows the differences between them
    steps_per_epoch  to state steps in epochs as well
    """
    facts: list[Finding] = []
    if predictions:
        facts += _rotation(predictions)
        facts += _memory(predictions, steps_per_epoch)
        facts += _single(predictions[0], steps_per_epoch) if len(predictions) == 1 else []
        facts += _stability(predictions)
    return tuple(facts)


def _fact(kind: str, sentence: str, formula: str, **evidence: float) -> Finding:
    return Finding(kind, "note", sentence, formula=formula, evidence=evidence)


def _common(predictions: Sequence[LayerPrediction], value: Callable[[LayerPrediction], float | None]) -> float | None:
    """Return the number if it prints the same for all layers, or None otherwise."""
    known = [number for prediction in predictions if (number := value(prediction)) is not None]
    alike = len(known) == len(predictions) and len({format_number(number) for number in known}) == 1
    return known[0] if alike else None


def _rotation(predictions: Sequence[LayerPrediction]) -> Iterator[Finding]:
    angle = _common(predictions, lambda prediction: prediction.equilibrium.angular_update)
    if angle is None:
        return
    rule = predictions[0].rule
    follows = {1.0: "lr", 0.5: "sqrt(lr)"}.get(rule.angle_exponent, f"lr^{rule.angle_exponent:.2f}")
    sentence = (
        f"In equilibrium a weight vector rotates {format_number(angle)} rad ({format_number(degrees(angle))}°) per "
        f"step at the peak learning rate. Under the schedule this follows {follows}."
    )
    yield _fact("rotation", sentence, rule.angle_formula, angular_update=angle)


def _memory(predictions: Sequence[LayerPrediction], steps_per_epoch: float | None) -> Iterator[Finding]:
    timescale = _common(predictions, lambda prediction: prediction.equilibrium.timescale)
    half_life = predictions[0].equilibrium.half_life
    if timescale is None or half_life is None:
        return
    yield _fact(
        "memory",
        f"A memory is {_steps(timescale, steps_per_epoch)} at the peak learning rate. The half-life of a direction is "
        f"{_steps(half_life, steps_per_epoch)}.",
        "cos∠(w_t, w_{t+k}) = exp(-a·k): memory 1/a, half-life ln 2/a",
        timescale=timescale,
        half_life=half_life,
    )


def _single(prediction: LayerPrediction, steps_per_epoch: float | None) -> Iterator[Finding]:
    """Yield sentences for the numbers that a table shows for several layers."""
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
    change = f"{format_number(norm / start)} times its initial {format_number(start)}"
    if 1 - SETTLED < norm / start < 1 + SETTLED:
        change = "the same as at the start"
    yield _fact(
        "norm",
        f"The norm of a vector settles at {format_number(norm)}, {change}.",
        "‖ω‖² = update_rms²·τ(a)/(a(2-a)). AdamW to leading order sqrt(lr·C/(2λ)), SGDM (lr·g̃²/(2λ(1-α)))^(1/4) "
        "(RE Table 1, SMD Theorem 2)",
        norm=norm,
        initial_norm=start,
    )


def _start(prediction: LayerPrediction, forecast: Forecast, steps_per_epoch: float | None) -> Iterator[Finding]:
    if not isfinite(forecast.over_rotation):  # without decay there is no equilibrium to compare with
        return
    ratio, step = prediction.fastest
    if prediction.warmup is None:
        slowed_by = "The initial norm is too small for a warmup to slow it down"
    elif prediction.warmup == 0:
        slowed_by = "No warmup is needed"
    else:
        warmup = _steps(float(f"{prediction.warmup:.2g}"), steps_per_epoch)
        slowed_by = f"A warmup of about {warmup} keeps it within 10 % of the rotation at the peak learning rate"
    yield _fact(
        "start",
        f"The first step rotates {format_number(forecast.over_rotation)} times its equilibrium angle, "
        f"{format_number(forecast.filled_over_rotation)} times once the momentum has filled. The fastest, step "
        f"{step:,}, rotates {format_number(ratio)} times the equilibrium angle at the peak learning rate. {slowed_by}.",
        "measured/equilibrium: first step AdamW sqrt(τ)·‖ω̂‖/‖ω_0‖, Lion ‖ω̂‖/‖ω_0‖, SGDM sqrt(1-α²)·(‖ω̂‖/‖ω_0‖)². "
        "Then ‖ω̂‖/‖ω_t‖ (SGDM squared), by the mean-field recursion",
        over_rotation=forecast.over_rotation,
        fastest=ratio,
    )


def _course(prediction: LayerPrediction, forecast: Forecast, steps_per_epoch: float | None) -> Iterator[Finding]:
    if prediction.grows_without_end and forecast.total_decay > 0:  # weight decay is not what makes it forget
        return
    length = forecast.total_decay
    if isnan(length):
        return
    extent = (
        "not long enough" if length < MEMORY_PASSED else "long enough" if length >= SETTLES else "barely long enough"
    )
    sentence = f"Run length: {format_memories([length])}, {extent} to reach equilibrium."
    yield _fact("total_decay", sentence, RUN_LENGTH, total_decay=length)
    if prediction.settled_at is not None:
        after = _steps(prediction.settled_at + 1, steps_per_epoch)
        yield _fact(
            "settles",
            f"The norm comes within 10 % of its equilibrium after {after}, and ends at "
            f"{format_number(forecast.end_norm_ratio)} times the equilibrium norm of the peak.",
            RECURSION,
            settled_at=prediction.settled_at,
            end_norm_ratio=forecast.end_norm_ratio,
        )


def _stability(predictions: Sequence[LayerPrediction]) -> Iterator[Finding]:
    """Yield the bounds of Adam's updates if its betas are stable. Unstable betas are a judgement."""
    steps = predictions[0].schedule.steps
    for betas in dict.fromkeys(prediction.rule.adam_betas for prediction in predictions):
        if betas is None or stability.exact_margin(*betas) <= 0:
            continue
        exact = float(stability.exact_margin(*betas))
        paper = float(stability.margin(*betas))
        bound = float(stability.update_bound(steps, *betas, exact=True))
        yield _fact(
            "stability",
            f"Betas ({betas[0]:g}, {betas[1]:g}) are stable, margin {format_number(exact)} (the paper's C = "
            f"{format_number(paper)}). No entry ever moves more than {format_number(bound)} × lr in a step.",
            f"{STABILITY}. Bound by Cauchy–Schwarz over all gradient sequences",
            margin=exact,
            update_bound=bound,
        )


def _steps(count: float, steps_per_epoch: float | None) -> str:
    """Return a number of steps, and of epochs if the batch and the data set are known."""
    if not isfinite(count):
        return "∞ steps"
    text = f"{count:,.0f} step{'' if round(count) == 1 else 's'}" if count < MAX_EXACT_NUMBER else f"{count:.1e} steps"
    return text if steps_per_epoch is None else f"{text} ({format_number(count / steps_per_epoch)} epochs)"
