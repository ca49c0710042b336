"""The tables of sums of each layer, kept from sample to sample, and the layers that share a table.

The sums of a layer are a table: one row for each name in `SUMS`, one column for each piece of a vector. The only large
memory is the copy of the weights that the sums need, in float32 unless the weights are float64. On a CPU, small layers
whose vectors have equal length share a table and are summed together, because calls dominate the time of a small layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np
from torch import Tensor

from gyroscope._types import Number
from gyroscope.measure._pipeline.layers import Ids, Tracked

# ⟨w,w⟩, ⟨w,d⟩ and ‖d - (⟨w,d⟩/⟨w,w⟩)·w‖² of a weight w that moves by d.
TURN = ("ww", "wd", "tt")
SUMS = (
    *TURN,
    "most",  # the largest |d + decay·w| of an entry
    "frozen",  # entries with a gradient that did not move
    "wg",
    "gg",
    "gm",  # m: the momentum before the step, or after it if a closure makes the gradient within the step
    "mm",
    "wm",
    "ws",  # s: the gradient over Adam's denominator b
    "ss",
    "bb",
    "hh",  # h: the gradient after the step, if the step may have rescaled it
    *(f"old_{name}" for name in TURN),  # from the weights at the previous sample to those before this step
    *(f"start_{name}" for name in TURN),  # from the weights at the first sample, of the vectors whose start is kept
)
ROW = {name: number for number, name in enumerate(SUMS)}
OLD = slice(ROW["old_ww"], ROW["old_tt"] + 1)

# Entries that are processed at once on a CPU, so that they fit into its cache.
AT_ONCE_CPU = 2**17
# Layers with at most this many entries are summed together. For larger layers, arithmetic takes most of the time.
SMALL = 2**14


class SecondMoment(NamedTuple):
    """Adam's denominator after the step, b = √v̂ + ε = √(v/correction) + eps, per entry or per vector.

    `fill` is (1-β1^t)/(1-β1), by which Adam's momentum is smaller than a sum of gradients (SP Table 1).
    """

    v: Tensor
    correction: Number
    eps: Number
    fill: Number


@final
class InitialVectors:
    """Some vectors of a layer at its first sample, from which `angle_to_start` is measured.

    ids: of these vectors. places: their pieces among those of this process. weights: (pieces, entries), None before
    the first sample.
    """

    def __init__(self, layer: Tracked, ids: Ids, weights: Tensor | None = None) -> None:
        self.ids = ids
        self.places = np.flatnonzero(np.isin(layer.pieces.ids, ids))
        self.weights = weights


@final
class LayerSums:
    """The state of one layer between samples: its part of a batch's copy of the weights and of its table of sums."""

    def __init__(self, layer: Tracked, initial: InitialVectors, previous: Tensor | None = None) -> None:
        self.layer = layer
        self.initial = initial
        self.previous = previous  # weights at the previous sample, which the batch takes over
        self.copied = False
        self.batch: SumsBatch | None = None
        self.rows = slice(0, 0)
        self.columns = slice(0, 0)

    @property
    def copy(self) -> Tensor | None:
        """The weights at the previous sample, (pieces, entries). None before the first."""
        if self.batch is None or self.batch.copy is None or not self.copied:
            return self.previous
        return self.batch.copy[self.rows]


@final
@dataclass
class LayerStep:
    """The values read from a layer around one step. `views` are its tensors as rows of vectors, the weight first.

    If the gradient is None before the step, a closure makes it within the step (`late`). It is then compared with the
    momentum after the step. `rescaled`: the step may have changed the gradient's scale. `decay`: decoupled weight decay
    moved w by -decay·w.
    """

    sums: LayerSums
    grad: Tensor | None
    had_momentum: bool
    late: bool = False
    rescaled: bool = False
    second: SecondMoment | None = None
    decay: Number | None = None
    views: list[Any] = field(default_factory=list)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Key that is equal for layers that can be summed together."""
        numbers = None if self.second is None else self.second[1:]
        return self.sums.copied, self.late, self.rescaled, self.decay, numbers, [x is None for x in self.views]


@final
class SumsBatch:
    """Layers that share a copy and a table: one layer, or small ones on a CPU whose vectors have equal length."""

    def __init__(self, layers: Sequence[LayerSums]) -> None:
        self.layers = tuple(layers)
        self.copy: Tensor | None = None
        self.table: Tensor | None = None
        self.initial: Any = None  # first weights of all layers, and where they belong, see `sums`
        self.cuts = layers[0].layer.pieces.cuts
        row = 0
        for layer in layers:
            count = len(layer.layer.pieces.ids)
            layer.batch = self
            layer.rows = slice(row, row + count)
            layer.columns = slice(row * self.cuts, (row + count) * self.cuts)
            row += count
        self.num_rows = row


def batched(layers: Sequence[LayerSums]) -> list[SumsBatch]:
    """Return layers in batches. On a CPU, small ones with vectors of equal length and dtype share one."""
    together: dict[Any, list[LayerSums]] = {}
    for layer in layers:
        pieces = layer.layer.pieces
        p = layer.layer.parameter
        entries = len(pieces.ids) * layer.layer.fan_in
        small = p.device.type == "cpu" and not pieces.sharded and pieces.cuts == 1 and entries <= SMALL
        together.setdefault((p.dtype, layer.layer.fan_in) if small else layer, []).append(layer)
    most = max(1, AT_ONCE_CPU // SMALL)  # layers of a batch, so that all of it stays in the cache
    return [SumsBatch(each[i : i + most]) for each in together.values() for i in range(0, len(each), most)]
