"""Steps of many tensors at once.

A step entry by entry takes the fastest of three ways. A turn measures each piece, decides for the vectors of all pieces
together, because that takes as long for one tensor as for many, and moves each piece.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple, final

import torch
from torch import Tensor

from gyroscope._dtensor import Across, summed
from gyroscope.geometry import Split, at_least_float32
from gyroscope.optim._engine import memory, programs
from gyroscope.optim._engine.compiled import Program, is_compiled, packed, program_for
from gyroscope.optim._engine.memory import WHOLE, Scratch, cut, laid_out_like, pieces, small_limit
from gyroscope.optim._engine.steps import Step, Turn
from gyroscope.optim.formulas import Tensors, is_fusable, sums

# (step, scratch memory, [weight, gradient, *moments] of each tensor)
PlainRunner = Callable[[Step, Scratch, list[list[Tensor]]], None]
# Δ and the values per vector of each piece.
Measured = Iterable[tuple[Tensor, Sequence[Tensor]]]


def plain_runner(step: Step, tensors: list[Tensor]) -> tuple[str | None, PlainRunner]:
    """Return how such tensors take their step, with a name of the batch that they join. None: alone."""
    if is_fusable(tensors) and step.kernel is not None:
        return "fused", _run_fused
    if tensors[0].numel() < small_limit(tensors[0]) and all(x.is_contiguous() for x in tensors):
        return "end to end", _run_end_to_end
    return None, _run_in_pieces


def _run_fused(step: Step, scratch: Scratch, batch: list[list[Tensor]]) -> None:
    assert step.kernel is not None
    step.kernel(*zip(*batch, strict=True))


def _run_in_pieces(step: Step, scratch: Scratch, batch: list[list[Tensor]]) -> None:
    """Step piece by piece: a piece stays in cache through all operations of the step."""
    scratch.reserved.clear()
    for tensors in batch:
        for part in pieces(tensors[0]) if tensors[0].dim() else [WHOLE]:
            _take_plain_step(step, scratch, cut(tensors, part))


def _take_plain_step(step: Step, scratch: Scratch, tensors: list[Tensor]) -> None:
    """Take the step of [weight, gradient, *moments] entry by entry, by a program if the step says so."""
    w, grad, *moments = tensors
    if is_compiled(step.compile, w) and all(m.stride() == w.stride() for m in moments):
        views = Split("tensor").rows(w, laid_out_like(grad, w), *moments)
        numbers = packed((step.lr, step.decay, *step.numbers.values()), w.device)
        function = partial(programs.entries_one_by_one, step)
        program_for((step.direction, *step.numbers), function, views, [], numbers)([*views, numbers])
        return
    u = scratch.like(w, at_least_float32(w.dtype))
    assert step.direction is not None
    step.direction(tensors, u, **step.numbers)
    step.descend(w, u, step.lr, step.decay)


def _run_end_to_end(step: Step, scratch: Scratch, batch: list[list[Tensor]]) -> None:
    """Take one step of many small tensors with their entries concatenated."""
    if len(batch) == 1:
        _run_in_pieces(step, scratch, batch)
        return
    columns = [[x if x.dim() == 1 else x.view(-1) for x in tensors] for tensors in zip(*batch, strict=True)]
    joined = [torch.cat(tensors) for tensors in columns]
    _run_in_pieces(step, scratch, [joined])
    _write_back(columns, joined)


def _write_back(columns: Sequence[Tensors], joined: Sequence[Tensor]) -> None:
    """Copy weights and moments into the tensors that were joined."""
    sizes = [x.shape[0] for x in columns[0]]
    for place, (column, changed) in enumerate(zip(columns, joined, strict=True)):
        if place != 1:  # all but the gradient
            torch._foreach_copy_(column, torch.split(changed, sizes))


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
        return [
            self._replace(
                entries=cut(self.entries, part),
                rows=cut(self.rows, part),
                noise=None if self.noise is None else self.noise[part],
            )
            for part in pieces(self.entries[0])
        ]


@final
class Joined:
    """Small tensors with vectors of one length as one piece, or a piece alone: a batch then takes few operations."""

    def __init__(self, step: Step, parts: list[Piece]) -> None:
        self.parts = parts
        self.whole = parts[0]
        self.sizes = [len(part.entries[0]) for part in parts]
        # Weights, gradients and so on of all parts, and those that the rule's kernel reads where they are.
        self._columns: list[tuple[Tensor, ...]] = []
        self._unjoined: list[tuple[Tensor, ...]] = []
        if len(parts) == 1:
            return
        columns = list(zip(*[part.entries for part in parts], strict=True))
        others = list(chain.from_iterable(columns[1:]))
        if step.direction_kernel is not None and others[0].dtype == self.whole.dtype and is_fusable(others):
            self._unjoined = columns[1:]
            columns = columns[:1]
        noises = [part.noise for part in parts if part.noise is not None]
        noise = torch.cat(noises) if noises else None
        self._columns = columns
        if len({column[0].dtype for column in columns}) == 1:
            # One launch for all.
            entries = torch.cat(list(chain.from_iterable(columns))).chunk(len(columns))
        else:
            entries = tuple(map(torch.cat, columns))
        self.whole = self.whole._replace(entries=list(entries), noise=noise)

    def measure(self, step: Step, turn: Turn, scratch: Scratch) -> tuple[Tensor, Sequence[Tensor]]:
        """Return Δ and the values per vector."""
        entries, rows, _, dtype, _, _ = self.whole
        w = entries[0]
        update = scratch.like(w, dtype, reserve=True) if step.direction is not None else entries[1].to(dtype)
        product = scratch.like(w, dtype)
        if not self._unjoined:
            return update, turn.measure(entries, rows, update, product, turn.numbers)
        assert step.direction_kernel is not None
        step.direction_kernel(torch.split(update.zero_(), self.sizes), *self._unjoined)
        return update, sums(w, update, product)

    def write_back(self) -> None:
        """Copy weights and moments into the parts."""
        if self._columns:
            _write_back(self._columns, self.whole.entries)


def _joining(batch: list[Piece]) -> Iterable[list[Piece]]:
    """Return the pieces that take their step together: small ones with vectors of one length."""
    first = batch[0].entries[0]
    dtype = batch[0].dtype
    limit = small_limit(first)
    any_layout = memory.on_accelerator(first)
    together: dict[Hashable, list[Piece]] = {}
    for place, piece in enumerate(batch):
        w = piece.entries[0]
        joins = w.numel() < limit and w.dim() == 2
        if joins and not any_layout:
            # To the last digit what a piece would do alone: other layouts and mixed types add in another order.
            joins = all(x.is_contiguous() and x.dtype == dtype for x in piece.entries)
        together.setdefault(piece.fan_in if joins else ("alone", place), []).append(piece)
    return together.values()


def run_vectors(step: Step, turn: Turn, scratch: Scratch, batch: list[Piece]) -> None:
    """Take the step of a batch."""
    # No earlier batch needs its memory any more, nor a step that was interrupted.
    scratch.reserved.clear()
    joined = [Joined(step, parts) for parts in (_joining(batch) if len(batch) > 1 else [batch])]
    columns = list(zip(*[part.rows for each in joined for part in each.parts], strict=True))
    rows = list(map(torch.cat, columns))
    start = 0
    for each in joined:
        end = start + sum(each.sizes)
        each.whole = each.whole._replace(rows=[row[start:end] for row in rows])
        start = end
    measured = (each.measure(step, turn, scratch) for each in joined)
    _decide_and_move(turn, scratch, [each.whole for each in joined], measured, columns, rows)
    for each in joined:
        each.write_back()


def run_spread(batches: list[tuple[Step, Turn, list[Piece]]], scratch: Scratch) -> None:
    """Take the step of vectors that are split over processes, with one reduction between measuring and deciding.

    For it to be one, the Δ of all of them is in memory at the same time.
    """
    scratch.reserved.clear()
    updates = []
    shares = []
    exchanges = []
    for step, turn, batch in batches:
        for entries, rows, _, dtype, across, _ in batch:
            assert across is not None
            w = entries[0]
            update = torch.empty_like(w, dtype=dtype) if step.direction is not None else entries[1].to(dtype)
            values = turn.measure(entries, across.of(rows), update, scratch.like(w, dtype), turn.numbers)
            updates.append(update)
            shares.append(across.shares(values))
            exchanges.append(across)
    totals = [each.unbind(0) for each in summed(shares, exchanges)]
    measured = iter(zip(updates, totals, strict=True))
    for _, turn, batch in batches:
        columns = list(zip(*[piece.rows for piece in batch], strict=True))
        _decide_and_move(turn, scratch, batch, measured, columns, list(map(torch.cat, columns)))


def _decide_and_move(
    turn: Turn,
    scratch: Scratch,
    batch: list[Piece],
    measured: Measured,
    columns: list[tuple[Tensor, ...]],
    rows: list[Tensor],
) -> None:
    """Take the step of a batch, given what is measured of each piece, and the rows, apart and concatenated."""
    updates = []
    values = []
    sizes = []
    for piece, (update, of_piece) in zip(batch, measured, strict=False):  # batches share one iterator
        updates.append(update)
        values.append((*of_piece, torch.full_like(of_piece[0], piece.fan_in)))
        sizes.append(of_piece[0].shape[0])
    together: Sequence[Tensor] = values[0]
    if 1 < len(values) < len(values[0]):
        # As few launches as possible.
        together = torch.cat([torch.stack(each) for each in values], 1).unbind(0)
    elif len(values) > 1:
        together = list(map(torch.cat, zip(*values, strict=True)))
    change = turn.decide(together[:-1], rows, together[-1], turn.numbers)
    for piece, update, coefficients in zip(batch, updates, change.split(sizes), strict=True):
        mine = coefficients if piece.across is None else piece.across.of(coefficients)
        turn.move(piece.entries, update, mine, piece.noise, scratch)
        if turn.finish is not None:
            turn.finish(piece.entries, mine)
    row_sizes = [row.shape[0] for row in columns[0]] if columns else []
    for column, new in zip(columns, change.rows, strict=False):  # factors of the angle do not change
        torch._foreach_copy_(column, torch.split(new, row_sizes))


def run_program(turn: Turn, program: Program, entries: list[Tensor], others: list[Tensor], batch: list[Piece]) -> None:
    """Take the step of one piece by a compiled program."""
    outputs = program([*entries, *others])
    if turn.finish is not None:
        turn.finish(entries, outputs)
