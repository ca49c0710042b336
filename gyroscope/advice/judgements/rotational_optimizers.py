"""Rotational optimizers: an angle that is missed, and which case of their recipe applies."""

from collections.abc import Iterator
from math import nan

import numpy as np

from gyroscope.advice import remedies
from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import NOTHING, Finding, make_finding
from gyroscope.advice.judged_layers import Layers
from gyroscope.advice.phrases import format_range
from gyroscope.advice.plan_view import PlanView
from gyroscope.advice.run_view import RunView


def missed_angle(layers: Layers[RunView]) -> Iterator[Finding]:
    """Judge rotation over its target, unless neurons were told to rotate at different speeds."""
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
        has_it = missed[0].option("update_average") == "noise"
        remedy = NOTHING if has_it else remedies.NOISE_AVERAGE
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
    """Judge initial norms over those at which the plain rule would settle."""
    ratios = {view: ratio for view in layers.in_state("keeps norm") if (ratio := _start_ratio(view)) is not None}
    if ratios:
        middle = float(np.median(list(ratios.values())))
        sentence = f"Initial norms are {format_range(ratios.values(), 2)} times those of equilibrium."
        remedy = remedies.ROTATIONAL_START if middle < limit.MIN_START_NORM else NOTHING
        yield make_finding("recipe", "note", sentence, ratios, remedy, evidence={"norm_ratio": middle})


def _start_ratio(view: PlanView) -> float | None:
    layer = view.prediction.layer
    plain = view.rule.plain
    if plain is view.rule or layer.missing(plain):
        return None
    norm = plain.equilibrium(**layer.known).norm
    return float(layer.norm / norm) if norm is not None and np.isfinite(norm) and norm > 0 else None
