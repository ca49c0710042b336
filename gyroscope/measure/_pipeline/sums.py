"""Sums over each weight vector, made on the device of the weights. A sample needs nothing else from them.

On a CPU NumPy does the arithmetic, on the same memory. torch would distribute these thousands of short operations over
threads, which wait for each other on a busy machine. On other devices torch does it, with the same formulas.
"""

from collections.abc import Iterator, Sequence
from math import ceil, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.linalg import vecdot

from gyroscope.geometry import at_least_float32
from gyroscope.measure._pipeline import batches
from gyroscope.measure._pipeline.batches import ROW, SUMS, LayerStep, LayerSums, SecondMoment, SumsBatch
from gyroscope.measure._pipeline.layers import Ids, Tracked

# A NumPy array or a tensor: vectors in rows, or one number for each.
Vectors = Any

# Entries that are processed at once on other devices than a CPU, to save memory.
AT_ONCE = 2**22
# Radial over tangential part of a move above which float32 is not enough for the angle. The rounding of r·w, 6e-8 of
# the radial part, then affects the sixth digit of the tangential part.
RADIAL = 16.0
# Negligible compared with the square of a norm, but not 0, so that a zero vector can be divided by it.
TINY = 1e-37


def sum_before(steps: Sequence[LayerStep]) -> None:
    """Sum before the step: the rotation since the last copy, a new copy, and the gradient if there is one.

    The views of each layer are its weight, gradient and momentum.
    """
    for batch, members in _by_batch(steps):
        table = _prepare(batch, members[0].views[0])
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
        _sum_since_start(batch, [step.sums for step in members], table)


def sum_after(steps: Sequence[LayerStep]) -> list[tuple[tuple[Tracked, ...], Tensor]]:
    """Sum after the step: how far the weights moved, and what Adam makes of the gradient. Return layers with tables.

    The views of each layer are its weight, gradient, momentum and second moment.
    """
    tables = []
    for batch, members in _by_batch(steps):
        table = batch.table
        assert table is not None, "made by `sum_before`"
        for together in _summed_together(batch, members):
            _fill(table, together, [_sum_step(together[0], *block) for block in _blocks(batch, together)])
        # The whole table as it is, without a copy, if every layer has its part in it.
        if len(members) == len(batch.layers):
            tables.append((tuple(step.sums.layer for step in members), table))
        else:
            tables += [((step.sums.layer,), table[:, step.sums.columns].contiguous()) for step in members]
        batch.table = None  # it belongs to the sample now. The batch would keep its memory until the next one
    return tables


def _prepare(batch: SumsBatch, weight: Tensor) -> Tensor:
    """Make an empty table for one sample, and room for the copy, with the previous sample's weights if known."""
    # A new table for each sample, because the last one may still wait to be processed.
    size = (len(SUMS), batch.num_rows * batch.cuts)
    batch.table = torch.zeros(size, dtype=precise(weight), device=weight.device)
    shape = (batch.num_rows, prod(weight.shape[1:]))
    # Made at the first sample and not with the tracker, because the model may move to its device in between.
    if batch.copy is None or batch.copy.shape != shape or batch.copy.device != weight.device:
        batch.initial = None
        batch.copy = torch.empty(shape, dtype=at_least_float32(weight.dtype), device=weight.device)
        for layer in batch.layers:
            copy = batch.copy[layer.rows]
            old = layer.previous
            layer.previous = None
            layer.copied = False
            if old is not None and old.shape == copy.shape and old.device == copy.device:
                copy.copy_(old)
                layer.copied = True
    return batch.table


def _sum_since_start(batch: SumsBatch, layers: Sequence[LayerSums], table: Tensor) -> None:
    """Sum the rotation since the first sample, of the vectors whose start is kept, when their copy is new.

    A vector that is measured in parts is summed as a whole, and the sums go to its first part.
    """
    assert batch.copy is not None
    if len(layers) < len(batch.layers):
        initial = _initial(batch.copy, layers)
    else:  # kept, because it is nearly always the same layers
        batch.initial = initial = batch.initial or _initial(batch.copy, layers)
    start, rows, columns = initial
    if not len(start):
        return
    present = _array(batch.copy)[rows]
    if batch.cuts > 1 and isinstance(start, np.ndarray):  # too long for sums in float32
        sums = _turn_sums(start.astype(np.float64), present.astype(np.float64) - start)
    else:
        sums = _turn(start, present)[1]
    target = _array(table)
    for name, values in sums.items():
        target[ROW[f"start_{name}"], columns] = values


def _initial(copy: Tensor, layers: Sequence[LayerSums]) -> tuple[Vectors, Ids, Ids]:
    """Return the first weights that are kept of layers, and their rows in the copy and columns in the table."""
    for layer in layers:
        weights = layer.initial.weights
        if weights is None:
            weights = copy[layer.rows][torch.from_numpy(layer.initial.places)].clone()
        # On another device or of another type if the model moved.
        layer.initial.weights = weights.to(copy)
    starts = [_array(layer.initial.weights) for layer in layers if layer.initial.weights is not None]
    rows = np.concatenate([layer.rows.start + layer.initial.places for layer in layers])
    columns = np.concatenate([layer.columns.start + layer.initial.places for layer in layers])
    return starts[0] if len(starts) == 1 else np.concatenate(starts), rows, columns


def _sum_step(
    step: LayerStep, w: Vectors, new: Vectors, g: Vectors, m: Vectors | None, v: Vectors | None
) -> dict[str, Vectors]:
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
    """Return all layers of the batch if all take part in this step in the same way, otherwise each separately."""
    if len(members) == len(batch.layers) and all(step.kind == members[0].kind for step in members[1:]):
        return [members]
    return [[step] for step in members]


def _blocks(batch: SumsBatch, together: Sequence[LayerStep]) -> Iterator[tuple[Vectors, ...]]:
    """Return the copy and all views in parts that are processed at once. A view that is None stays None."""
    assert batch.copy is not None
    if len(together) == 1:
        step = together[0]
        yield from _cut(batch.copy[step.sums.rows], batch.cuts, step.views)
        return
    joined: list[Vectors] = [batch.copy.numpy()]
    for column in zip(*(step.views for step in together), strict=True):
        joined += [None if column[0] is None else np.concatenate([_flat(x, batch.copy.dtype) for x in column])]
    yield tuple(joined)


def _cut(copy: Tensor, cuts: int, views: Sequence[Tensor | None]) -> Iterator[tuple[Vectors, ...]]:
    """Yield parts of one layer: a few vectors, or a cut of long ones."""
    rows, entries = copy.shape
    if not entries:
        return
    width = ceil(entries / cuts)
    height = max(1, (batches.AT_ONCE_CPU if copy.device.type == "cpu" else AT_ONCE) // width)
    # NumPy has no bfloat16. A tensor of another dtype is converted part by part, because a complete copy would take too
    # much memory.
    ready = [view is None or view.dtype == copy.dtype for view in (copy, *views)]
    whole = [_array(x) if same and x is not None else x for same, x in zip(ready, (copy, *views), strict=True)]
    for left in range(0, entries, width):
        for top in range(0, rows, height):
            parts: list[Vectors] = [
                None if x is None else x[top : top + height].reshape(-1, entries)[:, left : left + width] for x in whole
            ]
            yield tuple(part if same else _array(part.to(copy.dtype)) for same, part in zip(ready, parts, strict=True))


def _fill(table: Tensor, together: Sequence[LayerStep], blocks: list[dict[str, Vectors]]) -> None:
    """Put sums in their rows, pieces in the order of the parts."""
    target = _array(table)
    place = together[0].sums.columns.start
    for sums in blocks:
        end = place
        for name, values in sums.items():
            end = place + len(values)
            target[ROW[name], place:end] = values
        place = end


def _flat(x: Tensor, dtype: torch.dtype) -> Vectors:
    """Return a view of a small layer on a CPU as a matrix. Most are matrices already, and checking is cheaper."""
    x = x if x.dtype == dtype else x.to(dtype)
    return (x if x.dim() == 2 else x.reshape(len(x), -1)).numpy()


def _array(x: Tensor) -> Vectors:
    """Return the tensor, or on a CPU the same memory as a NumPy array. Types that NumPy lacks stay tensors."""
    return x.numpy() if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) else x


def _turn(w: Vectors, new: Vectors) -> tuple[Vectors, dict[str, Vectors]]:
    """Compute the displacement d = new - w of each vector, exact except for the last digit, and its sums.

    It uses float64 unless a check, which costs nothing on a CPU, shows that float32 is enough.
    """
    d = new - w
    if not isinstance(d, np.ndarray):
        exact = w.to(precise(w))
        return d, _turn_sums(exact, new.to(precise(w)) - exact)
    ww = _dot(w, w)
    wd = _dot(w, d)
    dd = _dot(d, d)
    radial = wd * wd / (ww + TINY)
    sums = {"ww": ww, "wd": wd, "tt": dd - radial}
    # Training moves vectors mostly sideways, and Pythagoras then loses at most one bit. Other vectors, such as those
    # without a gradient that only decay, are few.
    rows = np.flatnonzero(2 * radial > dd)
    if len(rows):
        sums = {name: values.astype(np.float64) for name, values in sums.items()}
        _put(sums, rows, _turn_sums(w[rows], d[rows]))
        rows = rows[sums["wd"][rows] ** 2 > RADIAL**2 * sums["ww"][rows] * sums["tt"][rows]]
        exact = w[rows].astype(np.float64)
        _put(sums, rows, _turn_sums(exact, new[rows].astype(np.float64) - exact))
    return d, sums


def precise(weight: Tensor) -> torch.dtype:
    """Return the dtype of sums: float64, or float32 on Apple's GPUs, which have no other."""
    return torch.float32 if weight.device.type == "mps" else torch.float64


def _put(sums: dict[str, Vectors], rows: Vectors, exact: dict[str, Vectors]) -> None:
    for name, values in exact.items():
        sums[name][rows] = values


def _turn_sums(w: Vectors, d: Vectors) -> dict[str, Vectors]:
    ww = _dot(w, w)
    wd = _dot(w, d)
    across = d - (wd / (ww + TINY))[:, None] * w
    return {"ww": ww, "wd": wd, "tt": _dot(across, across)}


def _gradient(w: Vectors, g: Vectors, m: Vectors | None, *, late: bool = False) -> dict[str, Vectors]:
    """Compute sums of the gradient with the weights before the step and with the momentum."""
    sums = {"wg": _dot(w, g), "gg": _dot(g, g)}
    if m is not None:
        sums |= {"gm": _dot(g, m), "mm": _dot(m, m)}
        if late:
            sums["wm"] = _dot(w, m)
    return sums


def _scaled(w: Vectors, g: Vectors, v: Vectors, second: SecondMoment) -> dict[str, Vectors]:
    """Compute sums of the gradient as Adam scales it after the step."""
    # Operators only, so that the same line serves NumPy and torch.
    b = (v / second.correction) ** 0.5 + second.eps
    s = g / b
    return {"ws": _dot(w, s), "ss": _dot(s, s), "bb": _dot(b, b) * second.fill**2}


def _dot(x: Vectors, y: Vectors) -> Vectors:
    if not isinstance(x, np.ndarray):
        return vecdot(x, y)
    return np.vecdot(x, y) if hasattr(np, "vecdot") else np.einsum("ij,ij->i", x, y)  # vecdot is new in NumPy 2


def _largest(x: Vectors) -> Vectors:
    return np.abs(x).max(1) if isinstance(x, np.ndarray) else x.abs().amax(1)


def _frozen(d: Vectors, g: Vectors) -> dict[str, Vectors]:
    """Return how many entries of each vector have a gradient and did not move."""
    if not isinstance(d, np.ndarray):
        return {"frozen": torch.count_nonzero((d == 0) & (g != 0), dim=1)}
    if d.all():  # on a CPU it is cheaper to check first whether any entry did not move
        return {}
    return {"frozen": np.count_nonzero((d == 0) & (g != 0), axis=1)}
