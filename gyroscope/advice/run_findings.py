"""The judgements on a run, in order."""

from collections.abc import Sequence

from gyroscope.advice.findings import Diagnosis, Finding
from gyroscope.advice.history import LayerHistory, Record, layer_histories
from gyroscope.advice.incidents.incident_findings import incident_findings
from gyroscope.advice.judged_layers import Layers
from gyroscope.advice.judgements.as_predicted import as_predicted
from gyroscope.advice.judgements.attention_jump import attention_jump
from gyroscope.advice.judgements.equilibrium import shorter_than_memory, transient, without_decay
from gyroscope.advice.judgements.fast import fast_rotation, fast_start
from gyroscope.advice.judgements.gradient_signal import scale_sensitive
from gyroscope.advice.judgements.imbalance import layer_imbalance, neuron_imbalance
from gyroscope.advice.judgements.not_finite import diverged, non_finite_vectors, recovered
from gyroscope.advice.judgements.rising_loss import rising_loss
from gyroscope.advice.judgements.rotational_optimizers import missed_angle
from gyroscope.advice.judgements.slow_end import fell_out, small_updates, stopped
from gyroscope.advice.judgements.still_weights import dead_vectors, frozen_entries
from gyroscope.advice.judgements.unknown import not_measured, too_short, undecided
from gyroscope.advice.judgements.unstable_betas import unstable_betas
from gyroscope.advice.run_view import RunView, speeds_in_groups, warmups_from_start
from gyroscope.advice.summary import summarize

# Kinds of findings from before a divergence that may explain it. The others are about a run that goes on.
CAUSES = ("incident", "unstable_betas", "over_rotation", "fast_rotation")


def diagnose(record: Record) -> Diagnosis:
    """Return what a run's measurements mean: a summary, then sentences with numbers and a remedy, worst first.

    It judges only what the record has numbers for. A run too short to judge gets that finding and no other. If a run
    diverged, what it did before is judged as far as it may be the cause.
    """
    histories = layer_histories(record)
    findings = Diagnosis(_findings(record, histories))
    layers = _judged(histories).where(lambda view: view.is_measured)
    steps = max((float(history.step_count) for history in histories), default=0.0) or None
    return Diagnosis(findings, summarize(layers, findings, steps, is_running=_is_running(record)))


def _findings(record: Record, histories: Sequence[LayerHistory]) -> list[Finding]:
    """Judge a run that may have diverged."""
    events = incident_findings(record)
    lost = {history.name: history.lost for history in histories if history.lost.any()}
    if not lost:
        return _finite_findings(record, histories, events)
    first = min(int(samples.argmax()) for samples in lost.values())
    # Findings about a run that goes on, "train on" among them, do not apply to one that cannot.
    if any(history.diverged for history in histories):
        earlier = [event for event in events if event.evidence["step"] <= record.steps[first]]
        before = _finite_findings(record, layer_histories(record, first), earlier)
        return [diverged(record, lost, first), *(finding for finding in before if finding.kind in CAUSES)]
    others = _finite_findings(record, histories, events)
    return [recovered(record, lost, first), *(each for each in others if each.kind not in ("well", "too_short"))]


def _judged(histories: Sequence[LayerHistory]) -> Layers[RunView]:
    """Return all layers but embeddings, in which a rare token rotates late and nothing is wrong."""
    return Layers(map(RunView, [history for history in histories if not history.is_embedding] or histories))


def _finite_findings(record: Record, histories: Sequence[LayerHistory], events: Sequence[Finding]) -> list[Finding]:
    """Judge a run whose numbers are finite, as far as these histories go. `events` is what happened in it."""
    layers = _judged(histories)
    short = list(too_short(layers))
    if short:
        return short
    measured = layers.where(lambda view: view.is_measured)
    # Layers whose norm another force holds are not in transient, and do not count for the balance.
    explained = [*scale_sensitive(measured), *frozen_entries(measured)]
    usual = _without(measured, explained)
    missed = list(missed_angle(usual))
    findings = [
        *explained,
        *transient(usual),
        *without_decay(measured),
        *shorter_than_memory(measured, so_far=_is_running(record)),
        *fell_out(usual),
        *stopped(measured),
        *small_updates(measured),
        *missed,
        *attention_jump(measured),
        *fast_start(measured, _has_warmup, warmups_from_start, happened=True),
        *fast_rotation(measured),
        *layer_imbalance(layers, speeds_in_groups(_balanced(usual))),
        *neuron_imbalance(usual),
        *dead_vectors(measured),
        *unstable_betas(measured),
        *non_finite_vectors(measured),
        *not_measured(layers),
        *rising_loss(record),
        *events,
    ]
    if not any(finding.severity in ("bad", "warn") for finding in findings):
        findings += as_predicted(_without(usual, missed), len(measured))
    return findings or [undecided(measured)]


def _without(layers: Layers[RunView], findings: Sequence[Finding]) -> Layers[RunView]:
    """Return the layers that none of these findings is about."""
    names = {name for finding in findings for name in finding.layers}
    return layers.where(lambda view: view.name not in names)


def _balanced(layers: Layers[RunView]) -> Layers[RunView]:
    """Return the layers that can be compared: the rotation of others follows their initial norms."""
    return layers.where(lambda view: view.norm_state not in ("transient", "short", "no decay"))


def _is_running(record: Record) -> bool:
    return getattr(record, "status", "finished") == "running"


def _has_warmup(view: RunView) -> int:
    # The first sample at the peak rate ends the warmup.
    return int(view.history.steps[view.history.peak])
