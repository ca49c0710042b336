"""The one loop of all optimizers: prepare every tensor of a step, sorted into batches, then run batch after batch.

Preparing is Python (views, state, numbers); running streams through memory. They are two passes because a stream
pushes all else out of the processor's cache: Python in between takes several times as long.

A step of vectors runs in three parts (`VectorStep`): measure, decide, move. What is decided per vector takes as long
for one tensor as for many, so the vectors of a batch are decided together.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from gyroscope.geometry import Axis, Split, at_least_float32
from gyroscope.optim._engine import memory
from gyroscope.optim._engine.batching import plain_runner
from gyroscope.optim._engine.compiled import Program, can_run, merged, packed, program_for
from gyroscope.optim._engine.memory import WHOLE, Scratch, cut, laid_out_like, pieces
from gyroscope.optim._engine.rounding import Rounding
from gyroscope.optim._engine.shards import Across, across_processes, local
from gyroscope.optim._engine.state import new_moment, new_row
from gyroscope.optim._engine.steps import Group, PlainStep, Step, Vectors, VectorStep

State = dict[str, Any]


class Task(NamedTuple):
    """A parameter with what its step needs: in `update` its gradient, or a Δ that another optimizer has made."""

    p: Tensor
    update: Tensor
    state: State
    group: Group


@dataclass
class Kept:
    """What an optimizer keeps from step to step beside its state: scratch memory, and warnings that were given."""

    scratch: Scratch = field(default_factory=Scratch)
    warned: set[str] = field(default_factory=set)


class Piece(NamedTuple):
    """Vectors of one tensor: [weight, gradient, *moments] in rows, values per vector, and noise to round with."""

    entries: list[Tensor]
    rows: list[Tensor]
    fan_in: int
    across: Across | None
    noise: Tensor | None


@dataclass
class Batch:
    """Items that `run` takes together."""

    run: Callable[[list[Any]], None]
    items: list[Any] = field(default_factory=list)
    num_entries: int = 0


def take_step(
    tasks: list[Task], step_for: Callable[[Group, int, Vectors], Step], kept: Kept, count: str = "step"
) -> None:
    """Take one step of all tasks; `count` names the counter in their states, which counts this step already.

    `step_for(group, t, vectors)` describes the step; it is called once for tensors that share all three.
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
        preparation.add(task, place, t, *steps[key])
    # From here on the step streams through memory; nothing is prepared any more.
    for batch in preparation.batches:
        batch.run(batch.items)
    if preparation.rounding is not None:
        preparation.rounding.warn(kept.warned)


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
        self.rounding: Rounding | None = None
        self._scratch = kept.scratch
        self._open: dict[Hashable, Batch] = {}
        self._inputs: dict[Hashable, Tensor] = {}

    def add(self, task: Task, place: int, t: int, vectors: Vectors, step: Step) -> None:
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
            tensors = [local(x) for x in tensors]
        if isinstance(step, VectorStep):
            self._add_vectors(task, place, t, vectors, step, tensors)
            return
        kind, run = plain_runner(step, tensors)
        # Tensors of one kind and dtypes go together; a kind of None stands for tensors that go alone.
        key = kind and (kind, step.key, tensors[0].device, *[x.dtype for x in tensors])
        self._put(key, partial(run, step, self._scratch), tensors, tensors[0].numel())

    def _add_vectors(
        self, task: Task, place: int, t: int, vectors: Vectors, step: VectorStep, tensors: list[Tensor]
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
        w = tensors[0]
        if across is None and w.numel() == 0:  # an empty shard has nothing to turn, and no process waits for it
            return
        # 4 bytes and more: float32 weights resolve every angle that training has.
        noise = self._noise(w, t, step, group) if w.dtype.itemsize < 4 and step.angle is not None else None
        if noise is not None:
            tensors.append(noise)
        if group["compile"] and across is None and can_run(w):
            alike = [laid_out_like(x, w) for x in tensors]
            # Gradients are copied at each step; moments, which the step writes, get the weights' layout for good.
            moments = zip(step.moments, alike[2:], tensors[2:], strict=False)
            changed = {name: new for name, new, old in moments if new is not old}
            if not (changed and hasattr(p, "placements")):
                state.update(changed)
                self._add_programs(step, merged(split.rows(*alike)), rows, is_noisy=noise is not None)
                return
        if isinstance(split.axis, tuple):  # they must be one in memory, and a gradient may come in any layout
            tensors[1] = laid_out_like(tensors[1], w)
        views = split.rows(*tensors)
        noise = None if noise is None else views.pop()
        # What vectors must share to be decided together: numbers, number of rows (imbalanced or not), dtype and device.
        key = (step.key, len(rows), w.dtype, w.device, noise is None)
        run = partial(run_vectors, step, self._scratch)
        # Vectors across processes stay whole: each piece would be a reduction of its own.
        is_whole = across is not None or w.numel() <= memory.PIECE
        for part in [WHOLE] if is_whole else pieces(views[0]):
            entries = views if part is WHOLE else cut(views, part)
            values = rows if part is WHOLE else cut(rows, part)
            piece = Piece(entries, values, vectors.fan_in, across, None if noise is None else noise[part])
            self._put(key, run, piece, entries[0].numel(), is_noisy=noise is not None)

    def _noise(self, w: Tensor, t: int, step: VectorStep, group: Group) -> Tensor | None:
        if self.rounding is None:
            self.rounding = Rounding()
        return self.rounding.noise(w, t, step.angle, group["stochastic_rounding"])

    def _add_programs(self, step: VectorStep, views: list[Tensor], rows: list[Tensor], is_noisy: bool) -> None:
        form = step.compilable
        w = views[0]
        numbers = self._input((form.numbers, w.device), partial(packed, form.numbers, w.device))
        for part in pieces(w) if form.in_pieces else [WHOLE]:
            entries = cut(views, part)
            values = cut(rows, part)
            if form.ones:
                like = values[0]
                values = [*values, self._input((like.shape, like.dtype, w.device), partial(torch.ones_like, like))]
            # Here only for its dtype and layout; the program gets scratch memory when it runs.
            scratch = [self._scratch.like(entries[0], at_least_float32(w.dtype))] if form.scratch else []
            program = program_for(form.key, form.function, [*entries, *scratch], values, numbers, form.scratch)
            run = partial(_run_program, step, program, self._scratch)
            self._put(None, run, (entries, [*values, numbers]), w.numel(), is_noisy)

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
    updates = []
    measured = []
    fan_ins = []
    sizes = []
    columns: list[list[Tensor]] = [[] for _ in step.rows]
    for entries, rows, fan_in, across, _ in batch:
        w = entries[0]
        dtype = torch.promote_types(w.dtype, torch.float32)
        update = scratch.like(w, dtype, reserve=True) if step.makes_update else entries[1].to(dtype)
        product = scratch.like(w, dtype)
        values = step.measure(entries, rows if across is None else across.of(rows), update, product)
        if across is not None:
            # One reduction for all the sums of a tensor, not one for each.
            values = across.summed(torch.stack(values)).unbind(0)
        updates.append(update)
        measured.append(values)
        fan_ins.append(torch.full_like(values[0], fan_in))
        sizes.append(len(values[0]))
        for column, row in zip(columns, rows, strict=True):
            column.append(row)
    # map and zip, not comprehensions: the vectors of 200 tiny layers would wait for them.
    change = step.decide(
        list(map(torch.cat, zip(*measured, strict=True))), list(map(torch.cat, columns)), torch.cat(fan_ins)
    )
    for piece, update, coefficients in zip(batch, updates, change.split(sizes), strict=True):
        across = piece.across
        mine = coefficients if across is None else across.of(coefficients)
        step.move(piece.entries, update, mine, piece.noise)
    for column, new in zip(columns, change.rows, strict=False):  # factors of an imbalanced angle do not change
        torch._foreach_copy_(column, torch.split(new, sizes))


def _run_program(
    step: VectorStep, program: Program, scratch: Scratch, batch: list[tuple[list[Tensor], list[Tensor]]]
) -> None:
    form = step.compilable
    for entries, others in batch:
        scratch.reserved.clear()
        memory_for_update = [scratch.like(entries[0], at_least_float32(entries[0].dtype))] if form.scratch else []
        outputs = program([*entries, *memory_for_update, *others])
        if form.finish is not None:
            form.finish(entries, outputs)
