"""The judgements on a checkpoint, in order. Thresholds and words are those of runs, the numbers those of one step."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from gyroscope.advice.findings import Findings
from gyroscope.advice.judgements import imbalance
from gyroscope.advice.judgements.as_predicted import is_scale_sensitive, last_step_as_predicted
from gyroscope.advice.judgements.checkpoint_drift import LayerDrift, drift
from gyroscope.advice.judgements.failed import diverged
from gyroscope.advice.judgements.optimizer_options import unstable_betas
from gyroscope.advice.judgements.rotation_speed import dead_vectors, fast_last_step, fast_rotation
from gyroscope.advice.judgements.unknown import assumptions, estimates, missing_input
from gyroscope.advice.layer_facts import LayerFacts, Layers
from gyroscope.advice.summary import summarize


def checkpoint_findings(
    layers: Sequence[LayerFacts],
    *,
    lost: Mapping[str, float],
    embeddings: Collection[str] = (),
    errors: Mapping[str, float] | None = None,
    notes: Sequence[str] = (),
    missing: Mapping[str, str] | None = None,
    drifts: Sequence[LayerDrift] = (),
) -> Findings:
    """Return the findings on a checkpoint, worst first.

    layers      all layers
    lost        share of the vectors of each layer that are not finite
    embeddings  layers that are not judged
    errors      of the rotations that are estimates, by layer
    notes       what was assumed, as sentences without a full stop
    missing     layers that lack something, and why
    drifts      how layers moved since the previous checkpoint, if there is one
    """
    every = Layers(layers)
    judged = every.where(lambda layer: layer.name not in embeddings)
    finite = judged.where(lambda layer: not lost.get(layer.name))
    usual = finite.where(lambda layer: layer.is_comparable and not is_scale_sensitive(layer))
    findings = [
        *diverged({name: np.array([share]) for name, share in lost.items()}, every.among),
        *dead_vectors(finite),
        *unstable_betas(finite),
        *fast_rotation(finite),
        *fast_last_step(finite),
        *imbalance.layer_imbalance(finite, imbalance.last_speeds(usual)),
        *imbalance.neuron_imbalance(finite),
        *assumptions(notes),
        *missing_input(missing or {}, every.among),
        *estimates(errors or {}, every.among),
    ]
    if not any(finding.severity in ("bad", "warn") for finding in findings):
        findings += last_step_as_predicted(finite)
    ordered = Findings([*findings, *drift(drifts)])
    return Findings(ordered, summarize(judged, ordered))
