"""Weights that do not move: vectors without any gradient, and updates smaller than rounding."""

from collections.abc import Iterator

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.judged_layers import Layers, View
from gyroscope.advice.layer_view import LayerView
from gyroscope.advice.phrases import format_number
from gyroscope.advice.remedies import REVIVE, WIDER_WEIGHTS
from gyroscope.advice.run_view import RunView


def dead_vectors(layers: Layers[View]) -> Iterator[Finding]:
    """Judge the share of a layer's vectors that is dead."""
    dead = layers.where(lambda view: _share(view) > limit.MAX_DEAD_SHARE).worst_first(_share)
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
    """Judge the share of entries that a step leaves as they are."""
    frozen = layers.where(lambda view: view.frozen_share > limit.MAX_FROZEN_SHARE)
    frozen = frozen.worst_first(lambda view: view.frozen_share)
    if not frozen:
        return
    share = frozen[0].frozen_share
    yield make_finding(
        "frozen_entries",
        "bad" if share > limit.BAD_FROZEN_SHARE else "warn",
        f"{frozen.clause('has', 'have')} entries that a step leaves as they are though they have a gradient, "
        f"{format_number(100 * share, 2)} % in {frozen.label(frozen[0])}. The update is smaller than the rounding of "
        "the weights.",
        frozen,
        WIDER_WEIGHTS,
        evidence={"worst_share": share},
    )
