"""The judgements on a run, in order."""

from collections.abc import Callable, Sequence

import numpy as np

from gyroscope.advice.findings import Finding, Findings
from gyroscope.advice.history import LayerHistory, layer_histories
from gyroscope.advice.incidents.incident_findings import incident_findings
from gyroscope.advice.judgements import imbalance, optimizer_options, rotation_speed
from gyroscope.advice.judgements import unknown as not_known
from gyroscope.advice.judgements.as_predicted import as_predicted, scale_sensitive
from gyroscope.advice.judgements.failed import diverged
from gyroscope.advice.judgements.rising_loss import rising_loss
from gyroscope.advice.layer_facts import LayerFacts, Layers
from gyroscope.advice.record import Record
from gyroscope.advice.run_layer import is_measured, speeds_in_groups, warmups_from_start
from gyroscope.advice.summary import summarize

# Kinds of findings from before a divergence that may explain it. The others are about a run that continues.
CAUSES = ("incident", "unstable_betas", "over_rotation", "fast_rotation")


def diagnose(record: Record) -> Findings:
    """Return what a run's measurements mean: a summary, then sentences with numbers and a remedy, worst first.

    It judges only what the record has numbers for. A run too short to judge gets only that finding. If a run diverged,
    only findings that may be the cause are added.
    """
    histories = layer_histories(record)
    layers = _facts(_judged(histories))
    findings = Findings(_findings(record, histories, layers))
    steps = max((float(layer.step_count) for layer in histories), default=0.0)
    is_running = getattr(record, "status", "finished") == "running"
    return Findings(findings, summarize(layers, findings, steps, is_running=is_running))


def _findings(record: Record, histories: Sequence[LayerHistory], layers: Layers) -> list[Finding]:
    """Judge a run that may have diverged."""
    events = incident_findings(record)
    lost = {layer.name: layer.series("non_finite") for layer in histories}
    failed = list(diverged(lost, list(record.layers), np.asarray(record.steps).tolist()))
    # Findings about a run that continues, such as "train on", do not apply to one that cannot.
    if any(layer.diverged for layer in histories):
        step = failed[0].evidence["step"]
        earlier = [event for event in events if event.evidence["step"] <= step]
        before = layer_histories(record, int(np.searchsorted(record.steps, step)))
        causes = _finite_findings(record, before, _facts(_judged(before)), earlier)
        return [*failed, *(each for each in causes if each.kind in CAUSES)]
    others = _finite_findings(record, histories, layers, events)
    return [*failed, *(each for each in others if not failed or each.kind not in ("well", "too_short"))]


def _facts(judged: Sequence[LayerHistory]) -> Layers:
    """Return the facts about the layers that were measured."""
    return Layers(map(LayerFacts.of_run, filter(is_measured, judged)), [layer.name for layer in judged])


def _judged(histories: Sequence[LayerHistory]) -> Sequence[LayerHistory]:
    """Return all layers except embeddings, in which rare tokens rotate late without anything being wrong."""
    return [layer for layer in histories if not layer.is_embedding] or histories


def _finite_findings(
    record: Record, histories: Sequence[LayerHistory], layers: Layers, events: Sequence[Finding]
) -> list[Finding]:
    """Judge the finite part of a run. `layers` are those that were measured, and `events` its incidents."""
    judged = _judged(histories)
    short = list(not_known.too_short(judged))
    if short:
        return short
    among = [layer.name for layer in judged]
    by_name = {layer.name: layer for layer in judged if is_measured(layer)}
    # Layers whose norm is held by another force do not count for the balance.
    explained = [*scale_sensitive(layers), *rotation_speed.frozen_entries(layers)]
    usual = _without(layers, explained)
    compared = usual.where(lambda layer: layer.is_comparable)

    def needed_warmups(names: Sequence[str]) -> list[int]:
        return warmups_from_start([by_name[name] for name in names])

    findings = [
        *explained,
        *rotation_speed.stopped(layers),
        *optimizer_options.small_norms(layers),
        *_speed(layers, needed_warmups),
        *imbalance.layer_imbalance(layers, speeds_in_groups([by_name[name] for name in compared.names])),
        *imbalance.neuron_imbalance(usual),
        *rotation_speed.dead_vectors(layers),
        *not_known.not_measured([name for name in among if name not in by_name], among),
        *not_known.unpredicted(list(by_name.values()), among, getattr(record, "notes", ())),
        *rising_loss(record),
        *events,
    ]
    if not any(finding.severity in ("bad", "warn") for finding in findings):
        findings += as_predicted(usual, len(layers))
    return findings or [not_known.undecided(list(by_name), among)]


def _speed(layers: Layers, needed_warmups: Callable[[Sequence[str]], Sequence[int]]) -> Sequence[Finding]:
    """Judge betas, equilibrium and start of a run. Only the first that is wrong, because the rest may follow."""
    judgements = (
        optimizer_options.unstable_betas(layers),
        rotation_speed.fast_rotation(layers),
        rotation_speed.fast_start(layers, needed_warmups),
    )
    return next(filter(None, map(list, judgements)), [])


def _without(layers: Layers, findings: Sequence[Finding]) -> Layers:
    """Return the layers that none of these findings is about."""
    names = {name for finding in findings for name in finding.layers}
    return layers.where(lambda layer: layer.name not in names)
