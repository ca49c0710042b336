"""All findings about a run."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gyroscope._types import Mask
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Diagnosis, Finding, Severity
from gyroscope.advice.health import (
    dead_vectors,
    frozen_entries,
    non_finite_vectors,
    not_measured,
    scale_sensitive,
    unstable_betas,
)
from gyroscope.advice.history import LayerHistory, Record, layer_histories
from gyroscope.advice.incident_findings import MARKS, incident_findings
from gyroscope.advice.phrases import clause, listed, sig, span
from gyroscope.advice.plan_findings import fast_rotation
from gyroscope.advice.remedies import GO_BACK, MEASURE_LONGER
from gyroscope.advice.rotation import layer_imbalance, neuron_imbalance, over_rotation
from gyroscope.advice.settling import NormState, course_from_start, fell_out, shorter_than_memory, transient

# Kinds of findings from before a divergence that may explain it; the others speak of a run that goes on.
CAUSES = ("incident", "unstable_betas", "over_rotation", "fast_rotation")
# Beside every green: runs that turned as predicted have ended with a poor loss.
NO_JUDGEMENT = "This compares rotation with theory; whether training is good, the loss says."


def diagnose(record: Record) -> Diagnosis:
    """What a run's measurements mean: sentences with numbers and a remedy, worst first.

    Only what the record holds the numbers for is judged. A run too short to judge gets that finding and no other; of a
    run that diverged, what it did before is judged as far as it may be the cause.
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
        return Diagnosis([_diverged(record, lost, first), *(finding for finding in before if finding.kind in CAUSES)])
    others = [finding for finding in _findings(record, histories, events) if finding.kind not in ("well", "too_short")]
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
        GO_BACK.text,
        layers=tuple(sorted(lost, key=lambda name: int(lost[name].argmax()))),
        evidence={"step": float(record.steps[first])},
        trial=GO_BACK.trial,
        mark=MARKS["not_finite"],
    )


def _findings(record: Record, histories: Sequence[LayerHistory], events: Sequence[Finding]) -> list[Finding]:
    """What is judged of a run whose numbers are finite, as far as these histories go, and what happened in it."""
    # Embeddings are drawn, and not judged: a rare token stands still, decays and turns late, and nothing is wrong.
    histories = [history for history in histories if not history.is_embedding] or histories
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
        *shorter_than_memory(states, getattr(record, "status", "finished") == "running"),
        *fell_out(usual),
        *over_rotation(states),
        *fast_rotation({history.name: float(history.predicted_angle[history.peak]) for history in measured}),
        *layer_imbalance([state.history for state in usual if state.state not in ("transient", "short")]),
        *neuron_imbalance([state.history for state in usual]),
        *dead_vectors(measured),
        *unstable_betas(measured),
        *non_finite_vectors(measured),
        *not_measured(histories),
        *_rising_loss(record),
        *events,
    ]
    if not any(finding.severity in ("bad", "warn") for finding in findings):
        findings += _against_theory(usual, len(states))
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
            MEASURE_LONGER.text,
            evidence={"samples": float(samples), "steps": float(steps)},
        )


def _undecided(states: Sequence[NormState]) -> Iterator[Finding]:
    """Nothing is wrong, and no layer has a prediction to compare with."""
    names = tuple(state.name for state in states)
    yield Finding(
        "not_measured",
        "note",
        f"Nothing stands out, but {clause(names, 'cannot', 'cannot')} be confirmed either: there is no prediction to "
        "compare with.",
        layers=names,
    )


def _against_theory(states: Sequence[NormState], total: int) -> Iterator[Finding]:
    """How closely layers turn as predicted: those of all `total` layers that no other finding explains.

    Only closeness is green, and of training it says nothing.
    """
    known = [state.history for state in states if state.history.speed > 0]
    if not known:
        return
    speeds = [history.speed for history in known]
    error = max(max(speed, 1 / speed) for speed in speeds) - 1
    names = tuple(history.name for history in known)
    count = f"All {total}" if len(known) == total else f"{len(known)} of {total}"
    turn = f"{names[0]} turns" if total == 1 else f"{count} layers turn"
    angles = f"{span([history.rms(history.rms_angle) for history in known], 2)} rad per step"
    evidence = {"largest_error": error, "slowest": min(speeds), "fastest": max(speeds)}
    context = _context(known)
    if 1 + error > limit.CLOSE:
        sentence = f"{clause(names, 'turns', 'turn')} {span(speeds, 2)} times as predicted, {angles}.{context}"
        yield Finding("off_prediction", "note", sentence, layers=names, evidence=evidence)
        return
    earlier = ", or did before falling out" if any(state.state == "fell out" for state in states) else ""
    sentence = f"{turn} as predicted{earlier}, within {sig(100 * error, 2)} %: {angles}.{context} {NO_JUDGEMENT}"
    # An optimizer that sets the angle turns by it whatever training does: that earns no green.
    severity: Severity = "note" if all(history.keeps_norm for history in known) else "good"
    yield Finding("well", severity, sentence, layers=names, evidence=evidence)


def _context(histories: Sequence[LayerHistory]) -> str:
    """A sentence on X, the memory and what rotation is compared with, or, of a rotational optimizer, on its base rule.

    It begins with a space; empty where X is unknown.
    """
    totals = [history.total_decay for history in histories if history.total_decay > 0]
    if not totals:
        return ""
    steps = histories[0].steps[-1] + 1
    memory = f"X = {span(totals, 2)}, a memory of {span([steps / total for total in totals], 2)} steps"
    references = " and ".join(dict.fromkeys(history.reference for history in histories))
    for history in histories:
        ratio = _base_speed(history)
        if ratio is not None and history.rule is not None:
            base = f"{history.rule.name} with these settings would turn {history.name}"
            return f" {memory}. {base} {sig(ratio, 2)} times as fast on average."
    return f" Compared with the {references}; {memory}."


def _base_speed(history: LayerHistory) -> float | None:
    """How many times as fast the plain rule would turn a layer that a rotational optimizer turns, over the run.

    From the same norms: those of the plain rule start there, and settle where they settle. None where it follows them.
    """
    if not history.keeps_norm or history.follows_base or history.rule is None:
        return None
    course = course_from_start(history, float(history.steps[0]), float(history.steps[-1]) + 1)
    return None if course is None else float(course.angular_update.mean() / course.equilibrium_angular_update.mean())


def _rising_loss(record: Record) -> Iterator[Finding]:
    """A logged loss that ends far above its best: no green beside it."""
    for name in ("validation_loss", "loss"):
        if name not in getattr(record, "scalars", ()):
            continue
        steps, values = record.scalar(name)  # type: ignore[attr-defined]  # a record with `scalars` has it
        finite = np.isfinite(values)
        if finite.sum() < limit.SAMPLES:
            continue
        # Means of an eighth of the run each: a single batch says little.
        parts = np.array_split(np.flatnonzero(finite), limit.SAMPLES)
        means = np.array([values[part].mean() for part in parts])
        best = int(means.argmin())
        if means[best] > 0 and means[-1] > limit.LOSS_RISE * means[best]:
            yield Finding(
                "rising_loss",
                "warn",
                f"The logged {name} rose from {sig(means[best])} around step {int(steps[parts[best]].mean()):,} to "
                f"{sig(means[-1])} at the end.",
                evidence={"best": float(means[best]), "last": float(means[-1])},
            )
            return
