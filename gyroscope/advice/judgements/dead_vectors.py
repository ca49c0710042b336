"""Vectors without any gradient, in a run or in a checkpoint."""

from collections.abc import Iterator, Sequence

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.layer_view import LayerView
from gyroscope.advice.phrases import clause, sig
from gyroscope.advice.remedies import REVIVE


def dead_vectors(views: Sequence[LayerView]) -> Iterator[Finding]:
    """Judge the share of a layer's vectors that is dead."""
    shares = {view: view.dead / max(view.vectors, 1.0) for view in views}
    dead = sorted((view for view in views if shares[view] > limit.MAX_DEAD_SHARE), key=lambda view: -shares[view])
    if not dead:
        return
    worst = dead[0]
    names = [view.name for view in dead]
    total = sum(view.dead for view in dead)
    yield make_finding(
        "dead_vectors",
        "bad" if shares[worst] > limit.BAD_DEAD_SHARE else "warn",
        f"{clause(names, 'has', 'have')} vectors without any gradient, {total:,} in all: {worst.dead:,} in "
        f"{worst.name}, {sig(100 * shares[worst], 2)} % of it. Weight decay shrinks them to nothing.",
        names,
        REVIVE,
        evidence={"dead_vectors": float(total), "worst_share": shares[worst]},
    )
