"""What a plan, a run or a checkpoint lacks, assumes or estimates."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.history import LayerHistory
from gyroscope.advice.layer_facts import begin_sentence
from gyroscope.advice.layer_families import describe_layers
from gyroscope.advice.phrases import format_number
from gyroscope.advice.remedies import CHECK_LAYER, MEASURE_LONGER
from gyroscope.advice.run_layer import is_measured
from gyroscope.theory.rules.base import MEANING

# The start of a tracker's note about a group without predictions. Groups with the same reason share one note.
NO_PREDICTIONS = "No predictions for parameter group "


def missing_input(missing: Mapping[str, str], among: Sequence[str], what: str = "") -> Iterator[Finding]:
    """State which layers lack something, and why. `what` comes before each reason."""
    among = list(dict.fromkeys([*among, *missing]))
    for reason in dict.fromkeys(missing.values()):
        names = [name for name, why in missing.items() if why == reason]
        has = begin_sentence(describe_layers(names, among, worst=False), "has" if len(names) == 1 else "have")
        sentence = f"{has} no {what}{reason}."
        yield make_finding("missing_input", "note", sentence, names)


def assumptions(notes: Sequence[str]) -> Iterator[Finding]:
    """State what was assumed, each a sentence without a full stop."""
    for note in notes:
        yield make_finding("assumption", "note", f"{note}.")


def estimates(errors: Mapping[str, float], among: Sequence[str]) -> Iterator[Finding]:
    """State which rotations of a checkpoint are estimates, and their error, by layer."""
    distinct = list(dict.fromkeys(errors.values()))
    # The error of Muon depends on the shape, so its layers share no single number.
    trial = "a layer" if len(distinct) == 1 else "a layer of this size"
    for error in distinct:
        names = [name for name, own in errors.items() if own == error]
        sentence = (
            f"The rotation of {describe_layers(names, among, worst=False)} is an estimate because the file does not "
            f"contain the last gradient. In tests the mean of {trial} was within {format_number(100 * error, 2)} %."
        )
        yield make_finding("assumption", "note", sentence, names, evidence={"error": error})


def too_short(layers: Sequence[LayerHistory]) -> Iterator[Finding]:
    """Judge the number of samples and of steps."""
    measured = [layer for layer in layers if is_measured(layer)]
    samples = max((int(np.isfinite(layer.angle).sum()) for layer in measured), default=0)
    steps = max((layer.step_count for layer in layers), default=0)
    memories = [layer.rule.momentum_memory for layer in measured if layer.rule is not None]
    needed = round(limit.MIN_MOMENTUM_MEMORIES * max(memories, default=limit.UNKNOWN_MOMENTUM_MEMORY))
    if samples < limit.MIN_SAMPLES or steps < needed:
        sentence = (
            f"Too short to judge: {samples:,} samples in {steps:,} steps. A diagnosis needs {limit.MIN_SAMPLES} samples"
            f" and {needed:,} steps ({limit.MIN_MOMENTUM_MEMORIES} times the memory of the momentum)."
        )
        evidence = {"samples": float(samples), "steps": float(steps)}
        yield make_finding("too_short", "note", sentence, (), MEASURE_LONGER, evidence=evidence)


def not_measured(names: Sequence[str], among: Sequence[str]) -> Iterator[Finding]:
    """Judge layers without a measurement."""
    if names:
        was = begin_sentence(describe_layers(names, among, worst=False), "was" if len(names) == 1 else "were")
        sentence = f"{was} never measured because no step had a gradient."
        yield make_finding("not_measured", "note", sentence, names, CHECK_LAYER)


def unpredicted(layers: Sequence[LayerHistory], among: Sequence[str], notes: Sequence[str]) -> Iterator[Finding]:
    """State which measured layers lack a prediction, and what is missing. The tracker's notes have the reason."""
    unknown = {
        layer.name: _reason(layer.layer.group, notes)
        for layer in layers
        if not np.isfinite(layer.predicted_angle).any()
    }
    yield from missing_input(unknown, among, "prediction: ")
    without_norm = {
        layer.name: f"{layer.rule.name} needs update_rms, {MEANING['update_rms']}. Pass it to the rule"
        for layer in layers
        if layer.rule is not None and "update_rms" in layer.rule.needs
    }
    yield from missing_input(without_norm, among, "predicted norm: ")


def _reason(group: int, notes: Sequence[str]) -> str:
    """Return the last reason that the tracker has noted for a group, or for another one that shares it."""
    given = [note.removeprefix(NO_PREDICTIONS).partition(": ") for note in notes if note.startswith(NO_PREDICTIONS)]
    own = [reason for number, _, reason in given if number == str(group)]
    return next(reversed(own or [reason for *_, reason in given]), "the theory does not cover the optimizer")


def undecided(names: Sequence[str], among: Sequence[str]) -> Finding:
    """Judge a run in which nothing is wrong, and no layer has a prediction to compare with."""
    compared = describe_layers(names, among, worst=False)
    sentence = f"Nothing stands out. There is no prediction to compare {compared} with."
    return make_finding("not_measured", "note", sentence, names)
