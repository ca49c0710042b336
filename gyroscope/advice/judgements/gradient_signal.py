"""Gradients: signal and noise, and what they do to the norm of layers that are not scale-invariant."""

from collections.abc import Iterator
from math import isfinite

import numpy as np

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.judged_layers import Layers, View
from gyroscope.advice.layer_view import CheckpointView
from gyroscope.advice.phrases import format_number, format_range
from gyroscope.advice.run_view import RunView
from gyroscope.theory.signal import noise_scale

SIGNAL = "κ² = (M - qV)/(V - M), s = (M/V)/q, with M = Σm̂², V = Σv̂, q = (1-β1)/(1+β1) (docs/theory.md)"
RADIAL = "λ_u = [⟨w,u⟩(1-β1(1-a)) + β1·lr·‖u‖²]/((1-β1)‖w‖²) (docs/theory.md)"


def aligned_updates(layers: Layers[CheckpointView]) -> Iterator[Finding]:
    """Judge layers whose recent gradients agree."""
    high = layers.where(lambda view: view.alignment > limit.MAX_ALIGNMENT).worst_first(lambda view: view.alignment)
    if high:
        times = format_range([view.alignment for view in high], 2)
        sentence = (
            f"Recent gradients of {high.describe(worst=True)} agree. Updates have {times} times the mean square of "
            "noise. A doubled first moment (4 times) was seen before loss spikes, and in the first steps of any run."
        )
        evidence = {"alignment": high[0].alignment}
        yield make_finding("aligned_updates", "note", sentence, high, formula=SIGNAL, evidence=evidence)


def gradient_signal(layers: Layers[CheckpointView], batch_size: float | None) -> Iterator[Finding]:
    """State the signal-to-noise ratio of one batch, and the noise scale if the batch size is known."""
    known = layers.where(lambda view: isfinite(view.signal_ratio))
    if not known:
        return
    least = limit.MIN_SIGNAL_RATIO
    middle = float(np.median([view.signal_ratio for view in known]))
    most = max(known, key=lambda view: view.signal_ratio)
    scale = ""
    if batch_size is not None and middle > least:
        scale = f" The noise scale is about {format_number(noise_scale(middle, batch_size), 2)} examples."
    shown = f"{format_number(middle, 2)}" if middle > least else f"below {least:g}"
    sentence = (
        f"The signal-to-noise ratio of one batch (κ²) is {shown} in the median layer and "
        f"{format_number(most.signal_ratio, 2)} in {known.label(most)}.{scale}"
    )
    if most.signal_ratio < least:
        sentence = (
            f"No layer's gradient shows a signal above its noise. κ² is below {least:g}, or gradients have shrunk "
            "faster than the second moment forgets."
        )
    evidence = {"median": middle, "most": most.signal_ratio}
    yield make_finding("signal", "note", sentence, known, formula=SIGNAL, evidence=evidence)


def scale_sensitive(layers: Layers[RunView]) -> Iterator[Finding]:
    """Judge a run: layers that miss their prediction because of λ_u."""
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
    decay = _beside_decay(sensitive, worst, "acts", worst.radial.lambda_u, worst.judged_decay)
    sentence = f"{sensitive.clause('is', 'are')} not scale-invariant, so predictions are rough. {decay}{measured}"
    evidence = {"lambda_u": worst.radial.lambda_u, "decay_error": worst.radial.decay_error}
    yield make_finding("scale_sensitive", "note", sentence, sensitive, evidence=evidence)


def scale_sensitive_at_last(layers: Layers[CheckpointView]) -> Iterator[Finding]:
    """Judge a checkpoint: layers whose momentum has a part along the weights that tangent gradients do not explain."""
    sensitive = layers.where(_was_sensitive)
    if not sensitive:
        return
    worst = max(sensitive, key=lambda view: abs(view.lambda_u))
    decay = _beside_decay(sensitive, worst, "acted", worst.lambda_u, worst.rule.weight_decay if worst.rule else 0.0)
    sentence = f"{sensitive.clause('is', 'are')} not scale-invariant, or its gradients changed recently. {decay}"
    evidence = {"lambda_u": worst.lambda_u, "standard_error": worst.lambda_u_error}
    yield make_finding("scale_sensitive", "note", sentence, sensitive, formula=RADIAL, evidence=evidence)


def _is_sensitive(view: RunView) -> bool:
    # A gradient along the weights does not explain the rotation of an optimizer that holds the norm and sets the angle.
    is_off = not view.keeps_norm and view.radial.is_significant and view.radial.factor > limit.MAX_DECAY_ERROR
    return is_off and _effect(view) > limit.MIN_SENSITIVE_EFFECT


def _was_sensitive(view: CheckpointView) -> bool:
    decay = view.rule.weight_decay if view.rule is not None else 0.0
    is_significant = abs(view.lambda_u) > limit.MIN_STANDARD_ERRORS * view.lambda_u_error
    return decay > 0 and is_significant and abs(view.lambda_u) > (limit.MAX_DECAY_ERROR - 1) * decay


def _effect(view: RunView) -> float:
    """Return the factor by which the rotation or the norm misses its prediction."""
    ratios = [ratio for ratio in (view.rotation_ratio, view.mean(view.norm_ratio)) if ratio > 0]
    return max((max(ratio, 1 / ratio) for ratio in ratios), default=1.0)


def _beside_decay(layers: Layers[View], worst: View, acts: str, lambda_u: float, decay: float) -> str:
    """Return a sentence that compares λ_u of the worst layer with its weight decay."""
    subject = f"In {layers.label(worst)} the" if len(layers) > 1 else "The"
    amounts = (
        f"a weight decay of {format_number(lambda_u, 2)} (λ_u), added to the {format_number(decay, 2)} that is set"
    )
    return f"{subject} gradient {acts} like {amounts}."
