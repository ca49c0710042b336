"""Options of optimizers: initial norms that are too small, and unstable betas."""

from collections.abc import Iterator
from math import isfinite
from statistics import median

from gyroscope.advice import remedies
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.layer_facts import LayerFacts, Layers
from gyroscope.advice.phrases import format_number, format_range
from gyroscope.theory import stability

STABILITY = "stable iff ln(β2/β1²) > 0 (exact), C = 2/β1 - 1/β2 - 1 > 0 (CT, continuous)"


def small_norms(layers: Layers) -> Iterator[Finding]:
    """Judge the initial norms that an optimizer keeps by those of the plain rule. A remedy was tried for AdamW."""
    known = layers.where(lambda layer: isfinite(layer.start_norm))
    ratios = [layer.start_norm for layer in known]
    if ratios and median(ratios) < limit.MIN_START_NORM:
        times = format_range(ratios, 2)
        sentence = f"Initial norms, which the optimizer keeps, are {times} times those of AdamW's equilibrium."
        evidence = {"norm_ratio": median(ratios)}
        yield make_finding("small_norms", "warn", sentence, known, remedies.ROTATIONAL_START, evidence=evidence)


def unstable_betas(layers: Layers) -> Iterator[Finding]:
    """Judge each pair of betas."""
    by_betas: dict[tuple[float, float], list[LayerFacts]] = {}
    for layer in layers:
        betas = layer.rule.adam_betas if layer.rule is not None else None
        if betas is not None and stability.exact_margin(*betas) <= 0:
            by_betas.setdefault(betas, []).append(layer)
    for betas, members in by_betas.items():
        rate = float(stability.growth_rate(*betas, exact=True))
        can = f"can grow by a factor e every {format_number(1 / rate)} steps" if rate > 0 else "can grow without bound"
        yield make_finding(
            "unstable_betas",
            "warn",
            f"Betas ({betas[0]:g}, {betas[1]:g}) are outside the stable region: updates {can}.",
            members,
            remedies.stable_betas(betas[0]),
            formula=STABILITY,
            evidence={"margin": float(stability.exact_margin(*betas))},
        )
