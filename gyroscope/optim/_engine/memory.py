"""Memory of a step: scratch buffers that are reused, and pieces of large tensors that fit a CPU's cache."""

from itertools import pairwise

import torch
from torch import Tensor

# Entries of a piece of a step on a CPU: more of them leave its cache, fewer wait for Python.
PIECE = 2**20
# Entries that may wait for their values per vector to be computed together; also the largest scratch buffer.
BATCH = 2**22
WHOLE = slice(None)


class Scratch:
    """Uninitialised memory for updates, kept from step to step.

    Fresh memory would cost as much as the arithmetic: the system maps it page by page at each step.
    """

    def __init__(self) -> None:
        self.buffers: dict[torch.dtype, Tensor] = {}
        self.reserved: dict[torch.dtype, int] = {}

    def like(self, x: Tensor, dtype: torch.dtype, reserve: bool = False) -> Tensor:
        """Memory of x's shape, with x's strides where they are dense.

        The same memory is returned by the next call, unless `reserve` is set: then it stays reserved until `reserved`,
        the number of reserved entries, is cleared.
        """
        size = x.numel()
        # Allocators of other devices keep freed memory themselves; a buffer above BATCH would be too much to hold.
        if x.device.type != "cpu" or size > BATCH:
            return torch.empty_like(x, dtype=dtype)
        buffer = self.buffers.get(dtype)
        start = self.reserved.get(dtype, 0)
        if buffer is None or buffer.numel() < start + size:
            # Tensors that were reserved in the old buffer keep it alive: the new one starts empty.
            buffer = self.buffers[dtype] = torch.empty(start + size, dtype=dtype)
            start = 0
        self.reserved[dtype] = start + size if reserve else start
        # The same strides let operations of x and the scratch memory run as one flat loop.
        if x.is_contiguous() or is_dense(x):
            return buffer.as_strided(x.shape, x.stride(), start)
        return buffer[start : start + size].view(x.shape)


def pieces(x: Tensor) -> list[slice]:
    """Cuts along dimension 0 that keep what is computed of each piece in a CPU's cache; one cut on other devices.

    Pieces have 2 indices or more if x has: a size of 1 would be another kind to a compiled step.
    """
    size = x.shape[0]
    # Rounded up: pieces have PIECE entries or fewer, but for whole rows.
    number = min(-(-x.numel() // PIECE), size // 2)
    if number <= 1 or x.device.type != "cpu":
        return [WHOLE]
    cuts = [piece * size // number for piece in range(number + 1)]
    return [slice(start, stop) for start, stop in pairwise(cuts)]


def cut(tensors: list[Tensor], part: Tensor | slice) -> list[Tensor]:
    """A part of each of the tensors."""
    return tensors if part is WHOLE else [x[part] for x in tensors]


def is_dense(x: Tensor) -> bool:
    """Whether x's entries fill the memory that they span."""
    return x.numel() == 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


def laid_out_like(x: Tensor, w: Tensor) -> Tensor:
    """x in w's layout: itself, or a copy where its strides differ."""
    return x if x.stride() == w.stride() else torch.empty_like(w, dtype=x.dtype).copy_(x)
