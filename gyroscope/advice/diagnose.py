"""All findings about a run."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

import numpy as np

from gyroscope._types import Mask
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Diagnosis, Finding
from gyroscope.advice.health import dead_vectors, frozen_entries, not_measured, scale_sensitive, unstable_betas
from gyroscope.advice.history import LayerHistory, Record, layer_histories
from gyroscope.advice.phrases import clause, listed, sig, span
from gyroscope.advice.rotation import layer_imbalance, neuron_imbalance, over_rotation
from gyroscope.advice.settling import NormState, fell_out, transient, weak_decay

# Kinds of findings from before a divergence that may explain it; the others speak of a run that goes on.
CAUSES = ("unstable_betas", "over_rotation", "fast_rotation")


def diagnose(record: Record) -> Diagnosis:
    """What a run's measurements mean: sentences with numbers and a remedy, worst first.

    Only what the record holds the numbers for is judged. A run too short to judge gets that finding and no other; of a
    run that diverged, what it did before is judged as far as it may be the cause.
    """
    histories = layer_histories(record)
    lost = {history.name: history.lost for history in histories if history.lost.any()}
    if not lost:
        return Diagnosis(_findings(record, histories))
    first = min(int(samples.argmax()) for samples in lost.values())
    # Findings about a run that goes on, "train on" among them, do not apply to one that cannot.
    if any(history.diverged for history in histories):
        before = _findings(record, layer_histories(record, first))
        return Diagnosis([_diverged(record, lost, first), *(finding for finding in before if finding.kind in CAUSES)])
    others = [finding for finding in _findings(record, histories) if finding.kind not in ("well", "too_short")]
    return Diagnosis([_recovered(record, lost, first), *others])


def _diverged(record: Record, lost: Mapping[str, Mask], first: int) -> Finding:
    """Weights or gradients that are not finite up to the end of the run."""
    finite = f"the last finite sample is of step {int(record.steps[first - 1]):,}" if first else "no sample is finite"
    sentence = (
        f"The run diverged: at step {int(record.steps[first]):,} weights or gradients of {_first_lost(lost, first)} "
        f"are not finite, and {len(lost)} of {len(record.layers)} layers stay so; {finite}."
    )
    return _not_finite(record, lost, first, sentence)


def _recovered(record: Record, lost: Mapping[str, Mask], first: int) -> Finding:
    """Weights or gradients that were not finite for a while."""
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
    return Finding(
        "diverged",
        "bad",
        sentence,
        "Go back to a checkpoint from before that step, and lower the learning rate, lengthen the warmup or clip "
        "gradients; torch.autograd.set_detect_anomaly(True) names the operation that made the first NaN.",
        layers=tuple(sorted(lost, key=lambda name: int(lost[name].argmax()))),
        evidence={"step": float(record.steps[first])},
    )


def _findings(record: Record, histories: Sequence[LayerHistory]) -> list[Finding]:
    """What is judged of a run whose numbers are finite, as far as these histories go."""
    measured = [history for history in histories if np.isfinite(history.angle).any()]
    short = list(_too_short(histories, measured))
    if short:
        return short
    states = [NormState.of(history) for history in measured]
    # Layers whose norm another force holds are not in transient, and do not count for the balance.
    explained = [*scale_sensitive(measured), *frozen_entries(measured)]
    explained_layers = {name for finding in explained for name in finding.layers}
    usual = [state for state in states if state.name not in explained_layers]
    findings = [
        *explained,
        *transient(usual),
        *weak_decay(states, getattr(record, "status", "finished") == "running"),
        *fell_out(usual),
        *over_rotation(states),
        *layer_imbalance([state.history for state in usual if state.state not in ("transient", "weak")]),
        *neuron_imbalance([state.history for state in usual]),
        *dead_vectors(measured),
        *unstable_betas(measured),
        *not_measured(histories),
    ]
    if not any(finding.severity in ("bad", "warn") for finding in findings):
        findings += _well(states)
    return findings or list(_undecided(states))


def _too_short(histories: Sequence[LayerHistory], measured: Sequence[LayerHistory]) -> Iterator[Finding]:
    samples = max((int(np.isfinite(history.angle).sum()) for history in measured), default=0)
    steps = max((int(history.steps[-1]) + 1 for history in histories if len(history.steps)), default=0)
    # An unknown rule is taken for one with a momentum of 0.9.
    memories = [history.rule.momentum_memory for history in measured if history.rule is not None]
    needed = round(limit.MEMORIES * max(memories, default=10.0))
    if samples < limit.SAMPLES or steps < needed:
        yield Finding(
            "too_short",
            "note",
            f"Too short to judge: {samples:,} samples in {steps:,} steps; it takes {limit.SAMPLES} samples and "
            f"{needed:,} steps, {limit.MEMORIES} memories of the momentum.",
            "Train on, or measure more often (a smaller every=).",
            evidence={"samples": float(samples), "steps": float(steps)},
        )


def _undecided(states: Sequence[NormState]) -> Iterator[Finding]:
    """Nothing is wrong, and yet no layer turns as predicted."""
    names = tuple(state.name for state in states)
    yield Finding(
        "not_measured",
        "note",
        f"Nothing stands out, but {clause(names, 'cannot', 'cannot')} be confirmed either: the norm stays off its "
        "equilibrium, or there is none to compare with.",
        "Compare angular_update with predicted_angular_update; a persistent gradient holds a norm off its prediction.",
        layers=names,
    )


def _well(states: Sequence[NormState]) -> Iterator[Finding]:
    """The evidence that all is as it should be."""
    known = [s.history for s in states if s.state in ("settled", "fell out") and s.history.speed > 0]
    if not known:
        return
    angles = [history.mean(history.angle) for history in known]
    speeds = [history.speed for history in known]
    error = max(max(speed, 1 / speed) - 1 for speed in speeds)
    since = [history.settled_at for history in known if isfinite(history.settled_at)]
    settled = f", settled since step {sig(max(since))}" if len(since) == len(known) else ""
    count = f"All {len(known)}" if len(known) == len(states) else f"{len(known)} of {len(states)}"
    fell = any(state.state == "fell out" for state in states)
    turn = "turn as predicted, or did before they fell out" if fell else "turn as predicted"
    size = f"{span(angles, 2)} rad per step, within {sig(100 * error, 2)} % of theory"
    yield Finding(
        "well",
        "good",
        f"{count} layers {turn}: {size}{settled}.",
        layers=tuple(history.name for history in known),
        evidence={"largest_error": error, "slowest": min(speeds), "fastest": max(speeds)},
    )
