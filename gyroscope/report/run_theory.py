"""Theory for a run: the plane of learning rate and weight decay, the stable region, bounds of updates."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gyroscope._types import Array, Int64
from gyroscope.advice.history import LayerHistory
from gyroscope.advice.thresholds import MIN_RATE_SHARE
from gyroscope.theory import SGDM, AdamW, Lion, UpdateRule, match
from gyroscope.theory import stability as adam
from gyroscope.theory.law import Weights

# Points along each axis of the plane.
GRID = 33
# Factor by which the plane extends beyond the points on it.
MARGIN = 5.0
# Optimizers whose equivalent settings are shown.
OTHERS: tuple[tuple[type[UpdateRule], dict[str, Any]], ...] = ((AdamW, {}), (SGDM, {"momentum": 0.9}), (Lion, {}))


def plane(layers: Sequence[LayerHistory]) -> dict[str, Any] | None:
    """Return rotation and timescale over a grid of learning rates and weight decays, rows by weight decay.

    It is around the group with the most layers. None if the theory does not cover its rule, or if it has no decay.
    `neighbours` are equivalent settings of other optimizers.
    """
    groups = Counter(history.layer.group for history in layers)
    group = groups.most_common(1)[0][0]
    members = [history for history in layers if history.layer.group == group]
    rule: Any = members[0].rule
    if rule is None or not (rule.lr > 0 and rule.weight_decay > 0):
        return None
    weights = _typical(members)
    neighbours = list(_neighbours(rule, weights))
    rates = members[0].lr
    # A schedule that ends at zero would stretch a logarithmic axis without limit.
    rates = rates[rates > MIN_RATE_SHARE * rule.lr]
    decays = members[0].series("weight_decay")
    lr = _axis([rule.lr, *rates, *(neighbour["lr"] for neighbour in neighbours)])
    weight_decay = _axis([rule.weight_decay, *decays, *(neighbour["weight_decay"] for neighbour in neighbours)])
    rotation = np.full((GRID, GRID), np.nan)
    timescale = np.full((GRID, GRID), np.nan)
    for row, decay in enumerate(weight_decay.tolist()):
        try:
            with np.errstate(all="ignore"):
                equilibrium = rule.replace(lr=float(lr[0]), weight_decay=decay).at(lr, weights)
        except ValueError:  # invalid settings of the rule leave a gap
            continue
        rotation[row] = np.nan if equilibrium.angular_update is None else equilibrium.angular_update
        timescale[row] = np.nan if equilibrium.timescale is None else equilibrium.timescale
    grid = {"lr": lr, "weight_decay": weight_decay, "rotation": rotation, "timescale": timescale}
    return {"group": group, **grid, "neighbours": neighbours}


def _typical(layers: Sequence[LayerHistory]) -> Weights:
    """Return the median layer, with its gradient if one was measured."""
    middle = sorted(layers, key=lambda history: history.layer.fan_in)[len(layers) // 2]
    grads = [history.mean(history.series("unit_grad_norm", "rms")) for history in layers]
    known = [grad for grad in grads if grad > 0]
    return Weights(float(middle.layer.fan_in), float(np.median(known)) if known else None, tuple(middle.layer.shape))


def _neighbours(rule: UpdateRule, weights: Weights) -> Iterator[dict[str, Any]]:
    for other, fixed in OTHERS:
        if rule.name == other.__name__:
            continue
        try:
            matched = match(rule, other, **vars(weights), **fixed)
        except ValueError:  # an input is missing, or there are no such settings
            continue
        settings: Any = matched.rule
        yield {
            "name": other.__name__,
            "lr": settings.lr,
            "weight_decay": settings.weight_decay,
            "kept": matched.kept,
            "rotation": matched.ratios.get("rotation"),
        }


def _axis(values: Sequence[float]) -> Array:
    known = [value for value in values if 0 < value < np.inf]
    return np.geomspace(min(known) / MARGIN, max(known) * MARGIN, GRID)


def _betas(layers: Sequence[LayerHistory]) -> list[tuple[float, float]]:
    """Return the pairs of Adam's betas, whose two averages can be unstable."""
    pairs = [history.rule.adam_betas for history in layers if history.rule is not None]
    return list(dict.fromkeys(pair for pair in pairs if pair is not None))


def stability(layers: Sequence[LayerHistory]) -> dict[str, Any] | None:
    """Return Adam's betas with their exact margin, and for each `beta2` the largest stable beta1.

    `continuous` is by the criterion in continuous time, and `exact` by the exact one. None if no layer has Adam.
    """
    pairs = _betas(layers)
    if not pairs:
        return None
    betas = [
        {"beta1": beta1, "beta2": beta2, "exact_margin": float(adam.exact_margin(beta1, beta2))}
        for beta1, beta2 in pairs
    ]
    # Evenly spaced on the axis, which shows 1 - beta2 on a logarithmic scale.
    beta2 = 1 - np.geomspace(0.9, 1e-5, 60)
    continuous = np.asarray(adam.level_curve(0.0, beta2))
    return {"betas": betas, "beta2": beta2, "continuous": continuous, "exact": np.sqrt(beta2)}


def bound_of(layers: Sequence[LayerHistory]) -> tuple[list[tuple[float, float]], bool]:
    """Return what bounds the updates of some layers: pairs of Adam's betas, and whether any layer uses Lion.

    A step that is scaled to an angle is bounded by neither.
    """
    plain = [history for history in layers if not history.keeps_norm]
    return _betas(plain), any(history.rule is not None and history.rule.sign_beta is not None for history in plain)


def update_bound(bound: tuple[list[tuple[float, float]], bool], steps: Int64) -> Array:
    """Return the largest possible entry of an update in units of lr, at each step, for the loosest group.

    It is 1 for Lion, and NaN if no layer is trained by Adam or Lion.
    """
    betas, has_signs = bound
    bounds = [np.asarray(adam.update_bound(steps, *pair, exact=True)) for pair in betas]
    bounds += [np.ones(len(steps))] if has_signs else []
    return np.max(bounds, axis=0) if bounds else np.full(len(steps), np.nan)
