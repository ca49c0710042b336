"""What keeps a layer of a run from learning, or theory from predicting it."""

from collections.abc import Iterator, Sequence
from math import inf, isfinite
from typing import NamedTuple

import numpy as np

from gyroscope.advice import phrases
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import Finding
from gyroscope.advice.history import LayerHistory
from gyroscope.advice.phrases import clause, sig
from gyroscope.advice.remedies import CHECK_LAYER, CHECK_RULE, GO_BACK, REVIVE, WIDER_WEIGHTS, stable_betas
from gyroscope.advice.rotation import measured_vectors
from gyroscope.theory import sensitivity, stability


class RadialGradient(NamedTuple):
    """λ_u of a layer's median vector, λ_e/λ, and whether λ_u is surely not 0."""

    lambda_u: float = 0.0
    decay_error: float = 1.0
    is_significant: bool = False

    @property
    def factor(self) -> float:
        """λ_e/λ or its inverse, whichever is above 1; infinite where the gradient outweighs the decay."""
        return inf if self.decay_error <= 0 else max(self.decay_error, 1 / self.decay_error)


def scale_sensitive(histories: Sequence[LayerHistory]) -> Iterator[Finding]:
    """Layers that miss their prediction because the gradient pulls the norm in or pushes it out, by λ_u.

    A fact: networks train well with such layers, and in a transformer every matrix is one.
    """
    radial = {history: _radial(history) for history in histories}
    sensitive = [h for h in histories if radial[h].is_significant and radial[h].factor > limit.DECAY_ERROR]
    sensitive = [history for history in sensitive if _effect(history) > limit.SENSITIVE]
    if not sensitive:
        return
    sensitive.sort(key=lambda history: -radial[history].factor)
    worst = sensitive[0]
    names = tuple(history.name for history in sensitive)
    ratio = worst.mean(worst.norm_ratio)
    measured = f"; it turns {sig(worst.speed, 2)} times as far as predicted" if isfinite(worst.speed) else ""
    measured += f" at {sig(ratio, 2)} times the norm" if measured and isfinite(ratio) else ""
    where = f"in {worst.name} " if len(names) > 1 else ""
    yield Finding(
        "scale_sensitive",
        "note",
        f"{clause(names, 'is', 'are')} not scale-invariant, so predictions are rough: {where}the gradient acts as "
        f"λ_u = {sig(radial[worst].lambda_u, 2)} beside a weight decay of {sig(_decay(worst), 2)}{measured}.",
        layers=names,
        evidence={"lambda_u": radial[worst].lambda_u, "decay_error": radial[worst].decay_error},
    )


def _effect(history: LayerHistory) -> float:
    """By what factor rotation or norm miss their prediction."""
    ratios = [ratio for ratio in (history.speed, history.mean(history.norm_ratio)) if ratio > 0]
    return max((max(ratio, 1 / ratio) for ratio in ratios), default=1.0)


def _decay(history: LayerHistory) -> float:
    return history.mean(history.series("weight_decay"))


def _radial(history: LayerHistory) -> RadialGradient:
    # The median vector: a few rows with tiny norms would dominate a mean.
    values = history.series("lambda_u", "q50")
    judged = values[history.window & np.isfinite(values)]
    decay = _decay(history)
    if judged.size < 3 or not decay > 0:
        return RadialGradient()
    mean = float(judged.mean())
    standard_error = float(judged.std(ddof=1)) / judged.size**0.5
    error = float(sensitivity.decay_error(decay, mean))
    return RadialGradient(mean, error, abs(mean) > limit.STANDARD_ERRORS * standard_error)


def non_finite_vectors(histories: Sequence[LayerHistory]) -> Iterator[Finding]:
    """Layers of which some vectors are not finite at the end; where all are, the run has diverged."""
    shares = {history.name: history.series("non_finite") for history in histories}
    ends = {name: share[np.isfinite(share)][-1:] for name, share in shares.items()}
    names = tuple(name for name, end in ends.items() if end.size and end[0] > 0)
    if not names:
        return
    worst = max(names, key=lambda name: float(ends[name][0]))
    first = min(int(np.flatnonzero(shares[name] > 0)[0]) for name in names)
    yield Finding(
        "diverged",
        "bad",
        f"{clause(names, 'has', 'have')} vectors that are not finite since step {histories[0].steps[first]:,.0f}: "
        f"{sig(100 * float(ends[worst][0]), 2)} % of {worst} at the end.",
        GO_BACK.text,
        layers=names,
        evidence={"step": float(histories[0].steps[first]), "worst_share": float(ends[worst][0])},
        trial=GO_BACK.trial,
    )


def dead_vectors(histories: Sequence[LayerHistory]) -> Iterator[Finding]:
    """Vectors without a gradient in every judged sample."""
    dead = {history.name: _dead(history) for history in histories}
    shares = {h.name: dead[h.name] / max(measured_vectors(h), 1.0) for h in histories}
    names = tuple(sorted((name for name in dead if shares[name] > limit.DEAD), key=lambda name: -shares[name]))
    if not names:
        return
    worst = names[0]
    total = sum(dead[name] for name in names)
    yield Finding(
        "dead_vectors",
        "bad" if shares[worst] > limit.DEAD_BAD else "warn",
        f"{clause(names, 'has', 'have')} vectors without any gradient, {total:,} in all: {dead[worst]:,} in {worst}, "
        f"{sig(100 * shares[worst], 2)} % of it. Weight decay shrinks them to nothing.",
        REVIVE.text,
        layers=names,
        evidence={"dead_vectors": float(total), "worst_share": shares[worst]},
        trial=REVIVE.trial,
    )


def _dead(history: LayerHistory) -> int:
    # The smallest count: a vector that had a gradient in any judged sample is alive.
    counts = history.series("dead_vectors")
    counts = counts[history.window & np.isfinite(counts)]
    return int(counts.min()) if counts.size >= 3 else 0


def frozen_entries(histories: Sequence[LayerHistory]) -> Iterator[Finding]:
    """Weights whose update is smaller than their rounding."""
    shares = {history.name: _frozen_share(history) for history in histories}
    names = tuple(sorted((name for name in shares if shares[name] > limit.FROZEN), key=lambda name: -shares[name]))
    if not names:
        return
    share = shares[names[0]]
    yield Finding(
        "frozen_entries",
        "bad" if share > limit.FROZEN_BAD else "warn",
        f"{clause(names, 'has', 'have')} entries that a step leaves as they are though they have a gradient, "
        f"{sig(100 * share, 2)} % in {names[0]}: the update is smaller than the weights' rounding.",
        WIDER_WEIGHTS.text,
        layers=names,
        evidence={"worst_share": share},
        trial=WIDER_WEIGHTS.trial,
    )


def _frozen_share(history: LayerHistory) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        share = history.mean(history.series("frozen_entries") / history.series("entries"))
    return share if isfinite(share) else 0.0


def unstable_betas(histories: Sequence[LayerHistory]) -> Iterator[Finding]:
    """Betas with which updates can grow without bound, and whether they did."""
    by_betas: dict[tuple[float, float], list[LayerHistory]] = {}
    for history in histories:
        betas = history.rule.adam_betas if history.rule is not None else None
        if betas is not None and stability.exact_margin(*betas) <= 0:
            by_betas.setdefault(betas, []).append(history)
    for betas, members in by_betas.items():
        worst = max(members, key=lambda history: _growth(history)[0])
        growth, largest = _growth(worst)
        has_grown = growth > limit.GROWTH
        remedy = stable_betas(betas[0])
        grew = f", and grew {sig(growth, 2)} times in {worst.name}, to {sig(largest, 2)} × lr" if has_grown else ""
        yield Finding(
            "unstable_betas",
            "bad" if has_grown else "warn",
            phrases.unstable_betas(*betas, float(stability.growth_rate(*betas, exact=True)), grew),
            remedy.text,
            layers=tuple(member.name for member in members),
            evidence={"margin": float(stability.exact_margin(*betas)), "growth": growth, "max_update": largest},
            trial=remedy.trial,
        )


def _growth(history: LayerHistory) -> tuple[float, float]:
    """The largest update, in units of lr: late over early, and late."""
    values = history.series("max_update", "max")
    values = values[np.isfinite(values) & (values > 0)]
    if values.size < limit.SAMPLES:
        return 1.0, float(values[-1]) if values.size else 0.0
    # The first quarter against the second half; a quantile and a median, for single extremes are noise.
    part = max(values.size // 4, 2)
    late = float(np.quantile(values[-2 * part :], 0.95))
    return late / float(np.median(values[:part])), late


def not_measured(histories: Sequence[LayerHistory]) -> Iterator[Finding]:
    """Layers without a measurement, and those for which theory predicts nothing."""
    silent = tuple(history.name for history in histories if not np.isfinite(history.angle).any())
    if silent:
        yield Finding(
            "not_measured",
            "note",
            f"{clause(silent, 'was', 'were')} never measured: no step with a gradient was seen.",
            CHECK_LAYER.text,
            layers=silent,
        )
    unpredicted = [history for history in histories if not np.isfinite(history.predicted_angle).any()]
    unknown = tuple(history.name for history in unpredicted if history.name not in silent)
    if unknown:
        yield Finding(
            "not_measured",
            "note",
            f"{clause(unknown, 'has', 'have')} no prediction: theory does not know the optimizer's rule.",
            CHECK_RULE.text,
            layers=unknown,
        )
