"""Betas with which Adam's updates can grow without bound, and whether they did."""

from collections.abc import Iterator, Sequence

from gyroscope.advice import phrases, remedies
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.layer_view import LayerView, UpdateGrowth
from gyroscope.advice.phrases import sig
from gyroscope.theory import stability

STABILITY = "stable iff ln(β2/β1²) > 0 (exact), C = 2/β1 - 1/β2 - 1 > 0 (CT, continuous)"


def unstable_betas(views: Sequence[LayerView]) -> Iterator[Finding]:
    """Judge each pair of betas; growth was measured in a run alone."""
    by_betas: dict[tuple[float, float], list[LayerView]] = {}
    for view in views:
        betas = view.rule.adam_betas if view.rule is not None else None
        if betas is not None and stability.exact_margin(*betas) <= 0:
            by_betas.setdefault(betas, []).append(view)
    for betas, members in by_betas.items():
        growths = [(view, growth) for view in members if (growth := view.update_growth) is not None]
        growth_rate = float(stability.growth_rate(*betas, exact=True))
        grown, evidence = _grown(growths)
        yield make_finding(
            "unstable_betas",
            "bad" if grown else "warn",
            phrases.unstable_betas(*betas, growth_rate, grown),
            [view.name for view in members],
            remedies.stable_betas(betas[0]),
            formula=STABILITY,
            evidence={"margin": float(stability.exact_margin(*betas)), **evidence},
        )


def _grown(growths: Sequence[tuple[LayerView, UpdateGrowth]]) -> tuple[str, dict[str, float]]:
    """Return the layer that grew most, in words, and the numbers; no words if it is within noise."""
    if not growths:
        return "", {}
    worst, growth = max(growths, key=lambda pair: pair[1].factor)
    evidence = {"growth": growth.factor, "max_update": growth.largest}
    if growth.factor <= limit.MAX_UPDATE_GROWTH:
        return "", evidence
    return f", and grew {sig(growth.factor, 2)} times in {worst.name}, to {sig(growth.largest, 2)} × lr", evidence
