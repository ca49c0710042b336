"""Queries and keys that jump together in most blocks of a transformer."""

import re
from collections.abc import Iterator

import numpy as np

from gyroscope._types import Array
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.judged_layers import Layers
from gyroscope.advice.phrases import format_number
from gyroscope.advice.run_view import RunView
from gyroscope.theory.law import safe_divide

# How libraries call them: q_proj, wq, to_q, query, and the parts of a fused weight.
QUERY_OR_KEY = re.compile(r"(?:(?<=\.)|^)(?:to_|w|attn_)?(q|k|query|key)(?:_proj|_lin|_linear)?(?=\.|\[|$)")


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
    if usual > limit.MAX_ATTENTION_JUMP:
        return
    ratio = float(np.median(jumps[has_jumped[:, sample], sample]))
    step = float(layers[0].steps[sample])
    faster = f"{format_number(ratio, 2)} times as fast as before, and the other layers {format_number(usual, 2)} times"
    together = f"Queries and keys of {count} of {len(pairs)} blocks jumped together at step {step:,.0f}"
    evidence = {"step": step, "ratio": ratio, "others": usual, "blocks": float(count)}
    yield make_finding("attention_jump", "note", f"{together}. They rotated {faster}.", members, evidence=evidence)


def _jumps(view: RunView) -> Array:
    """Return the rotation of each sample over the median of the samples before it; 1 if these are too few."""
    speeds = view.speeds
    padded = np.concatenate([np.full(limit.INCIDENT_LEVEL, np.nan), speeds[:-1]])
    before = np.lib.stride_tricks.sliding_window_view(padded, limit.INCIDENT_LEVEL)
    enough = np.isfinite(before).sum(1) >= limit.MIN_SAMPLES
    jumps = np.ones(len(speeds))
    jumps[enough] = safe_divide(speeds[enough], np.nanmedian(before[enough], axis=1))
    return np.where(np.isfinite(jumps), jumps, 1.0)
