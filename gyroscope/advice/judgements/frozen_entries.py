"""Weights in a run whose update is smaller than their rounding."""

from collections.abc import Iterator, Sequence

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.phrases import clause, sig
from gyroscope.advice.remedies import WIDER_WEIGHTS
from gyroscope.advice.run_view import RunView


def frozen_entries(views: Sequence[RunView]) -> Iterator[Finding]:
    """Judge the share of entries that a step leaves as they are."""
    frozen = sorted((v for v in views if v.frozen_share > limit.MAX_FROZEN_SHARE), key=lambda v: -v.frozen_share)
    if not frozen:
        return
    names = [view.name for view in frozen]
    share = frozen[0].frozen_share
    yield make_finding(
        "frozen_entries",
        "bad" if share > limit.BAD_FROZEN_SHARE else "warn",
        f"{clause(names, 'has', 'have')} entries that a step leaves as they are though they have a gradient, "
        f"{sig(100 * share, 2)} % in {names[0]}: the update is smaller than the weights' rounding.",
        names,
        WIDER_WEIGHTS,
        evidence={"worst_share": share},
    )
