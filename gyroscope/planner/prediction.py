"""What theory says about one kind of layer in the run that is planned."""

from collections.abc import Callable
from dataclasses import dataclass

from gyroscope.planner.question import Layer, Question
from gyroscope.theory import Equilibrium, Forecast, constant, forecast

OVER_ROTATION = 1.1
"""Rotation over its equilibrium above which the start counts as too fast."""


@dataclass(frozen=True)
class Prediction:
    """What one kind of layer will do; the forecast is None where an input for it is missing."""

    layer: Layer
    equilibrium: Equilibrium
    forecast: Forecast | None
    warmup: int | None
    """Steps of warmup that keep the start within its equilibrium rotation; None where there is no such warmup."""
    settles_at: int | None = None
    """First step after the warmup within 10 % of equilibrium."""
    falls_out_at: int | None = None
    """First step after that with a norm too large for its rate."""


def predict(question: Question, progress: Callable[[int], None] | None = None) -> tuple[Prediction, ...]:
    """Equilibrium of every layer and, where the inputs allow it, the forecast of the whole run."""
    return tuple(_predict(question, layer, progress) for layer in question.layers)


def _predict(question: Question, layer: Layer, progress: Callable[[int], None] | None) -> Prediction:
    equilibrium = question.rule.equilibrium(**layer.known)
    if layer.missing(question.rule):
        return Prediction(layer, equilibrium, None, None)
    course = forecast(question.rule, question.schedule, norm=layer.norm, **layer.known, progress=progress)
    settled = course.settled_after(max(question.schedule.warmup - 1, 0))
    return Prediction(layer, equilibrium, course, needed_warmup(question, layer), *settled)


def needed_warmup(question: Question, layer: Layer) -> int | None:
    """The shortest warmup, to a few percent, after which no step turns faster than equilibrium at full rate.

    None where a tenth of the run would not do: then the norm itself starts too small, and a warmup is no remedy.
    """
    rule, longest = question.rule, max(question.schedule.steps // 10, 1)
    limit = OVER_ROTATION * float(rule.equilibrium(**layer.known).angular_update or 0.0)

    def is_enough(warmup: int) -> bool:
        horizon = warmup + round(5 * rule.momentum_memory)
        start = forecast(rule, constant(horizon, warmup), norm=layer.norm, **layer.known)
        return bool(start.angular_update.max() <= limit)

    if is_enough(0):
        return 0
    if not is_enough(longest):
        return None
    short, long = 0, longest
    while long - short > max(1, long // 16):
        middle = round((max(short, 1) * long) ** 0.5) if long > 4 * max(short, 1) else (short + long) // 2
        short, long = (short, middle) if is_enough(middle) else (middle, long)
    return long
