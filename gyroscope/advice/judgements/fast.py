"""Layers that rotate fast: in equilibrium, at the start, in a last step, or queries and keys that jump."""

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gyroscope._types import Array
from gyroscope.advice import remedies
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.judged_layers import Layers, View
from gyroscope.advice.phrases import format_number, format_range
from gyroscope.advice.remedies import LOWER_RATE
from gyroscope.advice.run_view import RunView
from gyroscope.theory.law import safe_divide

# Names of queries and keys in other libraries: q_proj, wq, to_q, query, and the parts of a fused weight.
QUERY_OR_KEY = re.compile(r"(?<![^.\[])(?:to_|w|attn_)?(q|k|query|key)(?:_proj|_lin|_linear)?(?=[.\[\]]|$)")
START = "first step AdamW sqrt(τ)·‖ω̂‖/‖ω_0‖, Lion ‖ω̂‖/‖ω_0‖, SGDM sqrt(1-α²)·(‖ω̂‖/‖ω_0‖)², then the recursion"


def fast_rotation(layers: Layers[View]) -> Iterator[Finding]:
    """Judge the rotation that the settings of each layer lead to."""
    fast = layers.where(lambda view: view.predicted_rotation > limit.MAX_ROTATION)
    if fast:
        angles = [view.predicted_rotation for view in fast]
        rotates = fast.clause("rotates", "rotate")
        sentence = f"{rotates} by {format_range(angles, 2)} rad per step in equilibrium, which is very fast."
        evidence = {"angular_update": max(angles)}
        yield make_finding("fast_rotation", "warn", sentence, fast, LOWER_RATE, evidence=evidence)


def fast_start(
    layers: Layers[View],
    has_warmup: Callable[[View], int],
    needed_warmups: Callable[[Sequence[View]], Sequence[int | None]],
    *,
    happened: bool,
) -> Iterator[Finding]:
    """Judge the start of a plan, or of a run if it `happened`.

    has_warmup      steps of warmup that a layer has
    needed_warmups  those that layers need, the fastest first
    """
    starts = {view: start for view in layers if (start := view.start) and start.ratio > limit.MAX_START_ROTATION}
    if not starts:
        return
    fast = layers.where(starts.__contains__).worst_first(lambda view: starts[view].ratio)
    rotates = fast.clause("rotated", "rotated") if happened else fast.clause("rotates", "rotate")
    fastest = starts[fast[0]]
    where = f"step {fastest.step:,.0f}" + (f" in {fast.label(fast[0])}" if len(fast) > 1 else "")
    ratio = format_range([start.ratio for start in starts.values()], 2)
    yield make_finding(
        "over_rotation",
        "note",
        f"{rotates} {ratio} times as fast at the start as in equilibrium at the peak learning rate ({where}).",
        fast,
        remedies.slower_start(has_warmup(fast[0]), needed_warmups(fast)),
        formula="" if happened else START,
        evidence={"ratio": fastest.ratio, "step": float(fastest.step)},
    )


def fast_last_step(layers: Layers[View]) -> Iterator[Finding]:
    """Judge the last step of a checkpoint."""
    fast = layers.where(lambda view: view.rotation_ratio > limit.MAX_START_ROTATION)
    if fast:
        fast = fast.worst_first(lambda view: view.rotation_ratio)
        ratios = [view.rotation_ratio for view in fast]
        sentence = (
            f"{fast.clause('rotated', 'rotated', worst=True)} {format_range(ratios, 2)} times as fast in the last step "
            "as in equilibrium at its learning rate."
        )
        yield make_finding("over_rotation", "note", sentence, fast, evidence={"ratio": ratios[0]})


def attention_jump(layers: Layers[RunView]) -> Iterator[Finding]:
    """Judge the sample at which queries and keys of most blocks rotate much faster than before."""
    blocks: dict[str, list[RunView]] = {}
    for view in layers:
        if QUERY_OR_KEY.search(view.name):
            blocks.setdefault(QUERY_OR_KEY.sub("", view.name), []).append(view)
    pairs = [members for members in blocks.values() if len(members) == 2]
    if len(pairs) < 2:
        return
    # A block jumps if its query and its key do.
    jumps = np.array([np.min([_jumps(view) for view in pair], axis=0) for pair in pairs])
    has_jumped = jumps > limit.MAX_ATTENTION_JUMP
    sample = int(np.argmax(has_jumped.sum(0)))
    count = int(has_jumped[:, sample].sum())
    members = [view for pair, jumped in zip(pairs, has_jumped[:, sample], strict=True) if jumped for view in pair]
    if 2 * count <= len(pairs):
        return
    attention = {view.name for pair in pairs for view in pair}
    others = [_jumps(view)[sample] for view in layers if view.name not in attention]
    usual = float(np.median(others)) if others else 1.0
    ratio = float(np.median(jumps[has_jumped[:, sample], sample]))
    if ratio <= limit.MIN_ATTENTION_ALONE * usual:
        return
    step = float(layers[0].steps[sample])
    faster = f"{format_number(ratio, 2)} times as fast as before, and the other layers {format_number(usual, 2)} times"
    together = f"Queries and keys of {count} of {len(pairs)} blocks jumped together at step {step:,.0f}"
    evidence = {"step": step, "ratio": ratio, "others": usual, "blocks": float(count)}
    yield make_finding("attention_jump", "note", f"{together}. They rotated {faster}.", members, evidence=evidence)


def _jumps(view: RunView) -> Array:
    """Return the rotation of each sample over the median of the samples before it, or 1 if these are too few."""
    speeds = view.speeds
    padded = np.concatenate([np.full(limit.INCIDENT_LEVEL, np.nan), speeds[:-1]])
    before = np.lib.stride_tricks.sliding_window_view(padded, limit.INCIDENT_LEVEL)
    enough = np.isfinite(before).sum(1) >= limit.MIN_SAMPLES
    jumps = np.ones(len(speeds))
    jumps[enough] = safe_divide(speeds[enough], np.nanmedian(before[enough], axis=1))
    return np.where(np.isfinite(jumps), jumps, 1.0)
