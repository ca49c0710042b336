"""Training that failed: weights or gradients that are not finite."""

from collections.abc import Iterator, Mapping

import numpy as np

from gyroscope._types import Mask
from gyroscope.advice.findings import Finding, Remedy, make_finding
from gyroscope.advice.incidents.incident_findings import MARKS
from gyroscope.advice.judged_layers import Layers
from gyroscope.advice.layer_families import describe_layers
from gyroscope.advice.layer_view import CheckpointView
from gyroscope.advice.phrases import format_number
from gyroscope.advice.record import Record
from gyroscope.advice.remedies import FIND_NAN, GO_BACK
from gyroscope.advice.run_view import RunView


def diverged(record: Record, lost: Mapping[str, Mask], first: int) -> Finding:
    """Judge a run that stays that way. `lost` marks the lost samples of each layer, and `first` is the earliest."""
    finite = f"The last finite sample is from step {int(record.steps[first - 1]):,}" if first else "No sample is finite"
    sentence = (
        f"The run diverged: at step {int(record.steps[first]):,} weights or gradients of "
        f"{_first_lost(record, lost, first)} are not finite, and {len(lost)} of {len(record.layers)} layers do not "
        f"recover. {finite}."
    )
    return _not_finite(record, lost, first, sentence, GO_BACK)


def recovered(record: Record, lost: Mapping[str, Mask], first: int) -> Finding:
    """Judge a run that was not finite for a while."""
    count = int(np.any(list(lost.values()), axis=0).sum())
    sentence = (
        f"At step {int(record.steps[first]):,} weights or gradients of {_first_lost(record, lost, first)} were not "
        f"finite. {count:,} of {len(record.steps):,} samples of {len(lost)} of {len(record.layers)} layers are lost, "
        "and later ones are finite again."
    )
    return _not_finite(record, lost, first, sentence, FIND_NAN)


def _first_lost(record: Record, lost: Mapping[str, Mask], first: int) -> str:
    names = [name for name, samples in lost.items() if samples[first]]
    return describe_layers(names, list(record.layers), worst=False)


def _not_finite(record: Record, lost: Mapping[str, Mask], first: int, sentence: str, remedy: Remedy) -> Finding:
    names = sorted(lost, key=lambda name: int(lost[name].argmax()))
    step = float(record.steps[first])
    return make_finding("diverged", "bad", sentence, names, remedy, mark=MARKS["not_finite"], evidence={"step": step})


def non_finite_vectors(layers: Layers[RunView]) -> Iterator[Finding]:
    """Judge layers with some vectors that are not finite at the end. If all vectors are, the run has diverged."""
    lost = layers.where(lambda view: view.non_finite_share > 0)
    if not lost:
        return
    worst = max(lost, key=lambda view: view.non_finite_share)
    firsts = [int(np.flatnonzero(view.series("non_finite") > 0)[0]) for view in lost]
    step = float(layers[0].steps[min(firsts)])
    sentence = (
        f"{lost.clause('has', 'have')} vectors that are not finite since step {step:,.0f}: "
        f"{format_number(100 * worst.non_finite_share, 2)} % of {lost.label(worst)} at the end."
    )
    evidence = {"step": step, "worst_share": worst.non_finite_share}
    yield make_finding("diverged", "bad", sentence, lost, GO_BACK, evidence=evidence)


def non_finite_state(layers: Layers[CheckpointView]) -> Iterator[Finding]:
    """Judge the weights and the optimizer state of a checkpoint."""
    lost = layers.where(lambda view: view.non_finite > 0)
    if lost:
        count = sum(view.non_finite for view in lost)
        has = lost.clause("has", "have")
        sentence = f"{has} vectors with weights or optimizer state that are not finite, {count:,} in all."
        yield make_finding("diverged", "bad", sentence, lost, GO_BACK, evidence={"vectors": float(count)})
