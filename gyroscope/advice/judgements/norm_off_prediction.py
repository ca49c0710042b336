"""Layers of a checkpoint whose norm is not that of equilibrium at the rate of the last step."""

from collections.abc import Iterator, Sequence

from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.judgements.short_memory import views_shorter_than_memory
from gyroscope.advice.layer_view import CheckpointView
from gyroscope.advice.phrases import clause, span


def norm_off_prediction(views: Sequence[CheckpointView], step: int | None) -> Iterator[Finding]:
    """Judge layers that had time to settle."""
    short = {view.name for view in views_shorter_than_memory(views, step)}
    far = [view for view in views if view.norm_state == "far" and view.name not in short]
    if far:
        names = [view.name for view in far]
        ratios = [view.norm_ratio for view in far]
        sentence = (
            f"{clause(names, 'is', 'are')} at {span(ratios, 2)} times the norm of equilibrium at the rate of the last "
            "step."
        )
        evidence = {"smallest_ratio": min(ratios), "largest_ratio": max(ratios)}
        yield make_finding("off_prediction", "note", sentence, names, evidence=evidence)
