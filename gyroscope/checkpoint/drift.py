"""Two checkpoints of one run: how far each layer rotated from one to the other."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from gyroscope._types import Array
from gyroscope.advice.judgements.checkpoint_drift import LayerDrift
from gyroscope.checkpoint.checkpoint_layer import NAN, CheckpointLayer, checkpoint_layers, mean_known
from gyroscope.checkpoint.files.formats import Checkpoint, ParameterState
from gyroscope.checkpoint.last_step.group_step import GroupStep
from gyroscope.checkpoint.last_step.inverse_step import StepSums, angles
from gyroscope.checkpoint.last_step.measuring import blocks, dot
from gyroscope.geometry import Split


def drifts(
    first: Checkpoint,
    second: Checkpoint,
    layers: Mapping[str, CheckpointLayer],
    groups: Sequence[Sequence[GroupStep]],
) -> tuple[LayerDrift, ...]:
    """Return the drift of every layer that both files have, in the model's order. The files must be of one model.

    `layers` are those of the second file, and `groups` the last steps of the groups of both files.
    """
    steps = NAN
    if first.step is not None and second.step is not None:
        steps = float(second.step - first.step)
        if steps <= 0:
            raise ValueError(f"step {first.step:,} and then step {second.step:,}: name the older checkpoint first")
    before = {each.name: each for each in first.parameters}
    moved = []
    for parameter, watched in checkpoint_layers(second.parameters, second.groups):
        old = before.get(parameter.name)
        if old is None:
            continue
        if old.weight.shape != parameter.weight.shape:
            raise ValueError(
                f"{parameter.name!r} has the shape {old.weight.shape} in {first.name!r} and {parameter.weight.shape} "
                f"in {second.name!r}: they belong to different models"
            )
        sums = _sums(old, parameter, watched[0].split)
        share = _mean_rate(old, parameter, groups)
        moved += [_drift(each.name, steps, layers, sums[:, each.start : each.stop], share) for each in watched]
    if not moved:
        raise ValueError("the files have no weight name in common: they belong to different models")
    return tuple(moved)


def _mean_rate(old: ParameterState, new: ParameterState, groups: Sequence[Sequence[GroupStep]]) -> float:
    """Return the mean of the last learning rates of both files over the peak of the second, or 1 if it is unknown."""
    if new.group < 0 or not groups[1][new.group].rates.last > 0:
        return 1.0
    second = groups[1][new.group]
    first = groups[0][old.group] if old.group >= 0 else second
    return (first.rates.last + second.rates.last) / 2 / second.rates.peak


def _sums(old: ParameterState, new: ParameterState, split: Split) -> Array:
    """Return ⟨w,w⟩, ⟨w,d⟩ and ⟨d,d⟩ of each vector w that moved by d. ⟨w,w+d⟩ would lose small rotations."""
    views = split.rows(old.weight.load(), new.weight.load().to(torch.promote_types(old.weight.dtype, new.weight.dtype)))
    sums = np.zeros((3, len(views[0])))
    for place, (w, moved) in blocks(views):
        d = moved - w
        sums[0, place] += dot(w, w)
        sums[1, place] += dot(w, d)
        sums[2, place] += dot(d, d)
    return sums


def _drift(name: str, steps: float, layers: Mapping[str, CheckpointLayer], sums: Array, mean_rate: float) -> LayerDrift:
    layer = layers.get(name)
    ww, wd, dd = sums
    with np.errstate(all="ignore"):
        # The whole way counts as one step of w <- w - u.
        angle = mean_known(angles(StepSums(ww, -wd, dd), lr=1.0, decay=0.0))
        # Over the whole layer, because single vectors of few entries may be reversed by chance.
        kept = float(1 + wd.sum() / ww.sum())
        decay = float(0.0 - np.log(kept)) if kept > 0 else float("inf")
        ratio = float(np.sqrt(1 + (2 * wd + dd).sum() / ww.sum()))
    if layer is None or layer.rule is None:
        return LayerDrift(name, steps, angle, ratio, decay)
    beta = layer.rule.plain.momentum_factor
    lag = 2 * beta / (1 - beta**2)
    # Decay per step is proportional to the learning rate.
    expected = max(steps - lag, 0.0) * mean_rate / layer.timescale
    return LayerDrift(name, steps, angle, ratio, decay, expected, lag)
