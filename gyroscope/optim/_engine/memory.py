"""Memory of a step: scratch buffers that are reused, and pieces of large tensors that fit a CPU's cache."""

from itertools import pairwise

import torch
from torch import Tensor

# Entries of a piece of a step on a CPU: more leave its cache, with fewer Python overhead dominates.
PIECE = 2**20
# Entries of a batch whose values per vector are computed together, and of the largest scratch buffer.
BATCH = 2**22
# The same on other devices, where deciding takes a hundred launches. 2**24 entries are 64 MiB, and a batch needs about
# five times that.
DEVICE_BATCH = 2**24
# Tensors of fewer entries are copied together for their step. One at a time, Python overhead dominates.
SMALL = 2**13
# The same on other devices: below it launching a kernel takes longer than running it.
DEVICE_SMALL = 2**22
WHOLE = slice(None)


def on_accelerator(x: Tensor) -> bool:
    """Return whether x is on a device where launching a small operation takes longer than running it."""
    return x.device.type != "cpu"


class Scratch:
    """Uninitialised memory for updates, kept from step to step: mapping fresh pages costs as much as the arithmetic."""

    def __init__(self) -> None:
        self.buffers: dict[torch.dtype, Tensor] = {}
        self.reserved: dict[torch.dtype, int] = {}

    def like(self, x: Tensor, dtype: torch.dtype, reserve: bool = False) -> Tensor:
        """Return memory of x's shape, with x's strides if they are dense.

        The next call returns the same memory. With `reserve` it stays reserved until `reserved`, the number of reserved
        entries, is cleared.
        """
        size = x.numel()
        # Allocators of other devices cache freed memory. A buffer above BATCH would be too much to keep.
        if on_accelerator(x) or size > BATCH:
            return torch.empty_like(x, dtype=dtype)
        buffer = self.buffers.get(dtype)
        start = self.reserved.get(dtype, 0)
        if buffer is None or buffer.numel() < start + size:
            # Reserved tensors keep the old buffer alive, and the new one starts empty.
            buffer = self.buffers[dtype] = torch.empty(start + size, dtype=dtype)
            start = 0
        self.reserved[dtype] = start + size if reserve else start
        # With the same strides, operations of x and the scratch memory are one flat loop.
        if x.is_contiguous() or is_dense(x):
            return buffer.as_strided(x.shape, x.stride(), start)
        return buffer[start : start + size].view(x.shape)


def small_limit(x: Tensor) -> int:
    """Return the entries below which tensors on x's device take their step together, copied end to end."""
    return DEVICE_SMALL if on_accelerator(x) else SMALL


def batch_limit(x: Tensor) -> int:
    """Return the entries at which a batch of tensors like x is full."""
    return DEVICE_BATCH if on_accelerator(x) else BATCH


def pieces(x: Tensor) -> list[slice]:
    """Return slices along dimension 0 whose pieces fit a CPU's cache. Other devices take one.

    Pieces have 2 indices or more if x has, because a size of 1 would compile another program.
    """
    size = x.shape[0]
    # Rounded up, so that pieces have at most PIECE entries.
    number = min(-(-x.numel() // PIECE), size // 2)
    if number <= 1 or on_accelerator(x):
        return [WHOLE]
    cuts = [piece * size // number for piece in range(number + 1)]
    return [slice(start, stop) for start, stop in pairwise(cuts)]


def cut(tensors: list[Tensor], part: Tensor | slice) -> list[Tensor]:
    """Return a part of each tensor."""
    return tensors if part is WHOLE else [x[part] for x in tensors]


def is_dense(x: Tensor) -> bool:
    """Return whether x's entries fill the memory that they span."""
    return x.numel() == 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


def laid_out_like(x: Tensor, w: Tensor) -> Tensor:
    """Return x in w's layout: itself, or a copy if its strides differ."""
    return x if x.stride() == w.stride() else torch.empty_like(w, dtype=x.dtype).copy_(x)
