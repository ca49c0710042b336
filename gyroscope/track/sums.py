"""What is summed over each vector on the device: all that a sample needs of weights, gradient and optimizer state.

A layer's sums are one matrix, a row for each name in `SUMS`, a column for each piece of a vector. The copy of the
weights that they need is all of their size that is kept, float32 for all but float64 weights.
"""

from collections.abc import Iterator
from itertools import repeat
from math import ceil, prod
from typing import Any, final

import torch
from torch import Tensor
from torch.linalg import vecdot

from gyroscope.geometry import at_least_float32
from gyroscope.track.layers import Tracked, at_once
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
OLD = slice(ROW["old_ww"], ROW["old_tt"] + 1)

RADIAL = 16.0
"""Radial over tangential part of a move above which float32 is not enough for the angle: rounding the product r·w, by
6e-8 of the radial part, then shows in the sixth digit of the tangential one."""
TINY = 1e-37
"""Below the square of any norm: a zero vector moves along itself by nothing."""


Sums = dict[str, Tensor]
"""By name, one number per vector."""


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
            copy.copy_(w)
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
        weight, g, m, v = self.layer.views(self.layer.parameter.detach(), grad, momentum, entries)
        if second is not None and v is None and self.copy is not None:
            v = self.layer.per_vector(second.v)[:, None].expand_as(self.copy)
        found = []
        for w, new, h, m_part, v_part in self._blocks(self.copy, weight, g, m, v):
            d, sums = _turn(w, new)
            sums |= _entries(d, w, h, decay)
            if late:
                sums |= _gradient(w, h, m_part, late=True)
            if second is not None:
                sums |= _scaled(w, h, v_part, second, rescaled)
            found.append(sums)
        self._fill(found)

    def _prepare(self, weight: Tensor) -> bool:
        """Room for the sums and the copy; whether there is a copy of these very vectors already."""
        shape, size = (len(weight), prod(weight.shape[1:])), (len(SUMS), len(weight) * self.layer.pieces.cuts)
        self.sums = torch.zeros(size, dtype=precise(weight), device=weight.device)
        if self.copy is not None and self.copy.shape == shape and self.copy.device == weight.device:
            return True
        self.copy = torch.empty(shape, dtype=at_least_float32(weight.dtype), device=weight.device)
        return False

    def _blocks(self, *views: Tensor | None) -> Iterator[tuple[Any, ...]]:
        """Parts of all views that are worked on at once: a few vectors, or a cut of a long one. None stays None."""
        return zip(*(repeat(None) if view is None else self._parts(view) for view in views), strict=False)

    def _parts(self, view: Tensor) -> list[Tensor]:
        entries, cuts = prod(view.shape[1:]), self.layer.pieces.cuts
        width = ceil(entries / cuts)
        if not width:
            return []
        blocks = [block.flatten(1) for block in torch.split(view, max(1, at_once(view) // width))]
        return [block[:, left : left + width] for left in range(0, entries, width) for block in blocks]

    def _fill(self, blocks: list[Sums]) -> None:
        """Put sums in their rows, pieces in the order of the parts."""
        if blocks and blocks[0]:
            assert self.sums is not None
            table = torch.cat([torch.stack([x.to(self.sums.dtype) for x in sums.values()]) for sums in blocks], 1)
            self.sums[[ROW[name] for name in blocks[0]], : table.shape[1]] = table


def precise(weight: Tensor) -> torch.dtype:
    """The dtype of sums: float64, but on Apple's GPUs, which have none."""
    return torch.float32 if weight.device.type == "mps" else torch.float64


def _turn(w: Tensor, new: Tensor) -> tuple[Tensor, Sums]:
    """The displacement d = new - w of each vector, exact but for the last digit, and its sums.

    In float64, unless a look at the vectors – free of charge on a CPU – finds that float32 will do.
    """
    d = new.to(w.dtype).sub(w)
    if w.device.type == "cpu":
        ww, wd, tt = found = _turn_sums(w, d)
        if w.dtype == torch.float64 or not bool((wd.square() > RADIAL**2 * ww * tt).any()):
            return d, dict(zip(TURN, found, strict=True))
    exact = w.to(precise(w))
    return d, dict(zip(TURN, _turn_sums(exact, new.to(exact.dtype).sub_(exact)), strict=True))


def _turn_sums(w: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ww, wd = vecdot(w, w), vecdot(w, d)
    across = torch.addcmul(d, w, (wd / ww.clamp_min(TINY))[:, None], value=-1)
    return ww, wd, vecdot(across, across)


def _gradient(w: Tensor, g: Tensor, m: Tensor | None, *, late: bool = False) -> Sums:
    """What the gradient has to do with the weights before the step and with the momentum."""
    g = g.to(w.dtype)
    sums = {"wg": vecdot(w, g), "gg": vecdot(g, g)}
    if m is not None:
        m = m.to(w.dtype)
        sums |= {"gm": vecdot(g, m), "mm": vecdot(m, m)} | ({"wm": vecdot(w, m)} if late else {})
    return sums


def _entries(d: Tensor, w: Tensor, g: Tensor, decay: Number | None) -> Sums:
    """The largest entry of what the gradient moved, and how many entries it failed to move."""
    sizes = d.abs()
    if d.device.type == "cpu" and bool(sizes.amin() > 0):  # a question that saves the work of counting
        frozen = torch.zeros(())
    else:
        frozen = torch.count_nonzero((d == 0) & (g != 0))
    if decay is not None:
        sizes = torch.add(d, w, alpha=decay) if isinstance(decay, float) else d + decay * w
        sizes = sizes.abs_()
    count = torch.zeros_like(sizes[:, 0])
    count[:1] = frozen
    return {"most": sizes.amax(1), "frozen": count}


def _scaled(w: Tensor, g: Tensor, v: Tensor, second: Second, rescaled: bool) -> Sums:
    """What Adam makes of the gradient as the step left it, with the second moment after the step."""
    g, b = g.to(w.dtype), second.denominator(v.to(w.dtype))
    s = g / b
    sums = {"ws": vecdot(w, s), "ss": vecdot(s, s), "bb": vecdot(b, b) * second.fill**2}
    return sums | {"hh": vecdot(g, g)} if rescaled else sums
