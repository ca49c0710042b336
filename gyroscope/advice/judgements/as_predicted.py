"""Layers that rotate as predicted. A green finding means only that, and does not judge training."""

from collections.abc import Iterator, Sequence
from math import isfinite

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, Severity, make_finding
from gyroscope.advice.judged_layers import Layers
from gyroscope.advice.layer_view import CheckpointView, LayerView
from gyroscope.advice.norm_state import course_from_start
from gyroscope.advice.phrases import format_number, format_range, memories_text
from gyroscope.advice.run_view import RunView

# Added to every green finding, because runs that rotated as predicted have ended with a poor loss.
NO_JUDGEMENT = "This does not judge the loss."


def as_predicted(layers: Layers[RunView], total: int) -> Iterator[Finding]:
    """Judge how closely layers rotate as predicted: those of all `total` layers that no other finding explains."""
    known = layers.where(lambda view: view.rotation_ratio > 0)
    if not known:
        return
    ratios = [view.rotation_ratio for view in known]
    error = _largest_error(ratios)
    angles = f"{format_range([view.rotation for view in known], 2)} rad per step"
    evidence = {"largest_error": error, "slowest": min(ratios), "fastest": max(ratios)}
    context = _context(known)
    if 1 + error > limit.MAX_AS_PREDICTED_RATIO:
        rotates = known.clause("rotates", "rotate")
        sentence = f"{rotates} {format_range(ratios, 2)} times as far as predicted, {angles}.{context}"
        yield make_finding("off_prediction", "note", sentence, known, evidence=evidence)
        return
    count = f"All {total}" if len(known) == total else f"{len(known)} of {total}"
    rotate = f"{known.label(known[0])} rotates" if total == 1 else f"{count} layers rotate"
    earlier = ", or did before falling out" if layers.in_state("fell out") else ""
    within = f"within {format_number(100 * error, 2)} %"
    sentence = f"{rotate} as predicted{earlier}, {within}: {angles}.{context} {NO_JUDGEMENT}"
    yield make_finding("well", _green(known), sentence, known, evidence=evidence)


def last_step_as_predicted(layers: Layers[CheckpointView]) -> Iterator[Finding]:
    """Judge how closely the last step of a checkpoint is as predicted."""
    known = layers.where(lambda view: isfinite(view.rotation_ratio) and view.rotation_ratio > 0)
    error = _largest_error([view.rotation_ratio for view in known])
    if not known or 1 + error > limit.MAX_AS_PREDICTED_RATIO:
        return
    angles = format_range([view.rotation for view in known], 2)
    sentence = (
        f"In the last step {len(known)} of {len(layers)} layers rotated as predicted, within "
        f"{format_number(100 * error, 2)} %: {angles} rad. {NO_JUDGEMENT}"
    )
    yield make_finding("well", _green(known), sentence, known, evidence={"largest_error": error})


def _largest_error(ratios: Sequence[float]) -> float:
    return max((max(ratio, 1 / ratio) for ratio in ratios), default=1.0) - 1


def _green(views: Sequence[LayerView]) -> Severity:
    # An optimizer that sets the angle always rotates by it, so this is not a green finding.
    return "note" if all(view.keeps_norm for view in views) else "good"


def _context(layers: Layers[RunView]) -> str:
    """Return the run length and what the prediction is, or the speed of a rotational optimizer's base rule.

    It begins with a space, and is empty if the run length is unknown.
    """
    lasting = [view for view in layers if view.run_length > 0]
    if not lasting:
        return ""
    length = f" Run length: {memories_text(lasting)}."
    for view in layers:
        ratio = _base_speed(view)
        # Hyperball is its own plain rule.
        if ratio is not None and view.rule is not None and not view.rule.keeps_norm:
            base = f"{view.rule.name} with these settings would rotate {layers.label(view)}"
            return f"{length} {base} {format_number(ratio, 2)} times as fast on average."
    references = " and ".join(dict.fromkeys(view.reference for view in layers))
    return f" The prediction is the {references}.{length}"


def _base_speed(view: RunView) -> float | None:
    """Return how many times as fast the plain rule would rotate a layer under a rotational optimizer.

    The mean is over the run, from the same norms. None if the optimizer follows the plain rule.
    """
    if not view.keeps_norm or view.follows_base or view.rule is None:
        return None
    course = course_from_start(view, float(view.steps[0]), float(view.steps[-1]) + 1)
    return None if course is None else float(course.angular_update.mean() / course.equilibrium_angular_update.mean())
