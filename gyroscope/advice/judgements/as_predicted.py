"""Layers that rotate as predicted, and why others do not. A green finding does not judge training."""

from collections.abc import Iterator, Sequence
from math import inf, isfinite

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, Severity, make_finding
from gyroscope.advice.layer_facts import LayerFacts, Layers
from gyroscope.advice.phrases import format_number, format_range

# Added to every green finding, because runs that rotated as predicted have ended with a poor loss.
NO_JUDGEMENT = "This does not judge the loss."


def as_predicted(layers: Layers, total: int) -> Iterator[Finding]:
    """Judge how closely layers rotate as predicted: those of all `total` layers that no other finding explains."""
    known = layers.where(lambda layer: layer.rotation_ratio > 0)
    if not known:
        return
    ratios = [layer.rotation_ratio for layer in known]
    error = _largest_error(ratios)
    angles = f"{format_range([layer.rotation for layer in known], 2)} rad per step"
    by = f"by the {' and the '.join(dict.fromkeys(layer.reference for layer in known))}"
    evidence = {"largest_error": error, "slowest": min(ratios), "fastest": max(ratios)}
    if 1 + error > limit.MAX_AS_PREDICTED_RATIO:
        rotates = known.clause("rotates", "rotate")
        sentence = f"{rotates} {format_range(ratios, 2)} times as far as predicted {by}, {angles}."
        yield make_finding("off_prediction", "note", sentence, known, evidence=evidence)
        return
    count = f"All {total}" if len(known) == total else f"{len(known)} of {total}"
    rotate = f"{known.label(known[0])} rotates" if total == 1 else f"{count} layers rotate"
    within = f"within {format_number(100 * error, 2)} %"
    sentence = f"{rotate} as predicted {by}, {within}: {angles}. {NO_JUDGEMENT}"
    yield make_finding("well", _green(known), sentence, known, evidence=evidence)


def last_step_as_predicted(layers: Layers) -> Iterator[Finding]:
    """Judge how closely the last step of a checkpoint is as predicted."""
    known = layers.where(lambda layer: isfinite(layer.rotation_ratio) and layer.rotation_ratio > 0)
    error = _largest_error([layer.rotation_ratio for layer in known])
    if not known or 1 + error > limit.MAX_AS_PREDICTED_RATIO:
        return
    angles = format_range([layer.rotation for layer in known], 2)
    sentence = (
        f"In the last step {len(known)} of {len(layers)} layers rotated as predicted, within "
        f"{format_number(100 * error, 2)} %: {angles} rad. {NO_JUDGEMENT}"
    )
    yield make_finding("well", _green(known), sentence, known, evidence={"largest_error": error})


def _largest_error(ratios: Sequence[float]) -> float:
    return max((max(ratio, 1 / ratio) for ratio in ratios), default=1.0) - 1


def _green(layers: Layers) -> Severity:
    # An optimizer that sets the angle always rotates by it, so this is not a green finding.
    return "note" if all(layer.sets_angle for layer in layers) else "good"


def scale_sensitive(layers: Layers) -> Iterator[Finding]:
    """Judge layers that miss their prediction because of a gradient along the weights, λ_u."""
    sensitive = layers.where(is_scale_sensitive).worst_first(_decay_factor)
    if not sensitive:
        return
    worst = sensitive[0]
    subject = f"In {sensitive.label(worst)} the" if len(sensitive) > 1 else "The"
    sentence = (
        f"{sensitive.clause('is', 'are')} not scale-invariant, so predictions are rough. {subject} gradient acts like "
        f"a weight decay of {format_number(worst.lambda_u, 2)} (λ_u), which makes the effective one "
        f"{format_number(worst.decay_error, 2)} times the one that is set."
    )
    evidence = {"lambda_u": worst.lambda_u, "decay_error": worst.decay_error}
    yield make_finding("scale_sensitive", "note", sentence, sensitive, evidence=evidence)


def is_scale_sensitive(layer: LayerFacts) -> bool:
    """Return whether a gradient along the weights explains that a layer misses its predicted rotation or norm."""
    # It does not explain the rotation of an optimizer that holds the norm and sets the angle.
    is_pushed = not layer.sets_angle and _decay_factor(layer) > limit.MAX_DECAY_ERROR
    ratios = [ratio for ratio in (layer.rotation_ratio, layer.norm_ratio) if ratio > 0]
    return is_pushed and 1 + _largest_error(ratios) > limit.MIN_SENSITIVE_EFFECT


def _decay_factor(layer: LayerFacts) -> float:
    """Return λ_e/λ or its inverse, whichever is above 1. Infinite if the gradient outweighs the decay."""
    return inf if layer.decay_error <= 0 else max(layer.decay_error, 1 / layer.decay_error)
