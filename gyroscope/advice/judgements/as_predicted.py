"""Layers that turn as predicted. Only closeness is green, and it says nothing of training."""

from collections.abc import Iterator, Sequence
from math import isfinite

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, Severity, make_finding
from gyroscope.advice.layer_view import CheckpointView, LayerView
from gyroscope.advice.norm_state import course_from_start
from gyroscope.advice.phrases import clause, sig, span
from gyroscope.advice.run_view import RunView

# Beside every green: runs that turned as predicted have ended with a poor loss.
NO_JUDGEMENT = "This compares rotation with theory; whether training is good, the loss says."
ONE_STEP = "This is one step of a run; whether training is good, the loss says."


def as_predicted(views: Sequence[RunView], total: int) -> Iterator[Finding]:
    """Judge how closely layers of a run turn as predicted: those of all `total` that no other finding explains."""
    known = [view for view in views if view.rotation_ratio > 0]
    if not known:
        return
    ratios = [view.rotation_ratio for view in known]
    error = _largest_error(ratios)
    names = [view.name for view in known]
    angles = f"{span([view.history.rms(view.history.rms_angle) for view in known], 2)} rad per step"
    evidence = {"largest_error": error, "slowest": min(ratios), "fastest": max(ratios)}
    context = _context(known)
    if 1 + error > limit.MAX_AS_PREDICTED_RATIO:
        sentence = f"{clause(names, 'turns', 'turn')} {span(ratios, 2)} times as predicted, {angles}.{context}"
        yield make_finding("off_prediction", "note", sentence, names, evidence=evidence)
        return
    count = f"All {total}" if len(known) == total else f"{len(known)} of {total}"
    turn = f"{names[0]} turns" if total == 1 else f"{count} layers turn"
    earlier = ", or did before falling out" if any(view.norm_state == "fell out" for view in views) else ""
    sentence = f"{turn} as predicted{earlier}, within {sig(100 * error, 2)} %: {angles}.{context} {NO_JUDGEMENT}"
    yield make_finding("well", _green(known), sentence, names, evidence=evidence)


def last_step_as_predicted(views: Sequence[CheckpointView]) -> Iterator[Finding]:
    """Judge how closely the last step of a checkpoint is as predicted."""
    known = [view for view in views if isfinite(view.rotation_ratio) and view.rotation_ratio > 0]
    error = _largest_error([view.rotation_ratio for view in known])
    if not known or 1 + error > limit.MAX_AS_PREDICTED_RATIO:
        return
    sentence = (
        f"In the last step {len(known)} of {len(views)} layers turned as predicted, within {sig(100 * error, 2)} %: "
        f"{span([view.rotation for view in known], 2)} rad. {ONE_STEP}"
    )
    yield make_finding(
        "well", _green(known), sentence, [view.name for view in known], evidence={"largest_error": error}
    )


def _largest_error(ratios: Sequence[float]) -> float:
    return max((max(ratio, 1 / ratio) for ratio in ratios), default=1.0) - 1


def _green(views: Sequence[LayerView]) -> Severity:
    # An optimizer that sets the angle turns by it whatever training does: that earns no green.
    return "note" if all(view.keeps_norm for view in views) else "good"


def _context(views: Sequence[RunView]) -> str:
    """Return a sentence on X, the memory and the reference, or on the base rule of a rotational optimizer.

    It begins with a space, and is empty if X is unknown.
    """
    totals = [view.total_decay for view in views if view.total_decay > 0]
    if not totals:
        return ""
    steps = views[0].history.steps[-1] + 1
    memory = f"X = {span(totals, 2)}, a memory of {span([steps / total for total in totals], 2)} steps"
    for view in views:
        ratio = _base_speed(view)
        if ratio is not None and view.rule is not None:
            base = f"{view.rule.name} with these settings would turn {view.name}"
            return f" {memory}. {base} {sig(ratio, 2)} times as fast on average."
    references = " and ".join(dict.fromkeys(view.history.reference for view in views))
    return f" Compared with the {references}; {memory}."


def _base_speed(view: RunView) -> float | None:
    """Return how many times as fast the plain rule would turn a layer that a rotational optimizer turns.

    Over the run, from the same norms; None if the optimizer follows the plain rule.
    """
    history = view.history
    if not view.keeps_norm or history.follows_base or view.rule is None:
        return None
    course = course_from_start(history, float(history.steps[0]), float(history.steps[-1]) + 1)
    return None if course is None else float(course.angular_update.mean() / course.equilibrium_angular_update.mean())
