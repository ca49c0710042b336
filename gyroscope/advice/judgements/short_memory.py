"""Too little decay: layers that never forget their start, or not within the run. A fact."""

from collections.abc import Iterator, Sequence
from math import isfinite

from gyroscope.advice import phrases
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.layer_view import CheckpointView, LayerView
from gyroscope.advice.phrases import TOTAL_DECAY, listed, span
from gyroscope.theory.convergence import MEMORY_PASSED


def without_decay(views: Sequence[LayerView]) -> Iterator[Finding]:
    """Judge layers that do not decay at all."""
    members = [view for view in views if view.norm_state == "no decay"]
    if members:
        yield _finding(phrases.no_decay([view.name for view in members]), members, 0.0)


def shorter_than_memory(views: Sequence[LayerView], steps: float, *, so_far: bool = False) -> Iterator[Finding]:
    """Judge a plan or a run of so many steps."""
    members = [view for view in views if view.norm_state == "short"]
    if members:
        totals = [view.total_decay for view in members]
        sentence = phrases.shorter_than_memory([view.name for view in members], totals, steps, so_far=so_far)
        yield _finding(sentence, members, min(totals))


def short_at_last_rate(views: Sequence[CheckpointView], step: int | None) -> Iterator[Finding]:
    """Judge a checkpoint after so many steps, by the rate of the last one."""
    members = views_shorter_than_memory(views, step)
    if members and step is not None:
        names = [view.name for view in members]
        totals = [step / view.timescale for view in members]
        sentence = (
            f"At the rate of the last step, {step:,} steps are less than the memory of {listed(names)}: X = "
            f"{span(totals, 2)} (below 1). Norms may still be near their start."
        )
        yield _finding(sentence, members, min(totals))


def views_shorter_than_memory(views: Sequence[CheckpointView], step: int | None) -> list[CheckpointView]:
    """Return the layers that had no time to settle."""
    return [
        view
        for view in views
        if step is not None
        and not view.keeps_norm
        and isfinite(view.timescale)
        and step / view.timescale < MEMORY_PASSED
    ]


def _finding(sentence: str, views: Sequence[LayerView], total_decay: float) -> Finding:
    evidence = {"total_decay": total_decay}
    ratios = [view.rotation_ratio for view in views if isfinite(view.rotation_ratio)]
    if ratios:
        evidence |= {"slowest": min(ratios), "fastest": max(ratios)}
    names = [view.name for view in views]
    return make_finding("short_memory", "note", sentence, names, formula=TOTAL_DECAY, evidence=evidence)
