"""The plan of one layer in numbers: a table of quantity, value and formula."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite, isnan
from typing import final

from gyroscope.advice.phrases import RECURSION, RUN_LENGTH, format_memories, format_number
from gyroscope.advice.thresholds import MAX_EXACT_NUMBER
from gyroscope.theory.layer_prediction import MAX_START_ANGLE, LayerPrediction, tried_warmups

MEMORY = "cos∠(w_t, w_{t+k}) = exp(-a·k): memory 1/a"
NORM = (
    "‖ω‖² = update_rms²·τ(a)/(a(2-a)). AdamW to leading order sqrt(lr·C/(2λ)), SGDM (lr·g̃²/(2λ(1-α)))^(1/4) "
    "(RE Table 1, SMD Theorem 2)"
)
# The norm that no weight decay holds.
GROWTH = "E‖u‖² > a(2-a)·‖w‖² at any norm"
START = (
    "first step over equilibrium: AdamW sqrt(τ)·‖ω̂‖/‖ω_0‖, Lion ‖ω̂‖/‖ω_0‖, SGDM sqrt(1-α²)·(‖ω̂‖/‖ω_0‖)². Then "
    "‖ω̂‖/‖ω_t‖ (SGDM squared), by the recursion"
)


@final
@dataclass(frozen=True)
class Fact:
    """A row of the table: a quantity, its value with its unit, and the equation behind it."""

    quantity: str
    value: str
    formula: str


def plan_facts(prediction: LayerPrediction, steps_per_epoch: float | None = None) -> tuple[Fact, ...]:
    """Return what is known of a layer's run, in the order in which one asks. Unknown quantities are left out.

    steps_per_epoch  to state steps in epochs as well
    """
    return tuple(_facts(prediction, steps_per_epoch))


def _facts(prediction: LayerPrediction, steps_per_epoch: float | None) -> Iterator[Fact]:
    equilibrium = prediction.equilibrium
    # Without weight decay there is neither an equilibrium nor a memory.
    if equilibrium.angular_update:
        angle = f"{format_number(equilibrium.angular_update)} rad per step"
        yield Fact("settles at", angle + _settling(prediction, steps_per_epoch), prediction.rule.angle_formula)
    if equilibrium.timescale is not None and isfinite(equilibrium.timescale):
        yield Fact("memory", f"{_steps(equilibrium.timescale, steps_per_epoch)} at the peak learning rate", MEMORY)
    # A norm that grows without end forgets by its growth, and not by weight decay.
    if not isnan(prediction.total_decay) and not (prediction.grows_without_end and prediction.total_decay > 0):
        yield Fact("run length", format_memories([prediction.total_decay]), RUN_LENGTH)
    if equilibrium.norm is not None:
        yield Fact("norm", _norm(prediction), GROWTH if prediction.grows_without_end else NORM)
    yield from _course(prediction, steps_per_epoch)


def _settling(prediction: LayerPrediction, steps_per_epoch: float | None) -> str:
    if prediction.grows_without_end:
        return " at any norm"
    if prediction.rule.keeps_norm:
        return " from the first step on"
    if prediction.forecast is None:
        return " in equilibrium"
    if prediction.settled_at is None:
        return " in equilibrium, which the run does not reach"
    return f" after {_steps(prediction.settled_at + 1, steps_per_epoch)}"


def _norm(prediction: LayerPrediction) -> str:
    norm = prediction.equilibrium.norm
    assert norm is not None
    start = format_number(prediction.layer.norm)
    if prediction.rule.keeps_norm:
        return f"{start}, kept"
    end = "grows without end" if prediction.grows_without_end else f"{format_number(norm)} in equilibrium"
    return f"{start} at the start, {end}"


def _course(prediction: LayerPrediction, steps_per_epoch: float | None) -> Iterator[Fact]:
    """Yield how a run starts and ends, if norms may change."""
    forecast = prediction.forecast
    if forecast is None or prediction.rule.keeps_norm:
        return
    ratio, step = prediction.fastest
    # Without decay there is no equilibrium to compare with.
    compared = f", {format_number(ratio)} times that of equilibrium" if isfinite(forecast.over_rotation) else ""
    angle = format_number(float(forecast.angular_update[step]))
    yield Fact("largest angle", f"{angle} rad in step {step:,}{compared}", START)
    warmup = _warmup(prediction, steps_per_epoch) if compared else ""
    if warmup:
        yield Fact(
            "warmup needed",
            warmup,
            f"largest angle of the forecast ≤ {MAX_START_ANGLE} rad, or 1.1 × that of equilibrium",
        )
    if compared and not prediction.grows_without_end:
        falls_out = prediction.falls_out_at
        left = f", above equilibrium from step {falls_out:,} on" if falls_out is not None else ""
        yield Fact("end", f"norm {format_number(float(forecast.norm[-1]))}{left}", RECURSION)


def _warmup(prediction: LayerPrediction, steps_per_epoch: float | None) -> str:
    """Return the warmup that keeps the start slow enough. It is empty if none was tried."""
    if prediction.warmup is not None:
        return _steps(prediction.warmup, steps_per_epoch) if prediction.warmup else "none"
    longest = tried_warmups(prediction.schedule.steps)[-1]
    return f"more than {_steps(longest, steps_per_epoch)}" if longest else ""


def _steps(count: float, steps_per_epoch: float | None) -> str:
    """Return a number of steps, and of epochs if the batch and the data set are known."""
    if not isfinite(count):
        return "∞ steps"
    text = f"{count:,.0f} step{'' if round(count) == 1 else 's'}" if count < MAX_EXACT_NUMBER else f"{count:.1e} steps"
    return text if steps_per_epoch is None else f"{text} ({format_number(count / steps_per_epoch)} epochs)"
