"""The judgements on a checkpoint, in order. Thresholds and words are those of runs, the numbers those of one step."""

from collections.abc import Mapping, Sequence
from math import isfinite

from gyroscope.advice.findings import Diagnosis
from gyroscope.advice.judged_layers import Layers
from gyroscope.advice.judgements import equilibrium, imbalance
from gyroscope.advice.judgements import unknown as not_known
from gyroscope.advice.judgements.as_predicted import last_step_as_predicted
from gyroscope.advice.judgements.checkpoint_drift import drift
from gyroscope.advice.judgements.failed import non_finite_state
from gyroscope.advice.judgements.fast import fast_last_step, fast_rotation
from gyroscope.advice.judgements.optimizer_options import unstable_betas
from gyroscope.advice.judgements.slow import dead_vectors
from gyroscope.advice.layer_view import CheckpointView, DriftView
from gyroscope.advice.summary import summarize


def checkpoint_findings(
    layers: Sequence[CheckpointView],
    *,
    step: int | None = None,
    notes: Sequence[str] = (),
    missing: Mapping[str, str] | None = None,
    drifts: Sequence[DriftView] = (),
) -> Diagnosis:
    """Return the findings on a checkpoint, worst first.

    layers   all layers. Embeddings are not judged
    step     steps that were taken, if known
    notes    what was assumed, as sentences without a full stop
    missing  layers that lack something, and why
    drifts   how layers moved since the previous checkpoint, if there is one
    """
    every = Layers(layers)
    judged = every.where(lambda view: not view.is_embedding)
    finite = judged.where(lambda view: not view.non_finite)
    findings = [
        *non_finite_state(every),
        *dead_vectors(finite),
        *unstable_betas(finite),
        *fast_rotation(finite),
        *fast_last_step(finite),
        *imbalance.layer_imbalance(finite, [(view, view.rotation_ratio) for view in finite]),
        *imbalance.neuron_imbalance(finite),
        *equilibrium.without_decay(finite),
        *equilibrium.short_checkpoint(finite, step),
        *equilibrium.norm_off_prediction(finite, step),
        *not_known.assumptions(notes),
        *not_known.missing_input(missing or {}, every.among),
        *not_known.estimates(every),
    ]
    if not any(finding.severity in ("bad", "warn") for finding in findings):
        findings += last_step_as_predicted(finite)
    rate = "peak" if all(isfinite(view.peak_lr) for view in judged) else "last"
    return Diagnosis([*findings, *drift(drifts)], summarize(judged, findings, step, rate=rate))
