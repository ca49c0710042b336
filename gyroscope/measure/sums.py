"""What is summed over each vector, where the weights are: all that a sample needs of weights, gradients and state.

A layer's sums are one matrix, a row for each name in `SUMS`, a column for each piece of a vector. The copy of the
weights that they need is all of their size that is kept, float32 for all but float64 weights. On a CPU the arithmetic
is NumPy's, on the same memory: torch would spread these thousands of short operations over threads that wait for each
other as soon as a machine has other work. Elsewhere it is torch's; the formulas are the same operators.
"""

from collections.abc import Iterator
from math import ceil, prod
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.linalg import vecdot

from gyroscope.geometry import at_least_float32
from gyroscope.measure.layers import Tracked
from gyroscope.measure.optimizer_state import Number, Second

Array = Any
"""A NumPy array or a tensor: vectors in rows, or one number for each."""

TURN = ("ww", "wd", "tt")
"""⟨w,w⟩, ⟨w,d⟩ and ‖d - (⟨w,d⟩/⟨w,w⟩)·w‖² of a weight w that moves by d."""
SUMS = (
    *TURN,
    "most",  # the largest |d + decay·w| of an entry
    "frozen",  # entries with a gradient that did not move; of all pieces, in the first one's place
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

AT_ONCE_CPU, AT_ONCE = 2**17, 2**22
"""Entries that are worked on at once: on a CPU what its cache holds, elsewhere what memory can spare."""
RADIAL = 16.0
"""Radial over tangential part of a move above which float32 is not enough for the angle: rounding the product r·w, by
6e-8 of the radial part, then shows in the sixth digit of the tangential one."""
TINY = 1e-37
"""Nothing beside the square of a norm, and something to divide by for a zero vector."""


@final
class Watch:
    """One layer from sample to sample: the copy of its weights, and the sums of the sample under way."""

    def __init__(self, layer: Tracked) -> None:
        self.layer = layer
        self.copy: Tensor | None = None
        self.sums: Tensor | None = None

    def before(self, grad: Tensor | None, momentum: Tensor | None) -> None:
        """Before the step: the turn since the last copy, a new copy, and what the gradient says if it is there."""
        weight, *views = self.layer.views(self.layer.parameter.detach(), grad, momentum)
        assert weight is not None
        again = self._prepare(weight)
        found = []
        for copy, w, g, m in self._blocks(self.copy, weight, *views):
            turned = _turn(copy, w)[1] if again else {}
            copy[...] = w
            sums = {f"old_{name}": x for name, x in turned.items()}
            found.append(sums if g is None else sums | _gradient(copy, g, m))
        self._fill(found)

    def after(
        self,
        grad: Tensor,
        momentum: Tensor | None,
        second: Second | None,
        decay: Number | None,
        *,
        late: bool = False,
        rescaled: bool = False,
    ) -> None:
        """After the step: how far the weights moved, and what Adam makes of the gradient.

        Weight decay beside the gradient, if there is any, moved w by -decay·w. `late`: the gradient was not there
        before the step, and meets the momentum after it. `rescaled`: the step may have changed the gradient's scale.
        """
        entries = second.v if second is not None and second.v.shape == self.layer.parameter.shape else None
        weight, *views, v = self.layer.views(self.layer.parameter.detach(), grad, momentum, entries)
        assert self.copy is not None
        assert self.sums is not None
        if second is not None and v is None:
            v = self.layer.per_vector(second.v)[:, None].expand_as(self.copy)
        found, frozen = [], 0
        for w, new, g, m, v_part in self._blocks(self.copy, weight, *views, v):
            d, sums = _turn(w, new)
            frozen = frozen + _frozen(d, g)
            sums["most"] = _largest(d if decay is None else d + decay * w)
            if late:
                sums |= _gradient(w, g, m, late=True)
            if second is not None:
                sums |= _scaled(w, g, second.denominator(v_part), second.fill)
            if rescaled:
                sums["hh"] = _dot(g, g)
            found.append(sums)
        self._fill(found)
        self.sums[ROW["frozen"], :1] = frozen

    def _prepare(self, weight: Tensor) -> bool:
        """Room for the sums and the copy; whether there is a copy of these very vectors already."""
        rows, *rest = weight.shape
        shape, size = (rows, prod(rest)), (len(SUMS), rows * self.layer.pieces.cuts)
        self.sums = torch.zeros(size, dtype=precise(weight), device=weight.device)
        if self.copy is not None and self.copy.shape == shape and self.copy.device == weight.device:
            return True
        self.copy = torch.empty(shape, dtype=at_least_float32(weight.dtype), device=weight.device)
        return False

    def _blocks(self, *views: Tensor | None) -> Iterator[tuple[Array, ...]]:
        """Parts of all views that are worked on at once: a few vectors, or a cut of long ones. None stays None."""
        assert self.copy is not None
        (rows, entries), copy = self.copy.shape, self.copy
        if not entries:
            return
        width = ceil(entries / self.layer.pieces.cuts)
        height = max(1, (AT_ONCE_CPU if copy.device.type == "cpu" else AT_ONCE) // width)
        ready = [view is None or view.dtype == copy.dtype for view in views]
        whole = [_array(view) if same and view is not None else view for same, view in zip(ready, views, strict=True)]
        for left in range(0, entries, width):
            for top in range(0, rows, height):
                parts: list[Array] = [
                    None if x is None else x[top : top + height].reshape(-1, entries)[:, left : left + width]
                    for x in whole
                ]
                yield tuple(
                    part if same else _array(part.to(copy.dtype)) for same, part in zip(ready, parts, strict=True)
                )

    def _fill(self, blocks: list[dict[str, Array]]) -> None:
        """Put sums in their rows, pieces in the order of the parts."""
        assert self.sums is not None
        table, place = _array(self.sums), 0
        for sums in blocks:
            end = place
            for name, values in sums.items():
                end = place + len(values)
                table[ROW[name], place:end] = values
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
        ww, wd, dd = _dot(w, w), _dot(w, d), _dot(d, d)
        radial = wd * wd / (ww + TINY)
        if not np.any(2 * radial > dd):  # mostly sideways, as training moves: Pythagoras loses a bit at most
            return d, dict(zip(TURN, (ww, wd, dd - radial), strict=True))
        ww, wd, tt = found = _turn_sums(w, d)
        if not np.any(wd * wd > RADIAL**2 * ww * tt):
            return d, dict(zip(TURN, found, strict=True))
        exact, moved = w.astype(np.float64), new.astype(np.float64)
    else:
        exact, moved = w.to(precise(w)), new.to(precise(w))
    return d, dict(zip(TURN, _turn_sums(exact, moved - exact), strict=True))


def _turn_sums(w: Array, d: Array) -> tuple[Array, Array, Array]:
    ww, wd = _dot(w, w), _dot(w, d)
    across = d - (wd / (ww + TINY))[:, None] * w
    return ww, wd, _dot(across, across)


def _gradient(w: Array, g: Array, m: Array | None, *, late: bool = False) -> dict[str, Array]:
    """What the gradient has to do with the weights before the step and with the momentum."""
    sums = {"wg": _dot(w, g), "gg": _dot(g, g)}
    if m is not None:
        sums |= {"gm": _dot(g, m), "mm": _dot(m, m)} | ({"wm": _dot(w, m)} if late else {})
    return sums


def _scaled(w: Array, g: Array, b: Array, fill: Number) -> dict[str, Array]:
    """What Adam makes of the gradient as the step left it."""
    s = g / b
    return {"ws": _dot(w, s), "ss": _dot(s, s), "bb": _dot(b, b) * fill**2}


def _dot(x: Array, y: Array) -> Array:
    return _numpy_dot(x, y) if isinstance(x, np.ndarray) else vecdot(x, y)


def _numpy_dot(x: Array, y: Array) -> Array:
    return np.vecdot(x, y) if hasattr(np, "vecdot") else np.einsum("ij,ij->i", x, y)  # new in NumPy 2


def _largest(x: Array) -> Array:
    return np.abs(x).max(1) if isinstance(x, np.ndarray) else x.abs().amax(1)


def _frozen(d: Array, g: Array) -> Any:
    """Entries that have a gradient and did not move; on a CPU, asking first whether any stood still is cheaper."""
    if isinstance(d, np.ndarray):
        return 0 if d.all() else np.count_nonzero((d == 0) & (g != 0))
    return torch.count_nonzero((d == 0) & (g != 0))
