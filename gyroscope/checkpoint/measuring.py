"""One pass over a weight and its optimizer state: a few sums per vector, in float64, block by block."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import final

import numpy as np
import torch
from torch import Tensor

from gyroscope._types import Array
from gyroscope.checkpoint.formats import ParameterState
from gyroscope.checkpoint.last_step import StepSums
from gyroscope.checkpoint.reading import StoredTensor
from gyroscope.checkpoint.saved_optimizers import LastUpdate
from gyroscope.geometry import Split

# Entries that are worked on at once: in float64 they, the state and the direction stay in a processor's cache.
AT_ONCE = 2**16


@final
@dataclass(frozen=True)
class VectorMeasurement:
    """Sums over each vector of a parameter; `first` and `second` of Adam's m̂² and v̂. NaN without such a state."""

    sums: StepSums
    first: Array
    second: Array

    def part(self, start: int, stop: int) -> "VectorMeasurement":
        """The same of some of the vectors."""
        of = slice(start, stop)
        sums = StepSums(self.sums.ww[of], self.sums.wu[of], self.sums.uu[of])
        return VectorMeasurement(sums, self.first[of], self.second[of])


def measure(parameter: ParameterState, split: Split, update: LastUpdate) -> VectorMeasurement:
    """All sums of a parameter; its memory is given back at the end."""
    kept = [parameter.state.get(key) for key in update.keys]
    tensors = [each for each in kept if isinstance(each, StoredTensor)]
    known = bool(tensors) and len(tensors) == len(kept)
    step = parameter.step or 1
    stored = [parameter.weight, *(tensors if known else [])]
    views = split.rows(*(each.load() for each in stored))
    rows = np.zeros((5, len(views[0])))
    for place, (w, *state) in blocks(views):
        rows[0, place] += dot(w, w)
        if known and update.direction is not None:
            u = update.direction(state, step)
            rows[1, place] += dot(w, u)
            rows[2, place] += dot(u, u)
        if known and update.adam_betas is not None:
            beta1, beta2 = update.adam_betas
            rows[3, place] += dot(state[0], state[0]) / (1 - beta1**step) ** 2
            rows[4, place] += state[1].sum(1).numpy() / (1 - beta2**step)
    del views
    for each in stored:
        each.release()
    if not known or update.direction is None:
        rows[1:3] = np.nan
    if not known or update.adam_betas is None:
        rows[3:] = np.nan
    return VectorMeasurement(StepSums(*rows[:3]), rows[3], rows[4])


def blocks(views: list[Tensor]) -> Iterator[tuple[slice, list[Tensor]]]:
    """Parts of matrices of vectors, in float64: some rows each, or a piece of a long row."""
    vectors = len(views[0])
    entries = views[0][:1].numel()
    pieces = max(1, ceil(entries / AT_ONCE))
    width = ceil(entries / pieces)
    height = max(1, AT_ONCE // max(width, 1))
    for top in range(0, vectors, height):
        for left in range(0, entries, width):
            place = slice(top, min(top + height, vectors))
            parts = [view[place].reshape(-1, entries)[:, left : left + width].to(torch.float64) for view in views]
            yield place, parts


def dot(x: Tensor, y: Tensor) -> Array:
    """Inner product of each row with its twin."""
    return np.asarray(torch.linalg.vecdot(x, y))
