"""What is summed over each vector on the device: all that a sample needs of weights, gradient and optimizer state.

A layer's sums are one matrix, a row for each name in `SUMS`, a column for each piece of a vector. The copy of the
weights that they need is all of their size that is kept, float32 for all but float64 weights.
"""

from collections.abc import Iterator
from math import ceil, prod
from typing import final

import torch
from torch import Tensor
from torch.linalg import vecdot

from gyroscope.geometry import at_least_float32
from gyroscope.track.layers import LONGEST, Tracked
from gyroscope.track.memory import Number, Second

TURN = ("ww", "wd", "tt")
"""⟨w,w⟩, ⟨w,d⟩ and ‖d - (⟨w,d⟩/⟨w,w⟩)·w‖² of a weight w that moves by d."""
SUMS = (
    *TURN,
    "most",  # the largest |d + decay·w| of an entry
    "frozen",  # entries with a gradient that did not move; right only in the sum over all pieces
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
MOST, FROZEN, GRADIENT, SCALED = (ROW[name] for name in ("most", "frozen", "wg", "ws"))
OLD = slice(ROW["old_ww"], ROW["old_tt"] + 1)

IN_CACHE = 2**18
"""Entries that a CPU works on at once: its cache holds a few tensors of them, and larger ones would be fresh pages each
time, which cost more than the arithmetic."""
RADIAL = 16.0
"""Radial over tangential part of a move above which float32 is not enough for the angle: rounding the product r·w, by
6e-8 of the radial part, then shows in the sixth digit of the tangential one."""
TINY = 1e-37
"""Below the square of any norm: a zero vector moves along itself by nothing."""


@final
class Watch:
    """One layer from sample to sample: the copy of its weights, and the sums of the sample under way."""

    def __init__(self, layer: Tracked) -> None:
        self.layer = layer
        self.copy: Tensor | None = None
        self.sums: Tensor | None = None

    def remember(self) -> None:
        """Before the step: how far the weights have turned since they were last copied; then copy them."""
        (weight,) = self.layer.views(self.layer.parameter.detach())
        shape, old = (len(weight), prod(weight.shape[1:])), self.copy
        size = len(SUMS), len(weight) * self.layer.pieces.cuts
        self.sums = torch.zeros(size, dtype=precise(weight), device=weight.device)
        if old is None or old.shape != shape or old.device != weight.device:
            old, self.copy = None, torch.empty(shape, dtype=at_least_float32(weight.dtype), device=weight.device)
        copy, sums = self._under_way()
        for rows, columns, out in self._blocks():
            w = _part(weight, rows, columns)
            if old is not None:
                sums[OLD, out] = _turn(old[rows, columns], w)[1]
            copy[rows, columns] = w

    def gradient(self, grad: Tensor, momentum: Tensor | None, *, late: bool = False) -> None:
        """What the gradient has to do with the weights before the step and the momentum, which is `late` after it."""
        copy, sums = self._under_way()
        views = self.layer.views(grad, *(() if momentum is None else (momentum,)))
        for rows, columns, out in self._blocks():
            w, (g, *rest) = copy[rows, columns], (_part(x, rows, columns).to(copy.dtype) for x in views)
            found = [vecdot(w, g), vecdot(g, g)]
            for m in rest:
                found += [vecdot(g, m), vecdot(m, m)] + ([vecdot(w, m)] if late else [])
            sums[GRADIENT : GRADIENT + len(found), out] = torch.stack(found)

    def update(self, grad: Tensor, decay: Number | None) -> None:
        """After the step: how far the weights moved, of which decay beside the gradient, if any, took `decay`·w."""
        copy, sums = self._under_way()
        weight, g = self.layer.views(self.layer.parameter.detach(), grad)
        for rows, columns, out in self._blocks():
            w = copy[rows, columns]
            d, sums[: len(TURN), out] = _turn(w, _part(weight, rows, columns))
            sums[FROZEN, out.start] = _frozen(d, _part(g, rows, columns))
            sums[MOST, out] = (d if decay is None else d.add_(w * decay)).abs_().amax(1)

    def scaled(self, grad: Tensor, second: Second, *, rescaled: bool = False) -> None:
        """What Adam makes of the gradient, with the second moment after the step, which may have `rescaled` it."""
        copy, sums = self._under_way()
        per_entry = second.v.shape == self.layer.parameter.shape
        g, *v = self.layer.views(grad, *((second.v,) if per_entry else ()))
        whole = None if per_entry else self.layer.per_vector(second.v)
        for rows, columns, out in self._blocks():
            b = second.denominator((_part(v[0], rows, columns) if whole is None else whole[rows, None]).to(copy.dtype))
            w, h = copy[rows, columns], _part(g, rows, columns).to(copy.dtype)
            s, b = h / b, b.expand_as(h)
            found = [vecdot(w, s), vecdot(s, s), vecdot(b, b) * second.fill**2] + ([vecdot(h, h)] if rescaled else [])
            sums[SCALED : SCALED + len(found), out] = torch.stack(found).to(sums.dtype)

    def _under_way(self) -> tuple[Tensor, Tensor]:
        assert self.copy is not None, "remember() comes first"
        assert self.sums is not None
        return self.copy, self.sums

    def _blocks(self) -> Iterator[tuple[slice, slice, slice]]:
        """Rows and columns of the copy that are worked on at once, and where their sums go."""
        copy, _ = self._under_way()
        count, entries = copy.shape
        width = ceil(entries / self.layer.pieces.cuts)
        most = IN_CACHE if copy.device.type == "cpu" else LONGEST
        height = max(1, most // max(width, 1))
        for cut, left in enumerate(range(0, entries, width) if entries else ()):
            for top in range(0, count, height):
                rows = slice(top, min(top + height, count))
                yield rows, slice(left, left + width), slice(cut * count + top, cut * count + rows.stop)


def _frozen(d: Tensor, g: Tensor) -> Tensor | int:
    """Entries that have a gradient and did not move; on a CPU, asking first whether any stood still is cheaper."""
    if d.device.type == "cpu" and int(torch.count_nonzero(d)) == d.numel():
        return 0
    return torch.count_nonzero((d == 0) & (g != 0))


def precise(weight: Tensor) -> torch.dtype:
    """The dtype of sums: float64, but on Apple's GPUs, which have none."""
    return torch.float32 if weight.device.type == "mps" else torch.float64


def _part(view: Tensor, rows: slice, columns: slice) -> Tensor:
    return view[rows, columns] if view.dim() == 2 else view[rows].flatten(1)[:, columns]


def _turn(w: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """The displacement d = new - w of each vector, exact but for the last digit, and its sums `TURN`.

    In float64, unless a look at the vectors – free of charge on a CPU – finds that float32 will do.
    """
    d = new.to(w.dtype).sub(w)
    if w.device.type == "cpu":
        ww, wd, tt = found = _turn_sums(w, d)
        if w.dtype == torch.float64 or not bool((wd.square() > RADIAL**2 * ww * tt).any()):
            return d, found
    exact = w.to(precise(w))
    return d, _turn_sums(exact, new.to(exact.dtype).sub_(exact))


def _turn_sums(w: Tensor, d: Tensor) -> Tensor:
    ww, wd = vecdot(w, w), vecdot(w, d)
    across = torch.addcmul(d, w, (wd / ww.clamp_min(TINY))[:, None], value=-1)
    return torch.stack([ww, wd, vecdot(across, across)])
