"""What theory draws around a run: the plane of learning rate and weight decay, the stable region, bounds of updates."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gyroscope.advice.history import LayerHistory
from gyroscope.render.run_data import Array, Betas, Neighbour, Plane, Stability
from gyroscope.theory import SGDM, AdamW, Lion, UpdateRule, match
from gyroscope.theory import stability as adam
from gyroscope.theory.law import Weights

GRID = 33
"""Points along each axis of the plane."""
MARGIN = 5.0
"""Factor by which the plane goes beyond what lies on it."""
OTHERS: tuple[tuple[type[UpdateRule], dict[str, Any]], ...] = ((AdamW, {}), (SGDM, {"momentum": 0.9}), (Lion, {}))
"""Optimizers whose equivalent settings are shown."""


class Bound(NamedTuple):
    """What bounds the entries of updates: pairs of Adam's betas, and whether there are Lion's signs."""

    betas: set[tuple[float, float]]
    signs: bool


def plane(layers: Sequence[LayerHistory]) -> Plane | None:
    """Around the group with the most layers; None where theory does not know its rule, or it has no decay."""
    groups = Counter(reading.layer.group for reading in layers)
    group = groups.most_common(1)[0][0]
    members = [reading for reading in layers if reading.layer.group == group]
    rule: Any = members[0].rule
    if rule is None or not (rule.lr > 0 and rule.weight_decay > 0):
        return None
    weights = _typical(members)
    neighbours = list(_neighbours(rule, weights))
    rates, decays = members[0].lr, members[0].series("weight_decay")
    worth = rates[rates > 0.01 * rule.lr]  # the end of a schedule goes to nothing, and would stretch the plane
    lr = _axis([rule.lr, *worth, *(one.lr for one in neighbours)])
    weight_decay = _axis([rule.weight_decay, *decays, *(one.weight_decay for one in neighbours)])
    rotation, timescale = np.full((2, GRID, GRID), np.nan)
    for row, decay in enumerate(weight_decay.tolist()):
        try:
            with np.errstate(all="ignore"):
                found = rule.replace(lr=float(lr[0]), weight_decay=decay).at(lr, weights)
        except ValueError:  # what the rule cannot do leaves a gap
            continue
        rotation[row] = np.nan if found.angular_update is None else found.angular_update
        timescale[row] = np.nan if found.timescale is None else found.timescale
    return Plane(group, lr, weight_decay, rotation, timescale, neighbours)


def _typical(layers: Sequence[LayerHistory]) -> Weights:
    """The median layer; its gradient where one was measured."""
    middle = sorted(layers, key=lambda reading: reading.layer.fan_in)[len(layers) // 2]
    grads = [reading.mean(reading.series("unit_grad_norm", "rms")) for reading in layers]
    known = [grad for grad in grads if grad > 0]
    return Weights(float(middle.layer.fan_in), float(np.median(known)) if known else None, tuple(middle.layer.shape))


def _neighbours(rule: UpdateRule, weights: Weights) -> Iterator[Neighbour]:
    for other, fixed in OTHERS:
        if rule.name == other.__name__:
            continue
        try:
            found = match(rule, other, fan_in=weights.fan_in, unit_grad_norm=weights.unit_grad_norm, **fixed)
        except ValueError:  # an input is missing, or there are no such settings
            continue
        settings: Any = found.rule
        ratio = found.ratios.get("rotation")
        rotation = float("nan") if ratio is None else ratio
        yield Neighbour(other.__name__, settings.lr, settings.weight_decay, found.kept, rotation)


def _axis(values: Sequence[float]) -> Array:
    known = [value for value in values if 0 < value < np.inf]
    return np.geomspace(min(known) / MARGIN, max(known) * MARGIN, GRID)


def betas_of(reading: LayerHistory) -> tuple[float, float] | None:
    """Adam's, where the stability of its two averages is a question."""
    return None if reading.rule is None else reading.rule.adam_betas


def stability(layers: Sequence[LayerHistory]) -> Stability | None:
    """Where the betas stand; None where no layer is trained by Adam."""
    pairs = list(dict.fromkeys(betas for reading in layers if (betas := betas_of(reading)) is not None))
    if not pairs:
        return None
    found = [Betas(*pair, float(adam.margin(*pair)), float(adam.exact_margin(*pair))) for pair in pairs]
    beta2 = 1 - np.geomspace(0.9, 1e-5, 60)
    return Stability(found, beta2, np.asarray(adam.level_curve(0.0, beta2)), np.sqrt(beta2))


def bound_of(layers: Sequence[LayerHistory]) -> Bound:
    """What bounds the updates of some layers: the betas of Adam, and Lion's signs.

    A step that is scaled to an angle is bounded by neither.
    """
    plain = [reading for reading in layers if not reading.keeps_norm]
    betas = {pair for reading in plain if (pair := betas_of(reading)) is not None}
    return Bound(betas, any(reading.rule is not None and reading.rule.sign_beta is not None for reading in plain))


def update_bound(bound: Bound, steps: npt.NDArray[np.int64]) -> Array:
    """Largest entry of an update in units of lr that any gradients could make, at each step: that of the loosest group.

    Lion's is 1. NaN where neither Adam nor Lion trains.
    """
    bounds = [np.asarray(adam.update_bound(steps, *pair, exact=True)) for pair in bound.betas]
    bounds += [np.ones(len(steps))] if bound.signs else []
    return np.max(bounds, axis=0) if bounds else np.full(len(steps), np.nan)
