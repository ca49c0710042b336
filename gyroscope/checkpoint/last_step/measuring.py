"""One pass over a weight and its optimizer state: a few sums per vector, in float64, block by block."""

from collections.abc import Iterator, Mapping
from math import ceil, prod

import numpy as np
import torch
from torch import Tensor

from gyroscope._types import Array
from gyroscope.checkpoint.files.formats import ParameterState
from gyroscope.checkpoint.files.reading import StoredTensor
from gyroscope.checkpoint.last_step.inverse_step import StepSums, VectorMeasurement
from gyroscope.checkpoint.last_step.last_update import LastUpdate
from gyroscope.geometry import Split

# Entries that are processed at once. In float64 they, the state and the direction stay in a processor's cache.
AT_ONCE = 2**16


def measure(parameter: ParameterState, split: Split, update: LastUpdate) -> VectorMeasurement:
    """Return all sums of a parameter."""
    weight = parameter.weight
    kept = _kept(parameter, split, update)
    steps = parameter.step or 1
    turns = parameter.count("turns") or parameter.step
    has_count = bool(parameter.step or not update.counted) and bool(turns or not update.turns)
    has_all = all(isinstance(parameter.state.get(name), StoredTensor) for name in update.keys)
    known = kept is not None and has_count and has_all and len(update.keys) > 0
    names = update.keys if known else ()
    views = split.rows(weight.load(), *(_entries(parameter, name) for name in names))
    sums, moments, ones, (state_sum,) = (np.zeros((count, len(views[0]))) for count in (3, 2, 2, 1))
    if not known or update.direction is None:
        sums[1:] = np.nan
    if not known or update.adam_betas is None:
        moments[:] = np.nan
    for place, (w, *state) in blocks(views):
        sums[0, place] += dot(w, w)
        for part in state:
            # Before `direction`, which may overwrite its tensors.
            state_sum[place] += part.sum(1).numpy()
        if known and update.direction is not None:
            u = update.direction(state, steps)
            sums[1, place] += dot(w, u)
            sums[2, place] += dot(u, u)
            if update.turns:
                ones[:, place] += np.stack([w.sum(1), u.sum(1)])
        if known and update.adam_betas is not None:
            beta1, beta2 = update.adam_betas
            moments[0, place] += dot(state[0], state[0]) / (1 - beta1**steps) ** 2
            moments[1, place] += state[1].sum(1).numpy() / (1 - beta2**steps)
    return VectorMeasurement(
        known,
        StepSums(*sums),
        moments,
        ones,
        state_sum,
        kept or {},
        weight.shape,
        split.fan_in(weight.shape),
        weight.dtype,
        steps,
        turns or steps,
    )


def _entries(parameter: ParameterState, name: str) -> Tensor:
    """Return a state tensor of the weight's shape."""
    shape = parameter.weight.shape
    stored: StoredTensor = parameter.state[name]
    if stored.shape != shape:
        raise ValueError(
            f"the optimizer's {name} of {parameter.name!r} has the shape {stored.shape}, the weight {shape}. They are "
            "not from the same model"
        )
    return stored.load()


def _kept(parameter: ParameterState, split: Split, update: LastUpdate) -> Mapping[str, Array] | None:
    """Return the per-vector state needed to reconstruct the step, or None if any is missing."""
    values = {}
    for name in update.rows:
        value = parameter.state.get(name)
        if not isinstance(value, StoredTensor):
            return None
        count = split.num_vectors(parameter.weight.shape)
        if prod(value.shape) != count:
            raise ValueError(
                f"the optimizer's {name} of {parameter.name!r} has the shape {value.shape}, the weight {count} vectors."
                " They are not from the same model"
            )
        values[name] = value.load().to(torch.float64).numpy().ravel()
    return values


def blocks(views: list[Tensor]) -> Iterator[tuple[slice, list[Tensor]]]:
    """Yield parts of matrices of vectors as float64 copies: some rows each, or a piece of a long row."""
    vectors = len(views[0])
    entries = views[0][:1].numel()
    pieces = max(1, ceil(entries / AT_ONCE))
    width = ceil(entries / pieces)
    height = max(1, AT_ONCE // max(width, 1))
    for top in range(0, vectors, height):
        for left in range(0, entries, width):
            place = slice(top, min(top + height, vectors))
            parts = [view[place].reshape(-1, entries)[:, left : left + width] for view in views]
            yield place, [part.to(torch.float64, copy=True) for part in parts]


def dot(x: Tensor, y: Tensor) -> Array:
    """Return the inner product of each row of x with that of y."""
    return np.asarray(torch.linalg.vecdot(x, y))
