"""The judgements on a run, in order."""

from collections.abc import Sequence

import numpy as np

from gyroscope.advice.findings import Diagnosis, Finding
from gyroscope.advice.history import LayerHistory, Record, layer_histories
from gyroscope.advice.incidents.incident_findings import incident_findings
from gyroscope.advice.judgements.as_predicted import as_predicted
from gyroscope.advice.judgements.dead_vectors import dead_vectors
from gyroscope.advice.judgements.fast_rotation import fast_rotation
from gyroscope.advice.judgements.fell_out import fell_out
from gyroscope.advice.judgements.frozen_entries import frozen_entries
from gyroscope.advice.judgements.layer_imbalance import layer_imbalance
from gyroscope.advice.judgements.neuron_imbalance import neuron_imbalance
from gyroscope.advice.judgements.not_finite import diverged, non_finite_vectors, recovered
from gyroscope.advice.judgements.not_measured import not_measured, too_short, undecided
from gyroscope.advice.judgements.over_rotation import fast_start
from gyroscope.advice.judgements.rising_loss import rising_loss
from gyroscope.advice.judgements.scale_sensitive import scale_sensitive
from gyroscope.advice.judgements.short_memory import shorter_than_memory, without_decay
from gyroscope.advice.judgements.transient import transient
from gyroscope.advice.judgements.unstable_betas import unstable_betas
from gyroscope.advice.run_view import RunView, speeds_in_groups, warmups_from_start

# Kinds of findings from before a divergence that may explain it; the others speak of a run that goes on.
CAUSES = ("incident", "unstable_betas", "over_rotation", "fast_rotation")


def diagnose(record: Record) -> Diagnosis:
    """Return what a run's measurements mean: sentences with numbers and a remedy, worst first.

    Only what the record holds the numbers for is judged. A run too short to judge gets that finding and no other. If a
    run diverged, what it did before is judged as far as it may be the cause.
    """
    histories = layer_histories(record)
    events = incident_findings(record)
    lost = {history.name: history.lost for history in histories if history.lost.any()}
    if not lost:
        return Diagnosis(_findings(record, histories, events))
    first = min(int(samples.argmax()) for samples in lost.values())
    # Findings about a run that goes on, "train on" among them, do not apply to one that cannot.
    if any(history.diverged for history in histories):
        earlier = [event for event in events if event.evidence["step"] <= record.steps[first]]
        before = _findings(record, layer_histories(record, first), earlier)
        return Diagnosis([diverged(record, lost, first), *(finding for finding in before if finding.kind in CAUSES)])
    others = [finding for finding in _findings(record, histories, events) if finding.kind not in ("well", "too_short")]
    return Diagnosis([recovered(record, lost, first), *others])


def _findings(record: Record, histories: Sequence[LayerHistory], events: Sequence[Finding]) -> list[Finding]:
    """Judge a run whose numbers are finite, as far as these histories go; `events` is what happened in it."""
    # Embeddings are drawn, and not judged: a rare token stands still, decays and turns late, and nothing is wrong.
    judged = [history for history in histories if not history.is_embedding] or histories
    layers = [RunView(history) for history in judged]
    short = list(too_short(layers))
    if short:
        return short
    views = [view for view in layers if np.isfinite(view.history.angle).any()]
    # Layers whose norm another force holds are not in transient, and do not count for the balance.
    explained = [*scale_sensitive(views), *frozen_entries(views)]
    explained_layers = {name for finding in explained for name in finding.layers}
    usual = [view for view in views if view.name not in explained_layers]
    settled = [view for view in usual if view.norm_state not in ("transient", "short", "no decay")]
    steps = float(views[0].history.steps[-1]) + 1
    findings = [
        *explained,
        *transient(usual),
        *without_decay(views),
        *shorter_than_memory(views, steps, so_far=getattr(record, "status", "finished") == "running"),
        *fell_out(usual),
        *fast_start(views, _has_warmup, warmups_from_start, happened=True),
        *fast_rotation(views),
        *layer_imbalance(speeds_in_groups(settled)),
        *neuron_imbalance(usual),
        *dead_vectors(views),
        *unstable_betas(views),
        *non_finite_vectors(views),
        *not_measured(layers),
        *rising_loss(record),
        *events,
    ]
    if not any(finding.severity in ("bad", "warn") for finding in findings):
        findings += as_predicted(usual, len(views))
    return findings or [undecided(views)]


def _has_warmup(view: RunView) -> int:
    # The first sample at the peak rate ends the warmup.
    return int(view.history.steps[view.history.peak])
