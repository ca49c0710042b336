"""Options of optimizers: initial norms that are too small, and unstable betas."""

from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np

from gyroscope.advice import remedies
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding, make_finding
from gyroscope.advice.layer_facts import LayerFacts, Layers
from gyroscope.advice.phrases import format_number, format_range
from gyroscope.theory import stability
from gyroscope.theory.layer_prediction import LayerPrediction

STABILITY = "stable iff ln(β2/β1²) > 0 (exact), C = 2/β1 - 1/β2 - 1 > 0 (CT, continuous)"


def small_norms(predictions: Sequence[LayerPrediction]) -> Iterator[Finding]:
    """Judge the initial norms that an optimizer keeps by those of the plain rule. A remedy was tried for AdamW."""
    ratios = {each.name: ratio for each in predictions if (ratio := _start_ratio(each)) is not None}
    if ratios and median(ratios.values()) < limit.MIN_START_NORM:
        times = format_range(ratios.values(), 2)
        sentence = f"Initial norms, which the optimizer keeps, are {times} times those of equilibrium."
        evidence = {"norm_ratio": median(ratios.values())}
        yield make_finding("small_norms", "note", sentence, ratios, remedies.ROTATIONAL_START, evidence=evidence)


def _start_ratio(prediction: LayerPrediction) -> float | None:
    plain = prediction.rule.plain
    is_tried = prediction.rule.keeps_norm and not prediction.rule.follows_base
    is_tried = is_tried and plain.is_decoupled and plain.adam_betas is not None
    if not is_tried or plain is prediction.rule or prediction.layer.missing(plain):
        return None
    norm = plain.equilibrium(**prediction.layer.known).norm
    return float(prediction.layer.norm / norm) if norm is not None and np.isfinite(norm) and norm > 0 else None


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
