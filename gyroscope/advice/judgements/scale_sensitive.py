"""Layers whose norm the gradient pulls in or pushes out, by λ_u.

A fact: networks train well with such layers, and in a transformer every matrix is one.
"""

from collections.abc import Iterator, Sequence
from math import isfinite

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.layer_view import CheckpointView
from gyroscope.advice.phrases import clause, sig
from gyroscope.advice.run_view import RunView

RADIAL = "λ_u = [⟨w,u⟩(1-β1(1-a)) + β1·lr·‖u‖²]/((1-β1)‖w‖²) (docs/theory.md)"


def scale_sensitive(views: Sequence[RunView]) -> Iterator[Finding]:
    """Judge a run: layers that miss their prediction because of λ_u."""
    sensitive = [
        view
        for view in views
        if view.radial.is_significant
        and view.radial.factor > limit.MAX_DECAY_ERROR
        and _effect(view) > limit.MIN_SENSITIVE_EFFECT
    ]
    if not sensitive:
        return
    sensitive.sort(key=lambda view: -view.radial.factor)
    worst = sensitive[0]
    ratio = worst.history.mean(worst.history.norm_ratio)
    measured = f"; it turns {sig(worst.rotation_ratio, 2)} times as far as predicted"
    if not isfinite(worst.rotation_ratio):
        measured = ""
    elif isfinite(ratio):
        measured += f" at {sig(ratio, 2)} times the norm"
    names = [view.name for view in sensitive]
    decay = _beside_decay(worst.name, names, "acts", worst.radial.lambda_u, worst.weight_decay)
    yield make_finding(
        "scale_sensitive",
        "note",
        f"{clause(names, 'is', 'are')} not scale-invariant, so predictions are rough: {decay}{measured}.",
        names,
        evidence={"lambda_u": worst.radial.lambda_u, "decay_error": worst.radial.decay_error},
    )


def scale_sensitive_at_last(views: Sequence[CheckpointView]) -> Iterator[Finding]:
    """Judge a checkpoint: layers along whose weights the momentum pushes otherwise than tangent gradients would."""
    sure = {
        view: view.rule.weight_decay
        for view in views
        if view.rule is not None
        and view.rule.weight_decay > 0
        and abs(view.lambda_u) > limit.MIN_STANDARD_ERRORS * view.lambda_u_error
        and abs(view.lambda_u) > (limit.MAX_DECAY_ERROR - 1) * view.rule.weight_decay
    }
    if not sure:
        return
    worst = max(sure, key=lambda view: abs(view.lambda_u))
    names = [view.name for view in sure]
    decay = _beside_decay(worst.name, names, "acted", worst.lambda_u, sure[worst])
    yield make_finding(
        "scale_sensitive",
        "note",
        f"{clause(names, 'is', 'are')} not scale-invariant, or gradients have changed of late: {decay}.",
        names,
        formula=RADIAL,
        evidence={"lambda_u": worst.lambda_u, "standard_error": worst.lambda_u_error},
    )


def _effect(view: RunView) -> float:
    """Return the factor by which rotation or norm miss their prediction."""
    ratios = [ratio for ratio in (view.rotation_ratio, view.history.mean(view.history.norm_ratio)) if ratio > 0]
    return max((max(ratio, 1 / ratio) for ratio in ratios), default=1.0)


def _beside_decay(worst: str, names: Sequence[str], acts: str, lambda_u: float, decay: float) -> str:
    """Return λ_u of the worst layer beside its weight decay, in words."""
    where = f"in {worst} " if len(names) > 1 else ""
    return f"{where}the gradient {acts} as λ_u = {sig(lambda_u, 2)} beside a weight decay of {sig(decay, 2)}"
