"""Layers that turn faster than in equilibrium: a fact, with a remedy if one is known."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from gyroscope.advice import phrases, remedies
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.layer_view import LayerView, Start
from gyroscope.advice.phrases import clause, span

START = "first step AdamW sqrt(τ)·‖ω̂‖/‖ω_0‖, Lion ‖ω̂‖/‖ω_0‖, SGDM sqrt(1-α²)·(‖ω̂‖/‖ω_0‖)², then the recursion"

View = TypeVar("View", bound=LayerView)


def fast_start(
    views: Sequence[View],
    has_warmup: Callable[[View], int],
    needed_warmups: Callable[[Sequence[View]], Sequence[int | None]],
    *,
    happened: bool,
) -> Iterator[Finding]:
    """Judge the start of a plan, or of a run, where it `happened`.

    has_warmup      steps of warmup that a layer has
    needed_warmups  those that layers need, the fastest first
    """
    starts = [(view, start) for view in views if (start := view.start) and start.ratio > limit.MAX_START_ROTATION]
    if not starts:
        return
    starts.sort(key=_slowness)
    fast = [view for view, _ in starts]
    names = [view.name for view in fast]
    fastest = starts[0][1]
    yield make_finding(
        "over_rotation",
        "note",
        phrases.starts_faster(names, [start.ratio for _, start in starts], fastest.step, happened),
        names,
        remedies.slower_start(has_warmup(fast[0]), needed_warmups(fast)),
        formula="" if happened else START,
        evidence={"ratio": fastest.ratio, "step": float(fastest.step)},
    )


def _slowness(pair: tuple[LayerView, Start]) -> float:
    return -pair[1].ratio


def fast_last_step(views: Sequence[LayerView]) -> Iterator[Finding]:
    """Judge the last step of a checkpoint."""
    fast = [view for view in views if view.rotation_ratio > limit.MAX_START_ROTATION]
    if not fast:
        return
    fast.sort(key=lambda view: -view.rotation_ratio)
    names = [view.name for view in fast]
    ratios = [view.rotation_ratio for view in fast]
    sentence = (
        f"{clause(names, 'turned', 'turned')} {span(ratios, 2)} times as fast in the last step as in equilibrium at "
        "its rate."
    )
    yield make_finding("over_rotation", "note", sentence, names, evidence={"ratio": ratios[0]})
