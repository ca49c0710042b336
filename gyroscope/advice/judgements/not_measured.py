"""What a run does not tell: it is too short, a layer was not measured, or theory predicts nothing for it."""

from collections.abc import Iterator, Sequence

import numpy as np

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.phrases import clause
from gyroscope.advice.remedies import CHECK_LAYER, CHECK_RULE, MEASURE_LONGER
from gyroscope.advice.run_view import RunView


def too_short(views: Sequence[RunView]) -> Iterator[Finding]:
    """Judge the number of samples and of steps."""
    measured = [view for view in views if np.isfinite(view.history.angle).any()]
    samples = max((int(np.isfinite(view.history.angle).sum()) for view in measured), default=0)
    steps = max((int(view.history.steps[-1]) + 1 for view in views if len(view.history.steps)), default=0)
    memories = [view.rule.momentum_memory for view in measured if view.rule is not None]
    needed = round(limit.MIN_MOMENTUM_MEMORIES * max(memories, default=limit.UNKNOWN_MOMENTUM_MEMORY))
    if samples < limit.MIN_SAMPLES or steps < needed:
        sentence = (
            f"Too short to judge: {samples:,} samples in {steps:,} steps; it takes {limit.MIN_SAMPLES} samples and "
            f"{needed:,} steps, {limit.MIN_MOMENTUM_MEMORIES} memories of the momentum."
        )
        evidence = {"samples": float(samples), "steps": float(steps)}
        yield make_finding("too_short", "note", sentence, (), MEASURE_LONGER, evidence=evidence)


def not_measured(views: Sequence[RunView]) -> Iterator[Finding]:
    """Judge layers without a measurement, and those without a prediction."""
    silent = [view.name for view in views if not np.isfinite(view.history.angle).any()]
    if silent:
        sentence = f"{clause(silent, 'was', 'were')} never measured: no step with a gradient was seen."
        yield make_finding("not_measured", "note", sentence, silent, CHECK_LAYER)
    unpredicted = [view.name for view in views if not np.isfinite(view.history.predicted_angle).any()]
    unknown = [name for name in unpredicted if name not in silent]
    if unknown:
        sentence = f"{clause(unknown, 'has', 'have')} no prediction: theory does not know the optimizer's rule."
        yield make_finding("not_measured", "note", sentence, unknown, CHECK_RULE)


def undecided(views: Sequence[RunView]) -> Finding:
    """Judge a run in which nothing is wrong, and no layer has a prediction to compare with."""
    names = [view.name for view in views]
    sentence = (
        f"Nothing stands out, but {clause(names, 'cannot', 'cannot')} be confirmed either: there is no prediction to "
        "compare with."
    )
    return make_finding("not_measured", "note", sentence, names)
