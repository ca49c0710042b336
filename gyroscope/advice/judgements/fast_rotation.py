"""Layers whose equilibrium turns very fast, in a plan, a run or a checkpoint."""

from collections.abc import Iterator, Sequence

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.layer_view import LayerView
from gyroscope.advice.phrases import clause, span
from gyroscope.advice.remedies import LOWER_RATE


def fast_rotation(views: Sequence[LayerView]) -> Iterator[Finding]:
    """Judge the rotation that the settings of each layer lead to."""
    fast = {view.name: view.predicted_rotation for view in views if view.predicted_rotation > limit.MAX_ROTATION}
    if fast:
        sentence = (
            f"{clause(list(fast), 'turns', 'turn')} {span(fast.values(), 2)} rad per step in equilibrium, which is "
            "very fast."
        )
        yield make_finding(
            "fast_rotation", "warn", sentence, fast, LOWER_RATE, evidence={"angular_update": max(fast.values())}
        )
