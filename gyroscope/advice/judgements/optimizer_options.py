"""Options of optimizers: a missed angle, initial norms for which a recipe helps, and unstable betas."""

from collections.abc import Iterator
from math import nan

import numpy as np

from gyroscope.advice import remedies
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import NOTHING, Finding, make_finding
from gyroscope.advice.judged_layers import Layers, View
from gyroscope.advice.layer_view import UpdateGrowth
from gyroscope.advice.phrases import format_number, format_range
from gyroscope.advice.plan_view import PlanView
from gyroscope.advice.run_view import RunView
from gyroscope.theory import AdamW, stability

STABILITY = "stable iff ln(β2/β1²) > 0 (exact), C = 2/β1 - 1/β2 - 1 > 0 (CT, continuous)"


def missed_angle(layers: Layers[RunView]) -> Iterator[Finding]:
    """Judge rotation over its target, unless neurons were set to rotate at different speeds."""
    missed = layers.where(_misses).worst_first(_miss)
    if missed:
        ratios = [_angle_ratio(view) for view in missed]
        beta = missed[0].option("beta")
        average = "average of update lengths" + (f" (beta = {beta:g})" if isinstance(beta, float) else "")
        change = "shrink" if _angle_ratio(missed[0]) < 1 else "grow"
        optimizer = missed[0].option("optimizer")
        sentence = (
            f"{optimizer} rotates {missed.describe(worst=True)} by {format_range(ratios, 2)} times its target angle. "
            f"Its {average} lags behind updates that {change}."
        )
        evidence = {"slowest": min(ratios), "fastest": max(ratios)}
        is_plain = optimizer == "RotationalAdamW" and missed[0].option("update_average") != "noise"
        remedy = remedies.NOISE_AVERAGE if is_plain else NOTHING
        yield make_finding("missed_angle", "note", sentence, missed, remedy, evidence=evidence)


def _misses(view: RunView) -> bool:
    sets_angle = view.keeps_norm and not view.sets_imbalance and _angle_ratio(view) > 0
    return sets_angle and _miss(view) > limit.MAX_MISSED_ANGLE


def _miss(view: RunView) -> float:
    return max(_angle_ratio(view), 1 / _angle_ratio(view))


def _angle_ratio(view: RunView) -> float:
    """Return measured over target rotation, at the end if that is further off."""
    ratios = [ratio for ratio in (view.rotation_ratio, view.late_rotation_ratio) if ratio > 0]
    return max(ratios, key=lambda ratio: max(ratio, 1 / ratio), default=nan)


def rotational_recipe(layers: Layers[PlanView]) -> Iterator[Finding]:
    """Judge initial norms by those at which the plain rule would settle."""
    ratios = {view: ratio for view in layers.in_state("keeps norm") if (ratio := _start_ratio(view)) is not None}
    if ratios:
        middle = float(np.median(list(ratios.values())))
        sentence = f"Initial norms are {format_range(ratios.values(), 2)} times those of equilibrium."
        is_tried = all(isinstance(view.rule.plain, AdamW) for view in ratios)
        remedy = remedies.ROTATIONAL_START if is_tried and middle < limit.MIN_START_NORM else NOTHING
        yield make_finding("recipe", "note", sentence, ratios, remedy, evidence={"norm_ratio": middle})


def _start_ratio(view: PlanView) -> float | None:
    layer = view.prediction.layer
    plain = view.rule.plain
    if plain is view.rule or layer.missing(plain):
        return None
    norm = plain.equilibrium(**layer.known).norm
    return float(layer.norm / norm) if norm is not None and np.isfinite(norm) and norm > 0 else None


def unstable_betas(layers: Layers[View]) -> Iterator[Finding]:
    """Judge each pair of betas. Growth is known only for a run."""
    by_betas: dict[tuple[float, float], list[View]] = {}
    for view in layers:
        betas = view.rule.adam_betas if view.rule is not None else None
        if betas is not None and stability.exact_margin(*betas) <= 0:
            by_betas.setdefault(betas, []).append(view)
    for betas, members in by_betas.items():
        growths = {view: growth for view in members if (growth := view.update_growth) is not None}
        grown, evidence = _grown(layers, growths)
        rate = float(stability.growth_rate(*betas, exact=True))
        can = f"can grow by a factor e every {format_number(1 / rate)} steps" if rate > 0 else "can grow without bound"
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
    """Return a phrase for the layer that grew most, and the numbers. The phrase is empty if growth is within noise."""
    if not growths:
        return "", {}
    worst, growth = max(growths.items(), key=lambda pair: pair[1].factor)
    evidence = {"growth": growth.factor, "max_update": growth.largest}
    if growth.factor <= limit.MAX_UPDATE_GROWTH:
        return "", evidence
    times = f"{format_number(growth.factor, 2)} times in {layers.label(worst)}"
    return f", and grew {times}, to {format_number(growth.largest, 2)} × lr", evidence
