"""Steps of many vectors at once (`VectorStep`): measure each piece, decide for the vectors of all, move each piece.

Deciding takes as long for one tensor as for many, so the vectors of a batch are decided together.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple, final

import torch
from torch import Tensor

from gyroscope._dtensor import Across, summed
from gyroscope.optim._engine import memory
from gyroscope.optim._engine.compiled import Program
from gyroscope.optim._engine.memory import Scratch, cut, is_small, pieces
from gyroscope.optim._engine.steps import VectorStep
from gyroscope.optim.formulas import is_fusable, sums

ENTRIES_OF = attrgetter("entries")
ROWS_OF = attrgetter("rows")


class Piece(NamedTuple):
    """Vectors of one tensor: [weight, gradient, *moments] in rows, values per vector, and noise to round with.

    `dtype` is the precision of the step.
    """

    entries: list[Tensor]
    rows: list[Tensor]
    fan_in: int
    dtype: torch.dtype
    across: Across | None = None
    noise: Tensor | None = None

    def cut(self) -> list["Piece"]:
        """Return the same in pieces that stay in a CPU's cache from one part of the step to the next."""
        parts = pieces(self.entries[0])
        noises = [None if self.noise is None else self.noise[part] for part in parts]
        return [
            Piece(cut(self.entries, part), cut(self.rows, part), self.fan_in, self.dtype, noise=noise)
            for part, noise in zip(parts, noises, strict=True)
        ]


@final
class Joined:
    """Small tensors with vectors of one length as one piece, or a piece alone: a batch then takes few operations."""

    def __init__(self, step: VectorStep, parts: list[Piece]) -> None:
        self.parts = parts
        self.whole = parts[0]
        self.sizes = [len(part.entries[0]) for part in parts]
        self._others: list[tuple[Tensor, ...]] = []
        if len(parts) == 1:
            return
        columns = list(zip(*map(ENTRIES_OF, parts), strict=True))
        others = list(chain.from_iterable(columns[1:]))
        if step.fused is not None and others[0].dtype == self.whole.dtype and is_fusable(others):
            # The kernel reads gradients and moments where they are.
            self._others = columns[1:]
            columns = columns[:1]
        noises = [part.noise for part in parts if part.noise is not None]
        noise = torch.cat(noises) if noises else None
        self.whole = self.whole._replace(entries=list(map(torch.cat, columns)), noise=noise)

    def measure(self, step: VectorStep, scratch: Scratch) -> tuple[Tensor, Sequence[Tensor]]:
        """Return Δ and the values per vector."""
        entries, rows, _, dtype, _, _ = self.whole
        w = entries[0]
        update = scratch.like(w, dtype, reserve=True) if step.makes_update else entries[1].to(dtype)
        product = scratch.like(w, dtype)
        if not self._others:
            return update, step.measure(entries, rows, update, product, step.numbers)
        assert step.fused is not None
        step.fused(torch.split(update.zero_(), self.sizes), *self._others)
        return update, sums(w, update, product)

    def write_back(self) -> None:
        """Copy weights and moments into the parts."""
        if len(self.parts) == 1:
            return
        for place, changed in enumerate(self.whole.entries):
            if place != 1:  # all but the gradient
                torch._foreach_copy_([part.entries[place] for part in self.parts], torch.split(changed, self.sizes))


def _joins(piece: Piece) -> bool:
    """Return whether a piece takes its step together with others."""
    w = piece.entries[0]
    if w.dim() != 2 or not is_small(w):
        return False
    # On a CPU to the last digit what a piece would do alone: other layouts and mixed types add in another order.
    return memory.on_accelerator(w) or all(x.is_contiguous() and x.dtype == piece.dtype for x in piece.entries)


def run_vectors(step: VectorStep, scratch: Scratch, batch: list[Piece]) -> None:
    """Take the step of a batch."""
    # No earlier batch needs its memory any more, nor a step that was interrupted.
    scratch.reserved.clear()
    kinds: dict[Hashable, list[Piece]] = {}
    for place, piece in enumerate(batch):
        joins = len(batch) > 1 and _joins(piece)
        kinds.setdefault(piece.fan_in if joins else ("alone", place), []).append(piece)
    joined = [Joined(step, parts) for parts in kinds.values()]
    columns = list(zip(*[part.rows for each in joined for part in each.parts], strict=True))
    rows = list(map(torch.cat, columns))
    start = 0
    for each in joined:
        end = start + sum(each.sizes)
        each.whole = each.whole._replace(rows=[row[start:end] for row in rows])
        start = end
    measured = (each.measure(step, scratch) for each in joined)
    new_rows = _decide_and_move(step, [each.whole for each in joined], rows, lambda piece: next(measured))
    for each in joined:
        each.write_back()
    _copy_rows(columns, new_rows)


def run_spread(batches: list[tuple[VectorStep, list[Piece]]], scratch: Scratch) -> None:
    """Take the step of vectors that are split over processes, with one reduction between measuring and deciding.

    For it to be one, the Δ of all of them is in memory at the same time.
    """
    scratch.reserved.clear()
    updates = []
    shares = []
    exchanges = []
    for step, batch in batches:
        for entries, rows, _, dtype, across, _ in batch:
            assert across is not None
            w = entries[0]
            update = torch.empty_like(w, dtype=dtype) if step.makes_update else entries[1].to(dtype)
            values = step.measure(entries, across.of(rows), update, scratch.like(w, dtype), step.numbers)
            updates.append(update)
            shares.append(across.shares(values))
            exchanges.append(across)
    totals = [each.unbind(0) for each in summed(shares, exchanges)]
    measured = zip(updates, totals, strict=True)
    for step, batch in batches:
        columns = list(zip(*map(ROWS_OF, batch), strict=True))
        _copy_rows(columns, _decide_and_move(step, batch, list(map(torch.cat, columns)), lambda piece: next(measured)))


def _decide_and_move(
    step: VectorStep,
    batch: list[Piece],
    rows: list[Tensor],
    measure: Callable[[Piece], tuple[Tensor, Sequence[Tensor]]],
) -> Sequence[Tensor]:
    """Take the step of a batch, given the rows of all and a function from a piece to Δ and values per vector.

    Return the new rows.
    """
    updates = []
    measured = []
    sizes = []
    fan_ins = []
    for piece in batch:
        update, values = measure(piece)
        updates.append(update)
        measured.append(tuple(values))
        sizes.append(len(values[0]))
        fan_ins.append(torch.full_like(values[0], piece.fan_in))
    values = tuple(map(torch.cat, zip(*measured, strict=True)))
    change = step.decide(values, rows, torch.cat(fan_ins), step.numbers)
    for piece, update, coefficients in zip(batch, updates, change.split(sizes), strict=True):
        across = piece.across
        mine = coefficients if across is None else across.of(coefficients)
        step.move(piece.entries, update, mine, piece.noise)
        if step.finish is not None:
            step.finish(piece.entries, mine)
    return change.rows


def _copy_rows(columns: list[tuple[Tensor, ...]], new_rows: Sequence[Tensor]) -> None:
    """Copy new values per vector into the state."""
    for column, new in zip(columns, new_rows, strict=False):  # factors of the angle do not change
        torch._foreach_copy_(column, torch.split(new, list(map(len, column))))


def run_program(
    step: VectorStep,
    scratch: Scratch,
    program: Program,
    entries: list[Tensor],
    others: list[Tensor],
    batch: list[Piece],
) -> None:
    """Take the step of one piece by a compiled program."""
    scratch.reserved.clear()
    memory_for_update = [scratch.like(entries[0], batch[0].dtype)] if step.keeps_update else []
    outputs = program([*entries, *memory_for_update, *others])
    if step.finish is not None:
        step.finish(entries, outputs)
