"""What a plan, a run or a checkpoint lacks, assumes or estimates."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

import numpy as np

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.judged_layers import Layers, begin_sentence
from gyroscope.advice.layer_families import describe_layers
from gyroscope.advice.layer_view import CheckpointView
from gyroscope.advice.phrases import format_number
from gyroscope.advice.remedies import CHECK_LAYER, MEASURE_LONGER
from gyroscope.advice.run_view import RunView
from gyroscope.theory.rules.base import MEANING


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


def estimates(layers: Layers[CheckpointView]) -> Iterator[Finding]:
    """State which rotations of a checkpoint are estimates, and their error."""
    estimated = layers.where(lambda view: not view.exact and isfinite(view.rotation))
    errors = list(dict.fromkeys(view.error for view in estimated))
    # The error of Muon depends on the shape, so its layers share no single number.
    trial = "a layer" if len(errors) == 1 else "a layer of this size"
    for error in errors:
        members = Layers([view for view in estimated if view.error == error], estimated.among)
        sentence = (
            f"The rotation of {members.describe()} is an estimate because the file does not contain the last "
            f"gradient. In tests the mean of {trial} was within {format_number(100 * error, 2)} %."
        )
        yield make_finding("assumption", "note", sentence, members, evidence={"error": error})


def too_short(layers: Layers[RunView]) -> Iterator[Finding]:
    """Judge the number of samples and of steps."""
    measured = layers.where(lambda view: view.is_measured)
    samples = max((int(np.isfinite(view.angle).sum()) for view in measured), default=0)
    steps = max((view.step_count for view in layers), default=0)
    memories = [view.rule.momentum_memory for view in measured if view.rule is not None]
    needed = round(limit.MIN_MOMENTUM_MEMORIES * max(memories, default=limit.UNKNOWN_MOMENTUM_MEMORY))
    if samples < limit.MIN_SAMPLES or steps < needed:
        sentence = (
            f"Too short to judge: {samples:,} samples in {steps:,} steps. A diagnosis needs {limit.MIN_SAMPLES} samples"
            f" and {needed:,} steps ({limit.MIN_MOMENTUM_MEMORIES} times the memory of the momentum)."
        )
        evidence = {"samples": float(samples), "steps": float(steps)}
        yield make_finding("too_short", "note", sentence, (), MEASURE_LONGER, evidence=evidence)


def not_measured(layers: Layers[RunView]) -> Iterator[Finding]:
    """Judge layers without a measurement."""
    silent = layers.where(lambda view: not view.is_measured)
    if silent:
        sentence = f"{silent.clause('was', 'were')} never measured because no step had a gradient."
        yield make_finding("not_measured", "note", sentence, silent, CHECK_LAYER)


def unpredicted(layers: Layers[RunView], notes: Sequence[str]) -> Iterator[Finding]:
    """State which layers of a run lack a prediction, and what is missing. The tracker's notes have the reason."""
    measured = layers.where(lambda view: view.is_measured)
    unknown = {
        view.name: _reason(view.layer.group, notes) for view in measured if not np.isfinite(view.predicted_angle).any()
    }
    yield from missing_input(unknown, layers.among, "prediction: ")
    without_norm = {
        view.name: f"{view.rule.name} needs update_rms, {MEANING['update_rms']}. Pass it to the rule"
        for view in measured
        if view.rule is not None and "update_rms" in view.rule.needs
    }
    yield from missing_input(without_norm, layers.among, "predicted norm: ")


def _reason(group: int, notes: Sequence[str]) -> str:
    beginning = f"No predictions for parameter group {group}: "
    given = [note.removeprefix(beginning) for note in notes if note.startswith(beginning)]
    return given[-1] if given else "the theory does not cover the optimizer"


def undecided(layers: Layers[RunView]) -> Finding:
    """Judge a run in which nothing is wrong, and no layer has a prediction to compare with."""
    sentence = f"Nothing stands out. There is no prediction to compare {layers.describe()} with."
    return make_finding("not_measured", "note", sentence, layers)
