"""The judgements on a run, in order."""

from collections.abc import Sequence

from gyroscope.advice.findings import Diagnosis, Finding
from gyroscope.advice.incidents.incident_findings import incident_findings
from gyroscope.advice.judged_layers import Layers
from gyroscope.advice.judgements import equilibrium, failed, fast, gradient_signal, imbalance, optimizer_options, slow
from gyroscope.advice.judgements import unknown as not_known
from gyroscope.advice.judgements.as_predicted import as_predicted
from gyroscope.advice.judgements.rising_loss import rising_loss
from gyroscope.advice.record import Record
from gyroscope.advice.run_view import RunView, speeds_in_groups, warmups_from_start
from gyroscope.advice.summary import summarize

# Kinds of findings from before a divergence that may explain it. The others are about a run that continues.
CAUSES = ("incident", "unstable_betas", "over_rotation", "fast_rotation")


def diagnose(record: Record) -> Diagnosis:
    """Return what a run's measurements mean: a summary, then sentences with numbers and a remedy, worst first.

    It judges only what the record has numbers for. A run too short to judge gets only that finding. If a run diverged,
    only findings that may be the cause are added.
    """
    views = _views(record)
    findings = Diagnosis(_findings(record, views))
    measured = _judged(views).where(lambda view: view.is_measured)
    steps = max((float(view.step_count) for view in views), default=0.0) or None
    return Diagnosis(findings, summarize(measured, findings, steps, is_running=_is_running(record)))


def _views(record: Record, samples: int | None = None) -> list[RunView]:
    return [RunView(record, name, samples) for name in record.layers]


def _findings(record: Record, views: Sequence[RunView]) -> list[Finding]:
    """Judge a run that may have diverged."""
    events = incident_findings(record)
    lost = {view.name: view.lost for view in views if view.lost.any()}
    if not lost:
        return _finite_findings(record, views, events)
    first = min(int(samples.argmax()) for samples in lost.values())
    # Findings about a run that continues, such as "train on", do not apply to one that cannot.
    if any(view.diverged for view in views):
        earlier = [event for event in events if event.evidence["step"] <= record.steps[first]]
        before = _finite_findings(record, _views(record, first), earlier)
        return [failed.diverged(record, lost, first), *(each for each in before if each.kind in CAUSES)]
    others = [each for each in _finite_findings(record, views, events) if each.kind not in ("well", "too_short")]
    return [failed.recovered(record, lost, first), *others]


def _judged(views: Sequence[RunView]) -> Layers[RunView]:
    """Return all layers except embeddings, in which rare tokens rotate late without anything being wrong."""
    return Layers([view for view in views if not view.is_embedding] or views)


def _finite_findings(record: Record, views: Sequence[RunView], events: Sequence[Finding]) -> list[Finding]:
    """Judge the finite part of a run. `events` are its incidents."""
    layers = _judged(views)
    short = list(not_known.too_short(layers))
    if short:
        return short
    measured = layers.where(lambda view: view.is_measured)
    # Layers whose norm is held by another force are not in transient and do not count for the balance.
    explained = [*gradient_signal.scale_sensitive(measured), *slow.frozen_entries(measured)]
    usual = _without(measured, explained)
    missed = list(optimizer_options.missed_angle(usual))
    findings = [
        *explained,
        *equilibrium.transient(usual),
        *equilibrium.without_decay(measured),
        *equilibrium.shorter_than_memory(measured, so_far=_is_running(record)),
        *slow.fell_out(usual),
        *slow.stopped(measured),
        *slow.switched_off(measured),
        *missed,
        *fast.fast_start(measured, _has_warmup, warmups_from_start, happened=True),
        *fast.fast_rotation(measured),
        *imbalance.layer_imbalance(layers, speeds_in_groups(_balanced(usual))),
        *imbalance.neuron_imbalance(usual),
        *slow.dead_vectors(measured),
        *optimizer_options.unstable_betas(measured),
        *failed.non_finite_vectors(measured),
        *not_known.not_measured(layers),
        *not_known.unpredicted(layers, getattr(record, "notes", ())),
        *rising_loss(record),
        *events,
    ]
    if not any(finding.severity in ("bad", "warn") for finding in findings):
        findings += as_predicted(_without(usual, missed), len(measured))
    return findings or [not_known.undecided(measured)]


def _without(layers: Layers[RunView], findings: Sequence[Finding]) -> Layers[RunView]:
    """Return the layers that none of these findings is about."""
    names = {name for finding in findings for name in finding.layers}
    return layers.where(lambda view: view.name not in names)


def _balanced(layers: Layers[RunView]) -> Layers[RunView]:
    """Return the layers that can be compared. The rotation of the others depends on their initial norms."""
    return layers.where(lambda view: view.norm_state not in ("transient", "short", "no decay"))


def _is_running(record: Record) -> bool:
    return getattr(record, "status", "finished") == "running"


def _has_warmup(view: RunView) -> int:
    # The first sample at the peak rate ends the warmup.
    return int(view.steps[view.peak])
