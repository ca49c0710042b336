"""Weights or gradients that are not finite: at the end of a run, for a while, in some vectors, or in a checkpoint."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gyroscope._types import Mask
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.history import Record
from gyroscope.advice.incidents.incident_findings import MARKS
from gyroscope.advice.layer_view import CheckpointView
from gyroscope.advice.phrases import clause, listed, sig
from gyroscope.advice.remedies import GO_BACK
from gyroscope.advice.run_view import RunView


def diverged(record: Record, lost: Mapping[str, Mask], first: int) -> Finding:
    """Judge a run that stays so: `lost` marks the samples of each layer, of which `first` is the earliest."""
    finite = f"the last finite sample is of step {int(record.steps[first - 1]):,}" if first else "no sample is finite"
    sentence = (
        f"The run diverged: at step {int(record.steps[first]):,} weights or gradients of {_first_lost(lost, first)} "
        f"are not finite, and {len(lost)} of {len(record.layers)} layers stay so; {finite}."
    )
    return _not_finite(record, lost, first, sentence)


def recovered(record: Record, lost: Mapping[str, Mask], first: int) -> Finding:
    """Judge a run that was so for a while."""
    count = int(np.any(list(lost.values()), axis=0).sum())
    sentence = (
        f"At step {int(record.steps[first]):,} weights or gradients of {_first_lost(lost, first)} were not finite; "
        f"{count:,} of {len(record.steps):,} samples of {len(lost)} of {len(record.layers)} layers are lost, and later "
        "ones are finite again."
    )
    return _not_finite(record, lost, first, sentence)


def _first_lost(lost: Mapping[str, Mask], first: int) -> str:
    return listed([name for name, samples in lost.items() if samples[first]])


def _not_finite(record: Record, lost: Mapping[str, Mask], first: int, sentence: str) -> Finding:
    names = sorted(lost, key=lambda name: int(lost[name].argmax()))
    step = float(record.steps[first])
    return make_finding("diverged", "bad", sentence, names, GO_BACK, mark=MARKS["not_finite"], evidence={"step": step})


def non_finite_vectors(views: Sequence[RunView]) -> Iterator[Finding]:
    """Judge layers of which some vectors are so at the end of a run; if all are, the run has diverged."""
    shares = {view.name: view.history.series("non_finite") for view in views}
    ends = {name: share[np.isfinite(share)][-1:] for name, share in shares.items()}
    names = [name for name, end in ends.items() if end.size and end[0] > 0]
    if not names:
        return
    worst = max(names, key=lambda name: float(ends[name][0]))
    worst_share = float(ends[worst][0])
    step = float(views[0].history.steps[min(int(np.flatnonzero(shares[name] > 0)[0]) for name in names)])
    sentence = (
        f"{clause(names, 'has', 'have')} vectors that are not finite since step {step:,.0f}: "
        f"{sig(100 * worst_share, 2)} % of {worst} at the end."
    )
    yield make_finding("diverged", "bad", sentence, names, GO_BACK, evidence={"step": step, "worst_share": worst_share})


def non_finite_state(views: Sequence[CheckpointView]) -> Iterator[Finding]:
    """Judge the weights and the optimizer state of a checkpoint."""
    lost = [view for view in views if view.non_finite]
    if lost:
        names = [view.name for view in lost]
        count = sum(view.non_finite for view in lost)
        sentence = (
            f"{clause(names, 'has', 'have')} vectors with weights or optimizer state that are not finite, {count:,} in "
            "all."
        )
        yield make_finding("diverged", "bad", sentence, names, GO_BACK, evidence={"vectors": float(count)})
