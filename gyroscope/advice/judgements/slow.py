"""Layers that rotate slowly or not at all: at the end of a schedule, or without any gradient."""

from collections.abc import Iterator

import numpy as np

from gyroscope._types import Mask
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.judged_layers import Layers, View
from gyroscope.advice.layer_view import LayerView
from gyroscope.advice.norm_state import final_rate
from gyroscope.advice.phrases import format_number, format_range, format_steps
from gyroscope.advice.plan_view import PlanView
from gyroscope.advice.remedies import CHECK_LAYER, FIND_SETTING, REVIVE, WIDER_WEIGHTS
from gyroscope.advice.run_view import RunView

DEPARTURE = (
    "norm above 1.3 × equilibrium (SGD 1.2). Before the end about sqrt(2x²T/a0) for linear, "
    "(16x²T²/(π²a0))^(1/3) for cosine decay, norm ∝ lr^x"
)


def fell_out(layers: Layers[RunView]) -> Iterator[Finding]:
    """Judge a run."""
    rates = [final_rate(view) for view in layers if view.departure is not None]
    cause = "The norm could not follow the learning rate and is now"
    # At a rate that has not fallen, the schedule cannot be the cause.
    if max(rates, default=0.0) >= limit.MAX_FALLEN_RATE:
        cause = "Updates or gradients shrank, and the norm is still"
    yield from _departed(layers, cause, ("fell", "fell"))


def falls_out(layers: Layers[PlanView]) -> Iterator[Finding]:
    """Judge a plan."""
    cause = "The norm cannot follow the learning rate and becomes"
    yield from _departed(layers, cause, ("falls", "fall"), DEPARTURE)


def _departed(layers: Layers[View], cause: str, verbs: tuple[str, str], formula: str = "") -> Iterator[Finding]:
    departures = {view: departure for view in layers if (departure := view.departure) is not None}
    if departures:
        departed = layers.where(departures.__contains__)
        steps = [departure.step for departure in departures.values()]
        ratios = [departure.norm_ratio for departure in departures.values()]
        sentence = (
            f"{departed.clause(*verbs)} out of equilibrium at step {format_steps(steps)}. {cause} "
            f"{format_range(ratios, 2)} times that of equilibrium, which slows the rotation by the same factor."
        )
        evidence = {"step": float(min(steps)), "ratio": max(ratios)}
        yield make_finding("fell_out", "note", sentence, departed, formula=formula, evidence=evidence)


def stopped(layers: Layers[RunView]) -> Iterator[Finding]:
    """Judge layers that hardly move any more at their learning rate."""
    still = layers.where(_has_stopped)
    if still:
        steps = [_still_since(view, view.speeds >= limit.MAX_STOPPED_ROTATION) for view in still]
        ratios = [view.late_rotation_ratio for view in still]
        sentence = (
            f"{still.clause('stopped', 'stopped')} moving at step {min(steps):,.0f}. Rotation at the end is "
            f"{format_range(ratios, 2)} times the prediction."
        )
        evidence = {"step": min(steps), "slowest": min(ratios)}
        yield make_finding("stopped", "note", sentence, still, evidence=evidence)


def switched_off(layers: Layers[RunView]) -> Iterator[Finding]:
    """Judge layers whose learning rate is next to 0 at the end, while that of others is not."""
    off = layers.where(lambda view: final_rate(view) < limit.MIN_RATE_SHARE)
    if off and any(final_rate(view) >= limit.MIN_FULL_RATE for view in layers):
        steps = [_still_since(view, view.lr >= limit.MIN_RATE_SHARE * np.nanmax(view.lr)) for view in off]
        share = format_range([100 * final_rate(view) for view in off], 2)
        sentence = (
            f"{off.clause('stopped', 'stopped')} moving at step {min(steps):,.0f}. The learning rate is {share} % "
            "of its peak, while other layers go on training."
        )
        yield make_finding("stopped", "note", sentence, off, FIND_SETTING, evidence={"step": min(steps)})


def _has_stopped(view: RunView) -> bool:
    return view.late_rotation_ratio < limit.MAX_STOPPED_ROTATION


def _still_since(view: RunView, moves: Mask) -> float:
    """Return the step after which no sample moves any more."""
    moving = np.flatnonzero(moves)
    first = min(int(moving[-1]) + 1, len(view.steps) - 1) if moving.size else 0
    return float(view.steps[first])


def dead_vectors(layers: Layers[View]) -> Iterator[Finding]:
    """Judge the share of a layer's vectors that is dead. If all are dead, the layer is not used."""
    unused = layers.where(lambda view: _share(view) >= 1)
    if unused:
        sentence = f"{unused.clause('has', 'have')} no gradient at all. Weight decay shrinks the weights to nothing."
        evidence = {"dead_vectors": float(sum(view.dead for view in unused)), "worst_share": 1.0}
        yield make_finding("dead_vectors", "bad", sentence, unused, CHECK_LAYER, evidence=evidence)
    dead = layers.where(lambda view: limit.MAX_DEAD_SHARE < _share(view) < 1).worst_first(_share)
    if not dead:
        return
    worst = _share(dead[0])
    total = sum(view.dead for view in dead)
    yield make_finding(
        "dead_vectors",
        "bad" if worst > limit.BAD_DEAD_SHARE else "warn",
        f"{dead.clause('has', 'have')} vectors without any gradient, {total:,} in all: {dead[0].dead:,} in "
        f"{dead.label(dead[0])}, {format_number(100 * worst, 2)} % of it. Weight decay shrinks them to nothing.",
        dead,
        REVIVE,
        evidence={"dead_vectors": float(total), "worst_share": worst},
    )


def _share(view: LayerView) -> float:
    return view.dead / max(view.vectors, 1.0)


def frozen_entries(layers: Layers[RunView]) -> Iterator[Finding]:
    """Judge the share of entries that a step does not change."""
    frozen = layers.where(lambda view: view.frozen_share > limit.MAX_FROZEN_SHARE)
    frozen = frozen.worst_first(lambda view: view.frozen_share)
    if not frozen:
        return
    share = frozen[0].frozen_share
    yield make_finding(
        "frozen_entries",
        "bad" if share > limit.BAD_FROZEN_SHARE else "warn",
        f"{frozen.clause('has', 'have')} entries that do not change although they have a gradient, "
        f"{format_number(100 * share, 2)} % in {frozen.label(frozen[0])}. The update is smaller than the rounding of "
        "the weights.",
        frozen,
        WIDER_WEIGHTS,
        evidence={"worst_share": share},
    )
