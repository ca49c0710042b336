"""Betas with which Adam's updates can grow without bound, and whether they did."""

from collections.abc import Iterator

from gyroscope.advice import remedies
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.judged_layers import Layers, View
from gyroscope.advice.layer_view import UpdateGrowth
from gyroscope.advice.phrases import format_number
from gyroscope.theory import stability

STABILITY = "stable iff ln(β2/β1²) > 0 (exact), C = 2/β1 - 1/β2 - 1 > 0 (CT, continuous)"


def unstable_betas(layers: Layers[View]) -> Iterator[Finding]:
    """Judge each pair of betas. Only a run shows growth."""
    by_betas: dict[tuple[float, float], list[View]] = {}
    for view in layers:
        betas = view.rule.adam_betas if view.rule is not None else None
        if betas is not None and stability.exact_margin(*betas) <= 0:
            by_betas.setdefault(betas, []).append(view)
    for betas, members in by_betas.items():
        growths = {view: growth for view in members if (growth := view.update_growth) is not None}
        grown, evidence = _grown(layers, growths)
        rate = float(stability.growth_rate(*betas, exact=True))
        can = f"can grow e times every {format_number(1 / rate)} steps" if rate > 0 else "can grow without bound"
        yield make_finding(
            "unstable_betas",
            "bad" if grown else "warn",
            f"Betas ({betas[0]:g}, {betas[1]:g}) are outside the stable region: updates {can}{grown}.",
            members,
            remedies.stable_betas(betas[0]),
            formula=STABILITY,
            evidence={"margin": float(stability.exact_margin(*betas)), **evidence},
        )


def _grown(layers: Layers[View], growths: dict[View, UpdateGrowth]) -> tuple[str, dict[str, float]]:
    """Return the layer that grew most, in words, and the numbers; no words if it is within noise."""
    if not growths:
        return "", {}
    worst, growth = max(growths.items(), key=lambda pair: pair[1].factor)
    evidence = {"growth": growth.factor, "max_update": growth.largest}
    if growth.factor <= limit.MAX_UPDATE_GROWTH:
        return "", evidence
    times = f"{format_number(growth.factor, 2)} times in {layers.label(worst)}"
    return f", and grew {times}, to {format_number(growth.largest, 2)} × lr", evidence
