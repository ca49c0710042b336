"""What keeps a layer from learning, or theory from knowing it."""

from collections.abc import Iterator, Sequence
from math import inf, isfinite

import numpy as np

from gyroscope.advice import thresholds as limit
from gyroscope.advice.balance import measured_vectors
from gyroscope.advice.findings import Verdict
from gyroscope.advice.record import Reading
from gyroscope.advice.words import sig, who
from gyroscope.theory import sensitivity, stability


def scale_sensitive(layers: Sequence[Reading]) -> Iterator[Verdict]:
    """Layers whose gradient pulls the norm in or pushes it out, in the median vector, by λ_u."""
    found = []
    for reading in layers:
        radial, error, sure = _radial(reading)
        factor = inf if error <= 0 else max(error, 1 / error)
        if sure and factor > limit.DECAY_ERROR:
            found.append((reading, radial, error, factor))
    if not found:
        return
    found.sort(key=lambda one: -one[3])
    worst, radial, error, _ = found[0]
    speed, distance = worst.speed, worst.mean(worst.distance)
    measured = f"; it turns {sig(speed, 2)} times as far as predicted" if isfinite(speed) else ""
    measured += f" at {sig(distance, 2)} times the norm" if measured and isfinite(distance) else ""
    last = worst.record.layers[-1]
    yield Verdict(
        "scale_sensitive",
        "warn" if any(_effect(one) > limit.SENSITIVE and one.name != last for one, *_ in found) else "note",
        f"{who([one.name for one, *_ in found], 'is', 'are')} not scale-invariant: in {worst.name} the gradient acts "
        f"as λ_u = {sig(radial, 2)} beside a weight decay of {sig(_decay(worst), 2)}{measured}.",
        "Expect it of the last layer; elsewhere put a normalisation after the layer, or use gyro.nn.standardise.",
        tuple(one.name for one, *_ in found),
        {"lambda_u": radial, "decay_error": error},
    )


def _effect(reading: Reading) -> float:
    """By what factor rotation or norm miss their prediction."""
    ratios = [ratio for ratio in (reading.speed, reading.mean(reading.distance)) if ratio > 0]
    return max((max(ratio, 1 / ratio) for ratio in ratios), default=1.0)


def _decay(reading: Reading) -> float:
    return reading.mean(reading.series("weight_decay"))


def _radial(reading: Reading) -> tuple[float, float, bool]:
    """λ_u of the median vector, λ_e/λ, and whether λ_u is surely not 0."""
    values = reading.series("lambda_u", "q50")
    found = values[reading.window & np.isfinite(values)]
    decay = _decay(reading)
    if found.size < 3 or not decay > 0:
        return 0.0, 1.0, False
    radial, error = float(found.mean()), float(found.std(ddof=1)) / found.size**0.5
    return radial, float(sensitivity.decay_error(decay, radial)), abs(radial) > limit.STANDARD_ERRORS * error


def dead_vectors(layers: Sequence[Reading]) -> Iterator[Verdict]:
    """Vectors without a gradient in every judged sample."""
    found = []
    for reading in layers:
        counts = reading.series("dead_vectors")
        counts = counts[reading.window & np.isfinite(counts)]
        if counts.size >= 3 and counts.min() > limit.DEAD * measured_vectors(reading):
            found.append((reading, int(counts.min()), counts.min() / max(measured_vectors(reading), 1.0)))
    if not found:
        return
    found.sort(key=lambda one: -one[2])
    worst, count, share = found[0]
    total = sum(one[1] for one in found)
    yield Verdict(
        "dead_vectors",
        "bad" if share > limit.DEAD_BAD else "warn",
        f"{who([one.name for one, *_ in found], 'has', 'have')} vectors without any gradient, {total:,} in all: "
        f"{count:,} in {worst.name}, {sig(100 * share, 2)} % of it. Weight decay shrinks them to nothing.",
        "Lower the learning rate or lengthen the warmup that killed them, use LeakyReLU or GELU, or make the layer "
        "narrower.",
        tuple(one.name for one, *_ in found),
        {"dead_vectors": float(total), "worst_share": float(share)},
    )


def frozen_entries(layers: Sequence[Reading]) -> Iterator[Verdict]:
    """Weights whose update is smaller than their rounding."""
    found = []
    for reading in layers:
        with np.errstate(divide="ignore", invalid="ignore"):
            share = reading.mean(reading.series("frozen_entries") / reading.series("entries"))
        if isfinite(share) and share > limit.FROZEN:
            found.append((reading, share))
    if not found:
        return
    found.sort(key=lambda one: -one[1])
    worst, share = found[0]
    yield Verdict(
        "frozen_entries",
        "bad" if share > limit.FROZEN_BAD else "warn",
        f"{who([one.name for one, _ in found], 'has', 'have')} entries that a step leaves as they are though they have "
        f"a gradient, {sig(100 * share, 2)} % in {worst.name}: the update is smaller than the weights' rounding.",
        "Keep the weights in float32 and compute in bfloat16 (torch.autocast), or use a rotational optimizer with "
        "stochastic_rounding=True.",
        tuple(one.name for one, _ in found),
        {"worst_share": share},
    )


def unstable_betas(layers: Sequence[Reading]) -> Iterator[Verdict]:
    """Betas with which updates can grow without bound, and whether they did."""
    by_betas: dict[tuple[float, float], list[Reading]] = {}
    for reading in layers:
        if reading.rule is not None and reading.rule.adam_betas is not None:
            beta1, beta2 = reading.rule.adam_betas
            if stability.exact_margin(beta1, beta2) <= 0:
                by_betas.setdefault((beta1, beta2), []).append(reading)
    for (beta1, beta2), ones in by_betas.items():
        worst = max(ones, key=lambda one: _growth(one)[0])
        growth, largest = _growth(worst)
        rate = float(stability.growth_rate(beta1, beta2, exact=True))
        can = f"can grow e times every {sig(1 / rate)} steps" if rate > 0 else "can grow without bound"
        seen = growth > limit.GROWTH
        did = f", and grew {sig(growth, 2)} times in {worst.name}, to {sig(largest, 2)} × lr" if seen else ""
        yield Verdict(
            "unstable_betas",
            "bad" if seen else "warn",
            f"Betas ({beta1:g}, {beta2:g}) are outside the stable region: updates {can}{did}.",
            f"Set beta2 above beta1² = {sig(beta1**2)}, for example betas=({beta1:g}, {_stable(beta1):g}).",
            tuple(one.name for one in ones),
            {"margin": float(stability.exact_margin(beta1, beta2)), "growth": growth, "max_update": largest},
        )


def _stable(beta1: float) -> float:
    """A beta2 well inside the stable region."""
    return float(next(beta2 for beta2 in (0.99, 0.999, 0.9999, (1 + beta1) / 2) if beta2 > beta1))


def _growth(reading: Reading) -> tuple[float, float]:
    """The largest update, in units of lr: late over early, and late."""
    values = reading.series("max_update", "max")
    values = values[np.isfinite(values) & (values > 0)]
    if values.size < limit.SAMPLES:
        return 1.0, float(values[-1]) if values.size else 0.0
    part = max(values.size // 4, 2)
    late = float(np.quantile(values[-2 * part :], 0.95))
    return late / float(np.median(values[:part])), late


def not_measured(layers: Sequence[Reading]) -> Iterator[Verdict]:
    """Layers without a measurement, and those of which theory says nothing."""
    silent = [reading.name for reading in layers if not np.isfinite(reading.angle).any()]
    if silent:
        yield Verdict(
            "not_measured",
            "note",
            f"{who(silent, 'was', 'were')} never measured: no step with a gradient was seen.",
            "Check that the layer is used, and that it is not frozen.",
            tuple(silent),
        )
    unknown = [
        reading.name
        for reading in layers
        if reading.name not in silent and not np.isfinite(reading.predicted_angle).any()
    ]
    if unknown:
        yield Verdict(
            "not_measured",
            "note",
            f"{who(unknown, 'has', 'have')} no prediction: theory does not know the optimizer's rule.",
            "The measurements stand alone; gyro.rule_of(group, optimizer) says what is missing.",
            tuple(unknown),
        )
