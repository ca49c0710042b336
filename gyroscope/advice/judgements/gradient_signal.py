"""Gradients along the weights: layers that are not scale-invariant."""

from collections.abc import Iterator
from math import isfinite

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.judged_layers import Layers
from gyroscope.advice.phrases import format_number
from gyroscope.advice.run_view import RunView


def scale_sensitive(layers: Layers[RunView]) -> Iterator[Finding]:
    """Judge layers that miss their prediction because of λ_u."""
    sensitive = layers.where(_is_sensitive).worst_first(lambda view: view.radial.factor)
    if not sensitive:
        return
    worst = sensitive[0]
    ratio = worst.mean(worst.norm_ratio)
    measured = f" It rotates {format_number(worst.rotation_ratio, 2)} times as far as predicted"
    if not isfinite(worst.rotation_ratio):
        measured = ""
    elif isfinite(ratio):
        measured += f" at {format_number(ratio, 2)} times the predicted norm."
    else:
        measured += "."
    subject = f"In {sensitive.label(worst)} the" if len(sensitive) > 1 else "The"
    lambda_u = format_number(worst.radial.lambda_u, 2)
    decay = (
        f"{subject} gradient acts like a weight decay of {lambda_u} (λ_u), added to the "
        f"{format_number(worst.judged_decay, 2)} that is set."
    )
    sentence = f"{sensitive.clause('is', 'are')} not scale-invariant, so predictions are rough. {decay}{measured}"
    evidence = {"lambda_u": worst.radial.lambda_u, "decay_error": worst.radial.decay_error}
    yield make_finding("scale_sensitive", "note", sentence, sensitive, evidence=evidence)


def _is_sensitive(view: RunView) -> bool:
    # A gradient along the weights does not explain the rotation of an optimizer that holds the norm and sets the angle.
    is_off = not view.keeps_norm and view.radial.is_significant and view.radial.factor > limit.MAX_DECAY_ERROR
    return is_off and _effect(view) > limit.MIN_SENSITIVE_EFFECT


def _effect(view: RunView) -> float:
    """Return the factor by which the rotation or the norm misses its prediction."""
    ratios = [ratio for ratio in (view.rotation_ratio, view.mean(view.norm_ratio)) if ratio > 0]
    return max((max(ratio, 1 / ratio) for ratio in ratios), default=1.0)
