"""What the tensors of one step share: values made once, memory for updates, company for the small ones."""

import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from gyroscope.geometry import at_least_float32
from gyroscope.optim.formulas import Number, fusable

ROUNDING = (
    "the angular update is below what low-precision weights resolve, so rounding loses much of it: "
    "pass stochastic_rounding=True, or keep the weights in float32"
)

CACHED = 2**20
"""Entries of a piece of a step on a CPU: more of them leave its cache, fewer wait for Python."""
BATCH = 2**22
"""Entries that wait for company before they take their step: what is shared is computed once for them all."""
WHOLE = slice(None)
SMALL = 2**13
"""Tensors of fewer entries that do not turn take their step together: one by one they would wait for Python."""


@dataclass
class Kept:
    """What an optimizer keeps from step to step beside its state: memory of a few pieces, and what the user was told.

    Fresh memory would cost as much as the arithmetic: the system maps it page by page.
    """

    buffers: dict[torch.dtype, Tensor] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)


class Own(NamedTuple):
    """A rule's own step, which goes entry by entry: `step` changes weight and moments of [weight, gradient, *moments].

    `fused` does so for many tensors, given their weights, their gradients and so on: a kernel that takes them as they
    are, if there is one.
    """

    step: Callable[[list[Tensor]], None]
    fused: Callable[..., None] | None = None


@final
class Workspace:
    """What the tensors of one step share."""

    def __init__(self, kept: Kept) -> None:
        self.num_tensors = 0
        self._kept = kept
        self._rounds_updates_away = False
        self._shared: dict[Hashable, Any] = {}
        self._waiting: dict[Hashable, tuple[Callable[[list[Any]], None], list[Any]]] = {}
        self._num_waiting = 0
        self._later: list[Callable[[], Any]] = []
        self._lent: dict[torch.dtype, int] = {}
        self._generators: dict[torch.device, torch.Generator] = {}

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What tensors with one key share in this step, made when the first of them asks."""
        made = self._shared.get(key)
        if made is None:
            made = self._shared[key] = make()
        return made

    def like(self, x: Tensor, keep: bool = False) -> Tensor:
        """Uninitialised, of x's shape, x's strides where they are dense, and float32 or better.

        The next to ask gets the same memory, unless it is to `keep`: then it is yours until all that waits is taken.
        What is too much to keep is new, and so is all on other devices, whose allocators keep what they have.
        """
        dtype, size = at_least_float32(x.dtype), x.numel()
        if x.device.type != "cpu" or size > BATCH:
            return torch.empty_like(x, dtype=dtype)
        buffer, lent = self._kept.buffers.get(dtype), self._lent.get(dtype, 0)
        if buffer is None or buffer.numel() < lent + size:
            buffer, lent = torch.empty(lent + size, dtype=dtype), 0
            self._kept.buffers[dtype] = buffer
        self._lent[dtype] = lent + size if keep else lent
        if x.is_contiguous() or _is_dense(x):
            return buffer.as_strided(x.shape, x.stride(), lent)
        return buffer[lent : lent + size].view(x.shape)

    def together(self, key: Hashable, take: Callable[[list[Any]], None], item: Any, entries: int) -> None:
        """Let `take` have the item along with others of its key, when enough wait or all have come."""
        if key not in self._waiting:
            self._waiting[key] = (take, [])
        self._waiting[key][1].append(item)
        self._num_waiting += entries
        if self._num_waiting >= BATCH:
            self._take()

    def act(self, own: Own, tensors: list[Tensor]) -> None:
        """Take a rule's own step of [weight, gradient, *moments], together with others where that is faster."""
        size, alike = tensors[0].numel(), (id(own), tensors[0].device, *[x.dtype for x in tensors])
        if own.fused is not None and fusable(tensors):
            self.together(("fused", *alike), partial(_by_kind, own.fused), tensors, size)
        elif size < SMALL and all(x.is_contiguous() for x in tensors):
            self.together(alike, partial(_end_to_end, own.step), tensors, size)
        else:
            _in_pieces(own.step, tensors)

    def later(self, act: Callable[[], Any], now: bool = False) -> None:
        """Do this when all of the step is prepared, or `now`, for the sake of memory that it frees.

        It streams through memory and pushes all else out of the processor's cache: in between, the Python that
        prepares would take several times as long.
        """
        if now:
            act()
        else:
            self._later.append(act)

    def finish(self) -> None:
        """Do what was left for later, and tell the user what was noticed."""
        for act in self._later:
            act()
        self._take()
        if self._rounds_updates_away and ROUNDING not in self._kept.told:
            self._kept.told.add(ROUNDING)
            warnings.warn(ROUNDING, stacklevel=7)  # the user's line, behind what torch wraps around step

    def _take(self) -> None:
        for take, items in self._waiting.values():
            take(items)
        self._waiting.clear()
        self._lent.clear()
        self._num_waiting = 0

    def noise(self, w: Tensor, step: int, angle: Number, stochastic: bool) -> Tensor | None:
        """Uniform in [-½, ½), to round low-precision weights with; seeded by `step`: a resumed run rounds alike.

        None where the weights need none or none is wanted: then an angle too small for them is remembered.
        """
        if w.dtype.itemsize >= 4:
            return None
        if not stochastic:
            self._rounds_updates_away |= _known_below(angle, 1.28 * torch.finfo(w.dtype).eps)
            return None
        generator = self._generators.get(w.device)
        if generator is None:
            generator = self._generators[w.device] = torch.Generator(w.device).manual_seed(step)
        return torch.empty(w.shape, device=w.device).uniform_(-0.5, 0.5, generator=generator)


def in_cache(x: Tensor) -> list[slice]:
    """Cuts along dimension 0 that keep what is computed of each piece in a CPU's cache; one cut on other devices.

    Pieces have 2 indices or more if x has: a size of 1 would be another kind to a compiled step.
    """
    size = x.shape[0]
    pieces = min(-(-x.numel() // CACHED), size // 2)
    if pieces <= 1 or x.device.type != "cpu":
        return [WHOLE]
    cuts = [piece * size // pieces for piece in range(pieces + 1)]
    return [slice(start, stop) for start, stop in pairwise(cuts)]


def cut(tensors: list[Tensor], part: Tensor | slice) -> list[Tensor]:
    """A part of each of the tensors."""
    return tensors if part is WHOLE else [x[part] for x in tensors]


def _is_dense(x: Tensor) -> bool:
    """Whether x's entries fill the memory that they span."""
    return x.numel() == 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


def _in_pieces(step: Callable[[list[Tensor]], None], tensors: list[Tensor]) -> None:
    for part in in_cache(tensors[0]):
        step(cut(tensors, part))


def _by_kind(fused: Callable[..., None], waiting: list[list[Tensor]]) -> None:
    fused(*zip(*waiting, strict=True))


def _end_to_end(step: Callable[[list[Tensor]], None], waiting: list[list[Tensor]]) -> None:
    """One step of many small tensors, their entries laid end to end."""
    columns = [[x if x.dim() == 1 else x.view(-1) for x in tensors] for tensors in zip(*waiting, strict=True)]
    together = [torch.cat(tensors) for tensors in columns]
    _in_pieces(step, together)
    sizes = [x.numel() for x in columns[0]]
    for tensors, changed in zip(columns, together, strict=True):
        if tensors is not columns[1]:  # all but the gradient
            torch._foreach_copy_(tensors, torch.split(changed, sizes))


def _known_below(angle: Number, threshold: float) -> bool:
    """Whether the angle is above 0 and below the threshold, as far as that is known without asking a device."""
    return not (isinstance(angle, Tensor) and angle.device.type != "cpu") and bool(0 < angle < threshold)
