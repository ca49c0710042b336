"""Layers that rotate fast: in equilibrium, at the start or in a last step."""

from collections.abc import Callable, Iterator, Sequence

from gyroscope.advice import remedies
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.judged_layers import Layers, View
from gyroscope.advice.phrases import format_range
from gyroscope.advice.remedies import LOWER_RATE

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
