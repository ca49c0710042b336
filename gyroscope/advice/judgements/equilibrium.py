"""Whether layers reach equilibrium: they settle, are on the way, are far from it, or the run is too short."""

from collections.abc import Iterator
from math import exp, isfinite

import numpy as np

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.judged_layers import Layers, View, run_length
from gyroscope.advice.layer_view import CheckpointView, LayerView
from gyroscope.advice.norm_state import settles_at
from gyroscope.advice.phrases import RECURSION, RUN_LENGTH, format_range, format_steps, memories_text
from gyroscope.advice.plan_view import PlanView
from gyroscope.advice.remedies import SHORT_RUN
from gyroscope.advice.run_view import RunView
from gyroscope.theory.convergence import MEMORY_PASSED

KEPT_NORM = "cos∠(w_0, w_T) = e^-X with X = Σ a_t of the rule whose angle is taken (docs/theory.md)"


def without_decay(layers: Layers[View]) -> Iterator[Finding]:
    """Judge layers that do not decay at all."""
    members = layers.in_state("no decay")
    if members:
        yield _finding(
            f"{members.clause('has', 'have')} no weight decay. Norms only grow, and rotation slows.", members
        )


def shorter_than_memory(layers: Layers[View], *, so_far: bool = False) -> Iterator[Finding]:
    """Judge a plan or a run."""
    members = layers.in_state("short")
    if members:
        subject = "So far the run" if so_far else "The run"
        sentence = (
            f"{subject} is shorter than the memory of {members.describe()}. Run length: {memories_text(members)}. "
            f"{decay_effect(members)} Norms stay near their initial values and set the rotation."
        )
        yield _finding(sentence, members)


def short_checkpoint(layers: Layers[CheckpointView], step: int | None) -> Iterator[Finding]:
    """Judge a checkpoint after `step` steps, at the peak learning rate if the file contains it."""
    members = layers.where(lambda view: is_shorter_than_memory(view, step))
    if members and step is not None:
        rate = "" if all(isfinite(view.peak_lr) for view in members) else " at the learning rate of the last step"
        sentence = (
            f"The run of {step:,} steps is shorter than the memory of {members.describe()}{rate}. Run length: "
            f"{memories_text(members, step)}. Norms may still be near their initial values."
        )
        yield _finding(sentence, members, step)


def is_shorter_than_memory(view: LayerView, step: float | None) -> bool:
    """Return whether a layer of a checkpoint had no time to settle."""
    return not view.keeps_norm and view.norm_state != "no decay" and run_length(view, step) < MEMORY_PASSED


def decay_effect(layers: Layers[View], steps: float | None = None) -> str:
    """Return whether weight decay matters in a run of this length, by the longest of some layers."""
    if all(view.keeps_norm for view in layers):
        if any(view.rule is not None and view.rule.plain.has_weight_decay for view in layers):
            return "Weight decay matters in this run because it sets the rotation."
        return "Weight decay has no effect in this run because the learning rate alone sets the rotation."
    longest = max(run_length(view, steps) for view in layers)
    if longest < limit.MIN_DECAY_EFFECT:
        return "Weight decay has almost no effect in this run."
    return f"Weight decay {'can matter' if longest >= MEMORY_PASSED else 'has little effect'} in this run."


def _finding(sentence: str, layers: Layers[View], steps: float | None = None) -> Finding:
    lengths = [run_length(view, steps) for view in layers]
    # Layers without decay may have no known length, which is 0.
    evidence = {"total_decay": min((length for length in lengths if isfinite(length)), default=0.0)}
    ratios = [view.rotation_ratio for view in layers if isfinite(view.rotation_ratio)]
    if ratios:
        evidence |= {"slowest": min(ratios), "fastest": max(ratios)}
    trial = SHORT_RUN if evidence["total_decay"] > 0 else ""
    return make_finding("short_memory", "note", sentence, layers, formula=RUN_LENGTH, evidence=evidence, trial=trial)


def settles(layers: Layers[PlanView]) -> Iterator[Finding]:
    """Judge layers that reach their equilibrium."""
    members = layers.in_state("settled")
    if not members:
        return
    after = [view.settled_at + 1 for view in members]
    share = format_range([100 * count / members[0].prediction.schedule.steps for count in after], 2)
    yield make_finding(
        "well",
        "good",
        f"{members.clause('settles', 'settle')} after {format_steps(after)} step{'' if max(after) == 1 else 's'} "
        f"({share} % of the run) and then {_rotate(members)} {_rotation(members)} rad per step. Run length: "
        f"{memories_text(members)}.",
        members,
        formula=RECURSION,
        evidence={"total_decay": min(view.run_length for view in members), "settled_at": max(after) - 1.0},
    )


def keeps_norm(layers: Layers[PlanView]) -> Iterator[Finding]:
    """State how far layers with fixed norms rotate, and what the plain rule would do from the same start."""
    members = layers.in_state("keeps norm", "follows base")
    if not members:
        return
    lengths = [view.run_length for view in members]
    base = members[0].rule.plain.name
    how = "by the equilibrium angle from the first step"
    if members[0].norm_state == "follows base":
        how = f"as {base} would from the same initial norms"
    sentence = f"{members.clause('keeps its norm', 'keep their norms')} and {_rotate(members)} {how}."
    # Under Hyperball the angle is the learning rate, and weight decay does not set a memory.
    if min(lengths) > 0:
        left = format_range([100 * exp(-length) for length in lengths], 2)
        sentence += f" Run length: {memories_text(members)}, so {left} % of the initial direction is left."
        speeds = [speed for view in members if (speed := view.prediction.base_speed) is not None]
        if speeds:
            times = f"{format_range(speeds, 2)} times as fast on average"
            sentence += f" {base} would rotate {times}, from the same initial norms."
    evidence = {"total_decay": min(lengths)}
    yield make_finding("well", "note", sentence, members, formula=KEPT_NORM, evidence=evidence)


def grows(layers: Layers[PlanView]) -> Iterator[Finding]:
    """State how fast layers with steps relative to their norms rotate, and how their norms change."""
    members = layers.in_state("grows")
    if not members:
        return
    factor = format_range([float(view.forecast.norm[-1] / view.forecast.initial_norm) for view in members], 3)
    sentence = (
        f"{members.clause('rotates', 'rotate')} {_rotation(members)} rad per step at any norm. No decay holds the "
        f"norm, which ends at {factor} times its initial value."
    )
    evidence = {"total_decay": min(view.run_length for view in members)}
    formula = members[0].rule.angle_formula
    yield make_finding("well", "note", sentence, members, formula=formula, evidence=evidence)


def _rotate(layers: Layers[PlanView]) -> str:
    return "rotates" if len(layers) == 1 else "rotate"


def _rotation(layers: Layers[PlanView]) -> str:
    return format_range(float(view.forecast.equilibrium_angular_update.max()) for view in layers)


def transient(layers: Layers[RunView]) -> Iterator[Finding]:
    """Judge a run: when its layers will have settled."""
    members = layers.in_state("transient")
    if not members:
        return
    done = members[0].step_count
    steps = [settles_at(view) for view in members]
    distances = [view.distance for view in members]
    ratios = [float(distance[np.isfinite(distance)][-1]) for distance in distances]
    when = f"settles at about step {format_range(steps, 2)}"
    if max(steps) > limit.MAX_SETTLING_LENGTHS * done:
        when = f"does not settle within {limit.MAX_SETTLING_LENGTHS:g} times as many steps"
    sentence = (
        f"{members.clause('is', 'are')} on the way to equilibrium after {done:,} steps, at "
        f"{format_range(ratios, 2)} times its norm. At this rate the norm {when}."
    )
    evidence = {"settles_at": max(steps), "smallest_ratio": min(ratios), "largest_ratio": max(ratios)}
    yield make_finding("transient", "note", sentence, members, evidence=evidence)


def planned_transient(layers: Layers[PlanView]) -> Iterator[Finding]:
    """Judge layers of a plan that do not settle although the run is longer than their memory."""
    members = layers.in_state("far")
    if members:
        sentence = (
            f"{members.clause('stays', 'stay')} more than 10 % off equilibrium because the initial norm is too far off."
            f" Run length: {memories_text(members)}."
        )
        evidence = {"total_decay": min(view.run_length for view in members)}
        yield make_finding("transient", "note", sentence, members, formula=RECURSION, evidence=evidence)


def norm_off_prediction(layers: Layers[CheckpointView], step: int | None) -> Iterator[Finding]:
    """Judge layers that had time to settle."""
    far = layers.in_state("far").where(lambda view: not is_shorter_than_memory(view, step))
    if far:
        ratios = [view.norm_ratio for view in far]
        rate = "peak learning rate" if all(isfinite(view.peak_lr) for view in far) else "learning rate of the last step"
        sentence = f"{far.clause('is', 'are')} at {format_range(ratios, 2)} times the equilibrium norm at the {rate}."
        evidence = {"smallest_ratio": min(ratios), "largest_ratio": max(ratios)}
        yield make_finding("off_prediction", "note", sentence, far, evidence=evidence)
