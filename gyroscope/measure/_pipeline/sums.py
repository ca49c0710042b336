"""Sums over each weight vector, made on the device of the weights. A sample needs nothing else from them.

On a CPU NumPy does the arithmetic, on the same memory. torch would distribute these thousands of short operations over
threads, which wait for each other on a busy machine. On other devices torch does it, with the same formulas.
"""

from collections.abc import Callable, Iterator
from functools import partial
from math import ceil, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.linalg import vecdot

from gyroscope.geometry import at_least_float32
from gyroscope.measure._pipeline.layer_step import ROW, SUMS, LayerStep, SecondMoment
from gyroscope.measure._pipeline.layers import Layer

# NumPy 1 has no vecdot.
numpy_vecdot: Callable[[Any, Any], Any] = getattr(np, "vecdot", partial(np.einsum, "ij,ij->i"))
# A NumPy array or a tensor: vectors in rows, or one number for each.
Vectors = Any

# Entries that are processed at once: on a CPU so that they fit into its cache, on other devices to save memory.
AT_ONCE_CPU = 2**17
AT_ONCE = 2**22
# Radial over tangential part of a move above which float32 is not enough for the angle. The rounding of r·w, 6e-8 of
# the radial part, then affects the sixth digit of the tangential part.
RADIAL = 16.0
# Negligible compared with the square of a norm, but not 0, so that a zero vector can be divided by it.
TINY = 1e-37


def sum_before(step: LayerStep) -> None:
    """Sum before the step: the rotation since the last copy, a new copy, and the gradient if there is one.

    The views are weight, gradient and momentum.
    """
    layer = step.layer
    weight = step.views[0]
    copied = _prepare_copy(layer, weight)
    blocks = []
    for copy, w, g, m in _blocks(step):
        sums = {f"old_{name}": x for name, x in _turn(copy, w)[1].items()} if copied else {}
        copy[...] = w
        blocks.append(sums if g is None else sums | _gradient(copy, g, m))
    # A new table for each sample, because the last one may still wait to be processed.
    size = (len(SUMS), len(layer.pieces.ids) * layer.pieces.cuts)
    step.table = torch.zeros(size, dtype=precise(weight), device=weight.device)
    _fill(step.table, blocks)
    _sum_since_start(layer, step.table)


def sum_after(step: LayerStep) -> Tensor:
    """Sum after the step: how far the weights moved, and what Adam makes of the gradient. Return the table.

    The views are weight, gradient, momentum and second moment.
    """
    assert step.table is not None, "made by `sum_before`"
    _fill(step.table, [_sum_step(step, *block) for block in _blocks(step)])
    return step.table


def _prepare_copy(layer: Layer, weight: Tensor) -> bool:
    """Make room for the copy of the weights. Return whether it has the weights of the previous sample."""
    shape = (len(layer.pieces.ids), prod(weight.shape[1:]))
    dtype = at_least_float32(weight.dtype)
    if layer.copy is not None and layer.copy.shape == shape and layer.copy.device == weight.device:
        layer.copy = layer.copy.to(dtype)
        return True
    # Made at the first sample and not with the tracker, because the model may move to its device in between.
    layer.copy = torch.empty(shape, dtype=dtype, device=weight.device)
    return False


def _sum_since_start(layer: Layer, table: Tensor) -> None:
    """Sum the rotation since the first sample, of the vectors whose start is kept, when their copy is new.

    A vector that is measured in parts is summed as a whole, and the sums go to its first part.
    """
    places = layer.initial_places
    if not len(places):
        return
    assert layer.copy is not None
    present = _array(layer.copy)[places]
    # On another device or of another type if the model moved.
    layer.initial = torch.as_tensor(present) if layer.initial is None else layer.initial.to(layer.copy)
    start = _array(layer.initial)
    if layer.pieces.cuts > 1 and isinstance(start, np.ndarray):  # too long for sums in float32
        sums = _turn_sums(start.astype(np.float64), present.astype(np.float64) - start)
    else:
        sums = _turn(start, present)[1]
    target = _array(table)
    for name, values in sums.items():
        target[ROW[f"start_{name}"], places] = values


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


def _blocks(step: LayerStep) -> Iterator[tuple[Vectors, ...]]:
    """Yield the copy and all views in parts that are processed at once: a few vectors, or a cut of long ones.

    A view that is None stays None.
    """
    copy = step.layer.copy
    assert copy is not None
    rows, entries = copy.shape
    if not entries:
        return
    width = ceil(entries / step.layer.pieces.cuts)
    height = max(1, (AT_ONCE_CPU if copy.device.type == "cpu" else AT_ONCE) // width)
    # NumPy has no bfloat16. A tensor of another dtype is converted part by part, because a complete copy would take too
    # much memory.
    views = (copy, *step.views)
    ready = [view is None or view.dtype == copy.dtype for view in views]
    whole = [_array(x) if same and x is not None else x for same, x in zip(ready, views, strict=True)]
    if width == entries and height >= rows and all(ready):  # most layers, and slices would take their time
        yield tuple(None if x is None else x.reshape(rows, entries) for x in whole)
        return
    for left in range(0, entries, width):
        for top in range(0, rows, height):
            parts: list[Vectors] = [
                None if x is None else x[top : top + height].reshape(-1, entries)[:, left : left + width] for x in whole
            ]
            yield tuple(part if same else _array(part.to(copy.dtype)) for same, part in zip(ready, parts, strict=True))


def _fill(table: Tensor, blocks: list[dict[str, Vectors]]) -> None:
    """Put sums in their rows, pieces in the order of the parts."""
    target = _array(table)
    place = 0
    for sums in blocks:
        end = place
        for name, values in sums.items():
            end = place + len(values)
            target[ROW[name], place:end] = values
        place = end


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
    rows = (2 * radial > dd).nonzero()[0]
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
    return numpy_vecdot(x, y) if isinstance(x, np.ndarray) else vecdot(x, y)


def _largest(x: Vectors) -> Vectors:
    return np.abs(x).max(1) if isinstance(x, np.ndarray) else x.abs().amax(1)


def _frozen(d: Vectors, g: Vectors) -> dict[str, Vectors]:
    """Return how many entries of each vector have a gradient and did not move."""
    if not isinstance(d, np.ndarray):
        return {"frozen": torch.count_nonzero((d == 0) & (g != 0), dim=1)}
    if d.all():  # on a CPU it is cheaper to check first whether any entry did not move
        return {}
    return {"frozen": np.count_nonzero((d == 0) & (g != 0), axis=1)}
