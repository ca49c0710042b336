"""The one loop of all optimizers: prepare every tensor of a step, sorted into batches, then run batch after batch.

Preparing is Python (views, state, numbers); running streams through memory. They are two passes because a stream
pushes all else out of the processor's cache: Python in between takes several times as long.

A step of vectors runs in three parts (`VectorStep`): measure, decide, move. What is decided per vector takes as long
for one tensor as for many, so the vectors of a batch are decided together.
"""

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from gyroscope._dtensor import Across, across_processes, cut_like, local, summed
from gyroscope.geometry import Axis, Split, at_least_float32
from gyroscope.optim._engine import memory, programs
from gyroscope.optim._engine.batching import plain_runner
from gyroscope.optim._engine.compiled import Program, can_run, merged, packed, program_for
from gyroscope.optim._engine.memory import Scratch, cut, laid_out_like, pieces
from gyroscope.optim._engine.rounding import LOST_UPDATES, loses_updates, rounding_noise
from gyroscope.optim._engine.state import new_moment, new_row
from gyroscope.optim._engine.steps import Group, PlainStep, Step, Vectors, VectorStep

State = dict[str, Any]
ROWS_OF = attrgetter("rows")
NO_FACTORS: Mapping[Tensor, float] = MappingProxyType({})


class Task(NamedTuple):
    """A parameter with what its step needs: in `update` its gradient, or a Δ that another optimizer has made."""

    p: Tensor
    update: Tensor
    state: State
    group: Group


@dataclass
class Kept:
    """What an optimizer keeps from step to step beside its state: scratch memory, and whether it has warned."""

    scratch: Scratch = field(default_factory=Scratch)
    has_warned: bool = False


class Piece(NamedTuple):
    """Vectors of one tensor: [weight, gradient, *moments] in rows, values per vector, and noise to round with."""

    entries: list[Tensor]
    rows: list[Tensor]
    fan_in: int
    across: Across | None = None
    noise: Tensor | None = None

    def cut(self) -> list["Piece"]:
        """The same in pieces that stay in a CPU's cache from one part of the step to the next."""
        return [
            Piece(
                cut(self.entries, part),
                cut(self.rows, part),
                self.fan_in,
                noise=None if self.noise is None else self.noise[part],
            )
            for part in pieces(self.entries[0])
        ]


@dataclass
class Batch:
    """Items that `run` takes together."""

    run: Callable[[list[Any]], None]
    items: list[Any] = field(default_factory=list)
    num_entries: int = 0


def take_step(
    tasks: list[Task],
    step_for: Callable[[Group, int, Vectors], Step],
    kept: Kept,
    count: str = "step",
    angle_factors: Mapping[Tensor, float] = NO_FACTORS,
) -> None:
    """Take one step of all tasks; `count` names the counter in their states, which counts this step already.

    `step_for(group, t, vectors)` describes the step; it is called once for tensors that share all three. The angle of a
    rotation is multiplied by the parameter's factor in `angle_factors`, if it has one.
    """
    preparation = Preparation(kept)
    steps: dict[Hashable, tuple[Vectors, Step]] = {}
    for place, task in enumerate(tasks):
        p = task.p
        group = task.group
        t = int(task.state[count])
        # Groups are told apart by identity: their options are dicts, and may be changed between steps.
        key = (id(group), t, p.shape, p.dtype, p.device)
        if key not in steps:
            options = _with_scalar_lr(group)
            vectors = vectors_for(p, group)
            steps[key] = (vectors, step_for(options, t, vectors))
        preparation.add(task, place, t, *steps[key], angle_factors.get(p))
    # From here on the step streams through memory; nothing is prepared any more.
    for batch in preparation.batches:
        batch.run(batch.items)
    if preparation.spread:
        run_spread(list(preparation.spread.values()), kept.scratch)
    if preparation.loses_updates and not kept.has_warned:
        kept.has_warned = True
        warnings.warn(LOST_UPDATES, stacklevel=7)  # the user's line, behind what torch wraps around step


def vectors_for(p: Tensor, group: Group) -> Vectors:
    """How the group splits a parameter into vectors."""
    split = (group.get("granularity", "neuron"), group.get("axis", 0), group.get("group_size", 1))
    return _vectors(*split, p.shape, p.dtype, p.device)


# The same for every step of a tensor, and asked for at each: a dozen calls into geometry are saved.
@cache
def _vectors(
    granularity: Any, axis: Axis, group_size: int, shape: torch.Size, dtype: torch.dtype, device: torch.device
) -> Vectors:
    split = Split(granularity, axis, group_size)
    rotates = split.rotates(shape)
    return Vectors(split, rotates, split.fan_in(shape) if rotates else 1, shape, dtype, device)


def _with_scalar_lr(group: Group) -> Group:
    """torch lets lr be a tensor with one element and any number of dimensions; the formulas want none."""
    lr = group["lr"]
    return {**group, "lr": lr.reshape(())} if isinstance(lr, Tensor) and lr.dim() else group


@final
class Preparation:
    """The batches of one step, filled tensor by tensor."""

    def __init__(self, kept: Kept) -> None:
        self.batches: list[Batch] = []
        self.spread: dict[Hashable, tuple[VectorStep, list[Piece]]] = {}
        self.loses_updates = False
        self._scratch = kept.scratch
        self._open: dict[Hashable, Batch] = {}
        self._inputs: dict[Hashable, Tensor] = {}
        self._generators: dict[torch.device, torch.Generator] = {}

    def add(
        self, task: Task, place: int, t: int, vectors: Vectors, step: Step, angle_factor: float | None = None
    ) -> None:
        """Prepare a tensor; `place` counts the tensors of the step, t the steps of the tensor."""
        p = task.p
        tensors = [p.detach(), task.update]
        for name in step.moments:
            if name not in task.state:
                task.state[name] = new_moment(p, step)
            moment = task.state[name]
            if isinstance(step, PlainStep) and step.stacked:
                tensors.extend(local(moment))  # not +=, for which Python first tries to add a tensor, and fails slowly
            else:
                tensors.append(moment)
        if hasattr(p, "placements"):
            tensors[1] = cut_like(tensors[1], p)
            tensors = [local(x) for x in tensors]
        if isinstance(step, VectorStep):
            self._add_vectors(task, place, t, vectors, step, tensors, angle_factor)
            return
        kind, run = plain_runner(step, tensors)
        # Tensors of one kind and dtypes go together; a kind of None stands for tensors that go alone.
        key = kind and (kind, step.key, tensors[0].device, *[x.dtype for x in tensors])
        self._put(key, partial(run, step, self._scratch), tensors, tensors[0].numel())

    def _add_vectors(
        self,
        task: Task,
        place: int,
        t: int,
        vectors: Vectors,
        step: VectorStep,
        tensors: list[Tensor],
        angle_factor: float | None,
    ) -> None:
        p, _, state, group = task
        rows = []
        for name, first in step.rows.items():
            if name not in state:
                state[name] = new_row(p, vectors.split, first, place)
            rows.append(state[name])
        split = vectors.split
        across = None
        # DTensors are known by an attribute, not by their class, whose import takes a second.
        if hasattr(p, "placements"):
            rows = [local(row) for row in rows]
            across = across_processes(p, split)
            split = split if across is None else across.split
        if angle_factor is not None:
            # As a value per vector, not as one of the numbers: tensors with other factors are decided together.
            rows.append(torch.full_like(rows[0], angle_factor))
        w = tensors[0]
        if across is None and w.numel() == 0:  # an empty shard has nothing to turn, and no process waits for it
            return
        is_noisy = self._is_noisy(w, step, group)
        if is_noisy:
            tensors.append(rounding_noise(w, t, place, self._generators))
        is_compiled = False
        if group["compile"] and across is None and can_run(w):
            alike = [laid_out_like(x, w) for x in tensors]
            # Gradients are copied at each step; moments, which the step writes, get the weights' layout for good.
            moments = zip(step.moments, alike[2:], tensors[2:], strict=False)
            changed = {name: new for name, new, old in moments if new is not old}
            # A DTensor in the state cannot be replaced by its local part: such a tensor steps eagerly.
            is_compiled = not (changed and hasattr(p, "placements"))
            if is_compiled:
                state.update(changed)
                tensors = alike
        if isinstance(split.axis, tuple):  # they must be one in memory, and a gradient may come in any layout
            tensors[1] = laid_out_like(tensors[1], w)
        views = split.rows(*tensors)
        if is_compiled:
            views = merged(views)
        noise = views.pop() if is_noisy else None
        whole = Piece(views, rows, vectors.fan_in, across, noise)
        # What vectors share to be decided together; the number of rows tells angles with factors from others.
        key = None if is_compiled else (step.key, step.numbers, len(rows), w.dtype, w.device, is_noisy)
        if across is not None:
            self.spread.setdefault(key, (step, []))[1].append(whole)
            return
        for piece in [whole] if w.numel() <= memory.PIECE else whole.cut():
            run = self._compiled(step, piece) if is_compiled else partial(run_vectors, step, self._scratch)
            self._put(key, run, piece, piece.entries[0].numel(), is_noisy)

    def _is_noisy(self, w: Tensor, step: VectorStep, group: Group) -> bool:
        # 4 bytes and more: float32 weights resolve every angle that training has.
        if step.angle is None or w.dtype.itemsize >= 4:
            return False
        is_noisy: bool = group["stochastic_rounding"]
        self.loses_updates |= not is_noisy and loses_updates(step.angle, w.dtype)
        return is_noisy

    def _compiled(self, step: VectorStep, piece: Piece) -> Callable[[list[Piece]], None]:
        """How a piece takes its step by a program, which is compiled if there is none for its kind."""
        w = piece.entries[0]
        dtype = at_least_float32(w.dtype)
        numbers = self._input((step.numbers, w.device), partial(packed, step.numbers, w.device))
        ones = self._input((len(w), dtype, w.device), partial(w.new_ones, len(w), dtype=dtype))
        rows = [*piece.rows, ones]
        entries = piece.entries if piece.noise is None else [*piece.entries, piece.noise]
        # Here only for its dtype and layout; the program gets scratch memory when it runs.
        scratch = [self._scratch.like(w, dtype)] if step.keeps_update else []
        function = partial(programs.vector_rows, step)
        program = program_for(step.key, function, [*entries, *scratch], rows, numbers, step.keeps_update)
        return partial(_run_program, step, self._scratch, program, entries, [*rows, numbers])

    def _input(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """A small tensor that many programs of this step take as input."""
        if key not in self._inputs:
            self._inputs[key] = make()
        return self._inputs[key]

    def _put(
        self, key: Hashable, run: Callable[[list[Any]], None], item: Any, num_entries: int, is_noisy: bool = False
    ) -> None:
        """Put an item into the open batch of its key, or into one of its own without a key."""
        batch = self._open.get(key)
        if batch is None:
            batch = Batch(run)
            self.batches.append(batch)
            self._open[key] = batch
        batch.items.append(item)
        batch.num_entries += num_entries
        if key is None or batch.num_entries >= memory.BATCH:
            del self._open[key]
            if is_noisy:
                # Noise is as large as the weights: run now, so that it is freed before more is drawn.
                self.batches.remove(batch)
                batch.run(batch.items)


def run_vectors(step: VectorStep, scratch: Scratch, batch: list[Piece]) -> None:
    """Measure each piece, decide for the vectors of all, move each piece."""
    # Nothing of an earlier batch is needed any more, nor of a step that was interrupted.
    scratch.reserved.clear()

    def measure(piece: Piece) -> tuple[Tensor, Sequence[Tensor]]:
        w = piece.entries[0]
        dtype = at_least_float32(w.dtype)
        update = scratch.like(w, dtype, reserve=True) if step.makes_update else piece.entries[1].to(dtype)
        return update, step.measure(piece.entries, piece.rows, update, scratch.like(w, dtype), step.numbers)

    _decide_and_move(step, batch, measure)


def run_spread(batches: list[tuple[VectorStep, list[Piece]]], scratch: Scratch) -> None:
    """The same for pieces of vectors that no process holds whole: between measuring and deciding, one reduction.

    For it to be one, the Δ of all of them is in memory at the same time.
    """
    scratch.reserved.clear()
    updates = []
    shares = []
    exchanges = []
    for step, batch in batches:
        for entries, rows, _, across, _ in batch:
            assert across is not None
            w = entries[0]
            dtype = at_least_float32(w.dtype)
            update = torch.empty_like(w, dtype=dtype) if step.makes_update else entries[1].to(dtype)
            values = step.measure(entries, across.of(rows), update, scratch.like(w, dtype), step.numbers)
            updates.append(update)
            shares.append(across.shares(values))
            exchanges.append(across)
    sums = [each.unbind(0) for each in summed(shares, exchanges)]
    measured = zip(updates, sums, strict=True)
    for step, batch in batches:
        _decide_and_move(step, batch, lambda piece: next(measured))


def _decide_and_move(
    step: VectorStep, batch: list[Piece], measure: Callable[[Piece], tuple[Tensor, Sequence[Tensor]]]
) -> None:
    """Measure each piece, its Δ and values per vector, decide for the vectors of all together, and move each piece."""
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
    # map and zip, not comprehensions: the vectors of 200 tiny layers would wait for them.
    columns = list(zip(*map(ROWS_OF, batch), strict=True))
    values = tuple(map(torch.cat, zip(*measured, strict=True)))
    change = step.decide(values, list(map(torch.cat, columns)), torch.cat(fan_ins), step.numbers)
    for piece, update, coefficients in zip(batch, updates, change.split(sizes), strict=True):
        across = piece.across
        mine = coefficients if across is None else across.of(coefficients)
        step.move(piece.entries, update, mine, piece.noise)
        if step.finish is not None:
            step.finish(piece.entries, mine)
    for column, new in zip(columns, change.rows, strict=False):  # factors of the angle do not change
        torch._foreach_copy_(column, torch.split(new, sizes))


def _run_program(
    step: VectorStep,
    scratch: Scratch,
    program: Program,
    entries: list[Tensor],
    others: list[Tensor],
    batch: list[Piece],
) -> None:
    scratch.reserved.clear()
    w = entries[0]
    memory_for_update = [scratch.like(w, at_least_float32(w.dtype))] if step.keeps_update else []
    outputs = program([*entries, *memory_for_update, *others])
    if step.finish is not None:
        step.finish(entries, outputs)
