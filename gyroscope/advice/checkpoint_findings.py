"""The judgements on a checkpoint, in order: the thresholds and words of runs, on the numbers of one step."""

from collections.abc import Mapping, Sequence

from gyroscope.advice.findings import Diagnosis
from gyroscope.advice.judgements.as_predicted import last_step_as_predicted
from gyroscope.advice.judgements.checkpoint_drift import drift
from gyroscope.advice.judgements.dead_vectors import dead_vectors
from gyroscope.advice.judgements.fast_rotation import fast_rotation
from gyroscope.advice.judgements.gradient_signal import aligned_updates, gradient_signal
from gyroscope.advice.judgements.layer_imbalance import layer_imbalance
from gyroscope.advice.judgements.neuron_imbalance import neuron_imbalance
from gyroscope.advice.judgements.norm_off_prediction import norm_off_prediction
from gyroscope.advice.judgements.not_finite import non_finite_state
from gyroscope.advice.judgements.over_rotation import fast_last_step
from gyroscope.advice.judgements.scale_sensitive import scale_sensitive_at_last
from gyroscope.advice.judgements.short_memory import short_at_last_rate, without_decay
from gyroscope.advice.judgements.unknown_inputs import assumptions, estimates, missing_input
from gyroscope.advice.judgements.unstable_betas import unstable_betas
from gyroscope.advice.layer_view import CheckpointView, DriftView


def checkpoint_findings(
    layers: Sequence[CheckpointView],
    *,
    step: int | None = None,
    batch_size: float | None = None,
    notes: Sequence[str] = (),
    missing: Mapping[str, str] | None = None,
    drifts: Sequence[DriftView] = (),
) -> Diagnosis:
    """Return the findings on a checkpoint, worst first.

    layers      all of them; embeddings are not judged
    step        steps that were taken, if known
    batch_size  examples of one step, for the noise scale
    notes       what was assumed, as sentences without a full stop
    missing     layers of which something is unknown, and why
    drifts      layers since the checkpoint before, if there is one
    """
    judged = [layer for layer in layers if not layer.is_embedding]
    views = [layer for layer in judged if not layer.non_finite]
    findings = [
        *non_finite_state(layers),
        *dead_vectors(views),
        *unstable_betas(views),
        *fast_rotation(views),
        *fast_last_step(views),
        *layer_imbalance((view, view.rotation_ratio) for view in views),
        *neuron_imbalance(views),
        *scale_sensitive_at_last(views),
        *without_decay(views),
        *short_at_last_rate(views, step),
        *norm_off_prediction(views, step),
        *aligned_updates(views),
        *gradient_signal(views, batch_size),
        *assumptions(notes),
        *missing_input(missing or {}),
        *estimates(layers),
    ]
    if not any(finding.severity in ("bad", "warn") for finding in findings):
        findings += last_step_as_predicted(views)
    return Diagnosis([*findings, *drift(drifts)])
