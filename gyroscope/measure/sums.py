"""Sums over each weight vector, made where the weights are: all that a sample needs of weights, gradients and state.

The sums of a layer are a table: one row for each name in `SUMS`, one column for each piece of a vector. The copy of the
weights that the sums need is all of the weights' size that is kept; it is float32 for all but float64 weights.

On a CPU the arithmetic is NumPy's, on the same memory: torch would spread these thousands of short operations over
threads that wait for each other as soon as the machine has other work. Elsewhere it is torch's; the formulas are the
same operators. On a CPU small layers whose vectors have equal length are summed in one go, in a `SumsBatch`: of a small
layer's time, nearly all is the overhead of calls.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor
from torch.linalg import vecdot

from gyroscope.geometry import at_least_float32
from gyroscope.measure.layers import Tracked

Array = Any
"""A NumPy array or a tensor: vectors in rows, or one number for each."""
Number = Any
"""A float, or a 0-d tensor where the optimizer keeps the number on its device."""

TURN = ("ww", "wd", "tt")
"""⟨w,w⟩, ⟨w,d⟩ and ‖d - (⟨w,d⟩/⟨w,w⟩)·w‖² of a weight w that moves by d."""
SUMS = (
    *TURN,
    "most",  # the largest |d + decay·w| of an entry
    "frozen",  # entries with a gradient that did not move
    "wg",
    "gg",
    "gm",  # m: the momentum before the step, or after it where a closure makes the gradient within the step
    "mm",
    "wm",
    "ws",  # s: the gradient over Adam's denominator b
    "ss",
    "bb",
    "hh",  # h: the gradient as the step left it, where it may have rescaled it
    *(f"old_{name}" for name in TURN),  # from the weights at the previous sample to those before this step
)
ROW = {name: number for number, name in enumerate(SUMS)}
OLD = slice(ROW["old_ww"], ROW["old_tt"] + 1)

# Entries that are worked on at once: on a CPU what its cache holds, elsewhere what memory can spare.
AT_ONCE_CPU = 2**17
AT_ONCE = 2**22
SMALL = 2**14
"""Entries of a layer up to which it is summed together with others; above, calls cost little beside arithmetic."""
RADIAL = 16.0
"""Radial over tangential part of a move above which float32 is not enough for the angle: rounding the product r·w, by
6e-8 of the radial part, then shows in the sixth digit of the tangential one."""
TINY = 1e-37
"""Nothing beside the square of a norm, and something to divide by for a zero vector."""


class SecondMoment(NamedTuple):
    """Adam's denominator after the step, b = √v̂ + ε = √(v/correction) + eps, per entry or per vector.

    `fill` is (1-β1^t)/(1-β1), by which Adam's momentum is smaller than a sum of gradients (SP Table 1).
    """

    v: Tensor
    correction: Number
    eps: Number
    fill: Number


@final
class LayerSums:
    """One layer from sample to sample: its part of a batch's copy of the weights and of its table of sums."""

    def __init__(self, layer: Tracked, previous: Tensor | None = None) -> None:
        self.layer = layer
        self.vectors = layer.vectors
        self.fan_in = layer.fan_in
        self.shape = layer.parameter.shape
        self.previous = previous  # weights at the previous sample, to be taken over by the batch
        self.copied = False
        self.batch: SumsBatch | None = None
        self.rows = slice(0, 0)
        self.columns = slice(0, 0)

    @property
    def copy(self) -> Tensor | None:
        """The weights at the previous sample, (pieces, entries); None before the first."""
        if self.batch is None or self.batch.copy is None or not self.copied:
            return self.previous
        return self.batch.copy[self.rows]

    def take_over(self, copy: Tensor) -> bool:
        """Fill a new copy from the one that this layer had in another batch; False where there is none that fits."""
        previous = self.previous
        self.previous = None
        if previous is None or previous.shape != copy.shape or previous.device != copy.device:
            return False
        copy.copy_(previous)
        return True


@final
@dataclass
class LayerStep:
    """What is read of a layer around one step; tensors are split into rows of vectors.

    A gradient that is None before the step is made by a closure within it (`late`), and meets the momentum after the
    step. `rescaled`: the step may have changed the gradient's scale. `decay`: weight decay beside the gradient moved w
    by -decay·w.
    """

    sums: LayerSums
    grad: Tensor | None
    had_momentum: bool
    late: bool = False
    rescaled: bool = False
    second: SecondMoment | None = None
    decay: Number | None = None
    views: list[Tensor | None] = field(default_factory=list)

    @property
    def kind(self) -> tuple[Any, ...]:
        """What must be equal for layers to be summed in one go."""
        numbers = None if self.second is None else self.second[1:]
        return self.sums.copied, self.late, self.rescaled, self.decay, numbers, [x is None for x in self.views]


@final
class SumsBatch:
    """Layers that share a copy and a table: one layer, or small ones on a CPU whose vectors have equal length."""

    def __init__(self, layers: Sequence[LayerSums]) -> None:
        self.layers = tuple(layers)
        self.copy: Tensor | None = None
        self.table: Tensor | None = None
        self.cuts = layers[0].layer.pieces.cuts
        row = 0
        for layer in layers:
            count = len(layer.layer.pieces.ids)
            layer.batch = self
            layer.rows = slice(row, row + count)
            layer.columns = slice(row * self.cuts, (row + count) * self.cuts)
            row += count
        self.num_rows = row

    def prepare(self, weight: Tensor) -> Tensor:
        """An empty table for one sample, and room for the copy, with the previous sample's weights where known."""
        # A new table for each sample: the last one may still wait to be processed.
        size = (len(SUMS), self.num_rows * self.cuts)
        self.table = torch.zeros(size, dtype=precise(weight), device=weight.device)
        shape = (self.num_rows, prod(weight.shape[1:]))
        if self.copy is None or self.copy.shape != shape or self.copy.device != weight.device:
            self.copy = torch.empty(shape, dtype=at_least_float32(weight.dtype), device=weight.device)
            for layer in self.layers:
                layer.copied = layer.take_over(self.copy[layer.rows])
        return self.table


def batches(layers: Sequence[LayerSums]) -> list[SumsBatch]:
    """Layers in batches: on a CPU, small ones together whose vectors have equal length and dtype."""
    together: dict[Any, list[LayerSums]] = {}
    for layer in layers:
        pieces = layer.layer.pieces
        p = layer.layer.parameter
        entries = len(pieces.ids) * layer.fan_in
        small = p.device.type == "cpu" and not pieces.sharded and pieces.cuts == 1 and entries <= SMALL
        together.setdefault((p.dtype, layer.fan_in) if small else layer, []).append(layer)
    most = max(1, AT_ONCE_CPU // SMALL)  # layers of a batch, so that all of it stays in the cache
    return [SumsBatch(each[i : i + most]) for each in together.values() for i in range(0, len(each), most)]


def sum_before(steps: Sequence[LayerStep]) -> None:
    """Before the step: the turn since the last copy, a new copy, and what the gradient says if it is there.

    The views of each layer are its weight, gradient and momentum.
    """
    for batch, members in _by_batch(steps):
        weight = members[0].views[0]
        assert weight is not None
        table = batch.prepare(weight)
        for together in _summed_together(batch, members):
            blocks = []
            for copy, w, g, m in _blocks(batch, together):
                turned = _turn(copy, w)[1] if together[0].sums.copied else {}
                copy[...] = w
                sums = {f"old_{name}": x for name, x in turned.items()}
                blocks.append(sums if g is None else sums | _gradient(copy, g, m))
            _fill(table, together, blocks)
        for step in members:
            step.sums.copied = True


def sum_after(steps: Sequence[LayerStep]) -> list[tuple[tuple[Tracked, ...], Tensor]]:
    """After the step: how far the weights moved, and what Adam makes of the gradient. Layers with their table.

    The views of each layer are its weight, gradient, momentum and second moment.
    """
    tables = []
    for batch, members in _by_batch(steps):
        table = batch.table
        assert table is not None, "`sum_before` has made it"
        for together in _summed_together(batch, members):
            _fill(table, together, [_sum_step(together[0], *block) for block in _blocks(batch, together)])
        if len(members) == len(batch.layers):
            tables.append((tuple(step.sums.layer for step in members), table))
        else:
            tables += [((step.sums.layer,), table[:, step.sums.columns].contiguous()) for step in members]
        batch.table = None
    return tables


def _sum_step(step: LayerStep, w: Array, new: Array, g: Array, m: Array | None, v: Array | None) -> dict[str, Array]:
    d, sums = _turn(w, new)
    sums["most"] = _largest(d if step.decay is None else d + step.decay * w)
    sums |= _frozen(d, g)
    if step.late:
        sums |= _gradient(w, g, m, late=True)
    if step.second is not None:
        sums |= _scaled(w, g, v, step.second)
    if step.rescaled:
        sums["hh"] = _dot(g, g)
    return sums


def _by_batch(steps: Sequence[LayerStep]) -> Iterator[tuple[SumsBatch, list[LayerStep]]]:
    members: dict[SumsBatch, list[LayerStep]] = {}
    for step in steps:
        assert step.sums.batch is not None
        members.setdefault(step.sums.batch, []).append(step)
    yield from members.items()


def _summed_together(batch: SumsBatch, members: list[LayerStep]) -> list[list[LayerStep]]:
    """All layers of the batch, if all take part in this step in the same way; else each by itself."""
    if len(members) == len(batch.layers) and all(step.kind == members[0].kind for step in members[1:]):
        return [members]
    return [[step] for step in members]


def _blocks(batch: SumsBatch, together: Sequence[LayerStep]) -> Iterator[tuple[Array, ...]]:
    """The copy and all views in parts that are worked on at once. A view that is None stays None."""
    assert batch.copy is not None
    if len(together) == 1:
        step = together[0]
        yield from _cut(batch.copy[step.sums.rows], batch.cuts, step.views)
        return
    joined: list[Array] = [batch.copy.numpy()]
    for column in zip(*(step.views for step in together), strict=True):
        if column[0] is None:
            joined.append(None)
        else:
            joined.append(np.concatenate([x.reshape(len(x), -1).to(batch.copy.dtype).numpy() for x in column]))
    yield tuple(joined)


def _cut(copy: Tensor, cuts: int, views: Sequence[Tensor | None]) -> Iterator[tuple[Array, ...]]:
    """Parts of one layer: a few vectors, or a cut of long ones."""
    rows, entries = copy.shape
    if not entries:
        return
    width = ceil(entries / cuts)
    height = max(1, (AT_ONCE_CPU if copy.device.type == "cpu" else AT_ONCE) // width)
    # A tensor of another dtype is converted part by part: a converted copy of all of it would take too much memory.
    ready = [view is None or view.dtype == copy.dtype for view in (copy, *views)]
    whole = [_array(x) if same and x is not None else x for same, x in zip(ready, (copy, *views), strict=True)]
    for left in range(0, entries, width):
        for top in range(0, rows, height):
            parts: list[Array] = [
                None if x is None else x[top : top + height].reshape(-1, entries)[:, left : left + width] for x in whole
            ]
            yield tuple(part if same else _array(part.to(copy.dtype)) for same, part in zip(ready, parts, strict=True))


def _fill(table: Tensor, together: Sequence[LayerStep], blocks: list[dict[str, Array]]) -> None:
    """Put sums in their rows, pieces in the order of the parts."""
    target = _array(table)
    place = together[0].sums.columns.start
    for sums in blocks:
        end = place
        for name, values in sums.items():
            end = place + len(values)
            target[ROW[name], place:end] = values
        place = end


def _array(x: Tensor) -> Array:
    """The tensor itself, or on a CPU the same memory as NumPy sees it; types that NumPy lacks stay tensors."""
    return x.numpy() if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) else x


def precise(weight: Tensor) -> torch.dtype:
    """The dtype of sums: float64, but on Apple's GPUs, which have none."""
    return torch.float32 if weight.device.type == "mps" else torch.float64


def _turn(w: Array, new: Array) -> tuple[Array, dict[str, Array]]:
    """The displacement d = new - w of each vector, exact but for the last digit, and its sums.

    In float64, unless a look at the vectors – free of charge on a CPU – finds that float32 will do.
    """
    d = new - w
    if isinstance(d, np.ndarray):
        ww = _dot(w, w)
        wd = _dot(w, d)
        dd = _dot(d, d)
        radial = wd * wd / (ww + TINY)
        if not np.any(2 * radial > dd):  # mostly sideways, as training moves: Pythagoras loses a bit at most
            return d, {"ww": ww, "wd": wd, "tt": dd - radial}
        sums = _turn_sums(w, d)
        if not np.any(sums["wd"] ** 2 > RADIAL**2 * sums["ww"] * sums["tt"]):
            return d, sums
        exact = w.astype(np.float64)
        return d, _turn_sums(exact, new.astype(np.float64) - exact)
    exact = w.to(precise(w))
    return d, _turn_sums(exact, new.to(precise(w)) - exact)


def _turn_sums(w: Array, d: Array) -> dict[str, Array]:
    ww = _dot(w, w)
    wd = _dot(w, d)
    across = d - (wd / (ww + TINY))[:, None] * w
    return {"ww": ww, "wd": wd, "tt": _dot(across, across)}


def _gradient(w: Array, g: Array, m: Array | None, *, late: bool = False) -> dict[str, Array]:
    """What the gradient has to do with the weights before the step and with the momentum."""
    sums = {"wg": _dot(w, g), "gg": _dot(g, g)}
    if m is not None:
        sums |= {"gm": _dot(g, m), "mm": _dot(m, m)}
        if late:
            sums["wm"] = _dot(w, m)
    return sums


def _scaled(w: Array, g: Array, v: Array, second: SecondMoment) -> dict[str, Array]:
    """What Adam makes of the gradient as the step left it."""
    b = (v / second.correction) ** 0.5 + second.eps
    s = g / b
    return {"ws": _dot(w, s), "ss": _dot(s, s), "bb": _dot(b, b) * second.fill**2}


def _dot(x: Array, y: Array) -> Array:
    if not isinstance(x, np.ndarray):
        return vecdot(x, y)
    return np.vecdot(x, y) if hasattr(np, "vecdot") else np.einsum("ij,ij->i", x, y)  # vecdot is new in NumPy 2


def _largest(x: Array) -> Array:
    return np.abs(x).max(1) if isinstance(x, np.ndarray) else x.abs().amax(1)


def _frozen(d: Array, g: Array) -> dict[str, Array]:
    """How many entries of each vector have a gradient and did not move."""
    if not isinstance(d, np.ndarray):
        return {"frozen": torch.count_nonzero((d == 0) & (g != 0), dim=1)}
    if d.all():  # on a CPU, asking first whether any entry stood still is cheaper
        return {}
    return {"frozen": np.count_nonzero((d == 0) & (g != 0), axis=1)}
