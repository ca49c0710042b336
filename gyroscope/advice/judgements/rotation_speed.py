"""Layers that rotate too fast, or not at all: in equilibrium, at the start, without a gradient or without an update."""

from collections.abc import Callable, Iterator, Sequence
from math import isfinite

from gyroscope.advice import remedies
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import NOTHING, Finding, Remedy, make_finding
from gyroscope.advice.layer_facts import LayerFacts, Layers
from gyroscope.advice.phrases import format_number, format_range
from gyroscope.advice.remedies import (
    CHECK_LAYER,
    FIND_SETTING,
    LOWER_RATE,
    REVIVE,
    WIDER_WEIGHTS,
)
from gyroscope.theory.layer_prediction import MAX_START_ANGLE

START = "first step AdamW sqrt(τ)·‖ω̂‖/‖ω_0‖, Lion ‖ω̂‖/‖ω_0‖, SGDM sqrt(1-α²)·(‖ω̂‖/‖ω_0‖)², then the recursion"


def fast_rotation(layers: Layers) -> Iterator[Finding]:
    """Judge the rotation that the settings of each layer lead to."""
    fast = layers.where(lambda layer: layer.predicted_rotation > limit.MAX_ROTATION)
    if fast:
        angles = [layer.predicted_rotation for layer in fast]
        rotates = fast.clause("rotates", "rotate")
        sentence = f"{rotates} by {format_range(angles, 2)} rad per step in equilibrium, which is very fast."
        evidence = {"angular_update": max(angles)}
        yield make_finding("fast_rotation", "warn", sentence, fast, LOWER_RATE, evidence=evidence)


def fast_start(layers: Layers, needed_warmups: Callable[[Sequence[str]], Sequence[int]]) -> Iterator[Finding]:
    """Judge the angle of the first steps of most layers. Its ratio to equilibrium does not decide.

    needed_warmups  the warmups that slow layers down, by name, the fastest first
    """
    fast = layers.where(lambda layer: layer.start_rotation > MAX_START_ANGLE)
    known = layers.where(lambda layer: isfinite(layer.start_rotation))
    if not fast or 2 * len(fast) <= len(known):
        return
    fast = fast.worst_first(lambda layer: layer.start_rotation)
    angles = format_range([layer.start_rotation for layer in fast], 2)
    where = f"step {fast[0].start_step:,.0f}" + (f" in {fast.label(fast[0])}" if len(fast) > 1 else "")
    yield make_finding(
        "over_rotation",
        "warn",
        f"The first steps rotate {fast.describe()} by {angles} rad, which is very fast ({where}).",
        fast,
        remedies.slower_start(fast[0].warmup, needed_warmups(fast.names)),
        formula=START,
        evidence={"angle": fast[0].start_rotation, "step": fast[0].start_step},
    )


def fast_last_step(layers: Layers) -> Iterator[Finding]:
    """Judge the last step of a checkpoint, in layers whose speed is that of their settings."""
    fast = layers.where(lambda layer: layer.is_comparable and layer.rotation_ratio > limit.MAX_LAST_ROTATION)
    if fast:
        fast = fast.worst_first(lambda layer: layer.rotation_ratio)
        ratios = [layer.rotation_ratio for layer in fast]
        sentence = (
            f"{fast.clause('rotated', 'rotated', worst=True)} {format_range(ratios, 2)} times as fast in the last step "
            "as in equilibrium at its learning rate."
        )
        yield make_finding("over_rotation", "note", sentence, fast, evidence={"ratio": ratios[0]})


def stopped(layers: Layers) -> Iterator[Finding]:
    """Judge layers that do not move any more, by themselves or by a learning rate of 0 that others do not have."""
    is_training = any(layer.final_rate >= limit.MIN_FULL_RATE for layer in layers)
    still = layers.where(lambda layer: layer.late_ratio < limit.MAX_STOPPED_ROTATION)
    off = layers.where(lambda layer: layer.final_rate < limit.MIN_RATE_SHARE and layer not in still)
    if still:
        ratios = format_range([layer.late_ratio for layer in still], 2)
        yield _stopped(still, f"Rotation at the end is {ratios} times the prediction.", NOTHING)
    if off and is_training:
        share = format_range([100 * layer.final_rate for layer in off], 2)
        why = f"The learning rate is {share} % of its peak, while other layers go on training."
        yield _stopped(off, why, FIND_SETTING)


def _stopped(layers: Layers, why: str, remedy: Remedy) -> Finding:
    step = min(layer.stopped_at for layer in layers)
    sentence = f"{layers.clause('stopped', 'stopped')} moving at step {step:,.0f}. {why}"
    return make_finding("stopped", "note", sentence, layers, remedy, evidence={"step": step})


def dead_vectors(layers: Layers) -> Iterator[Finding]:
    """Judge the share of a layer's vectors that is dead. If all are, the layer is not used, or the network is dead."""
    unused = layers.where(lambda layer: _share(layer) >= 1)
    if unused:
        sentence = f"{unused.clause('has', 'have')} no gradient at all. Weight decay shrinks the weights to nothing."
        evidence = {"dead_vectors": float(sum(layer.dead for layer in unused)), "worst_share": 1.0}
        remedy = REVIVE if 1 < len(layers) == len(unused) else CHECK_LAYER
        yield make_finding("dead_vectors", "bad", sentence, unused, remedy, evidence=evidence)
    dead = layers.where(lambda layer: limit.MAX_DEAD_SHARE < _share(layer) < 1).worst_first(_share)
    if not dead:
        return
    worst = _share(dead[0])
    total = sum(layer.dead for layer in dead)
    yield make_finding(
        "dead_vectors",
        "bad" if worst > limit.BAD_DEAD_SHARE else "warn",
        f"{dead.clause('has', 'have')} vectors without any gradient, {total:,} in all: {dead[0].dead:,} in "
        f"{dead.label(dead[0])}, {format_number(100 * worst, 2)} % of it. Weight decay shrinks them to nothing.",
        dead,
        REVIVE,
        evidence={"dead_vectors": float(total), "worst_share": worst},
    )


def _share(layer: LayerFacts) -> float:
    return layer.dead / max(layer.vectors, 1.0)


def frozen_entries(layers: Layers) -> Iterator[Finding]:
    """Judge the share of entries that a step does not change."""
    frozen = layers.where(lambda layer: layer.frozen_share > limit.MAX_FROZEN_SHARE)
    frozen = frozen.worst_first(lambda layer: layer.frozen_share)
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
