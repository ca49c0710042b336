"""The one loop of all optimizers: prepare every tensor of a step, sorted into batches, then run batch after batch.

Preparing is Python (views, state, numbers), running streams through memory. They are two passes because a stream evicts
all else from the processor's cache, which would slow Python down several times.
"""

import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from gyroscope._dtensor import across_processes, cut_like, local, row_like
from gyroscope.geometry import Axis, Split, at_least_float32
from gyroscope.optim._engine import memory, programs
from gyroscope.optim._engine.compiled import Program, is_compiled, merged, packed, program_for
from gyroscope.optim._engine.memory import Scratch, laid_out_like
from gyroscope.optim._engine.running import Piece, plain_runner, run_program, run_spread, run_vectors
from gyroscope.optim._engine.steps import Group, Step, TensorKind, Turn
from gyroscope.optim._engine.tensors import Task, lay_out, loses_updates, new_moment, new_row

# Of the angles by parameter: a number, or a value per vector.
AngleFactors = Mapping[Tensor, float | Tensor]
NO_FACTORS: AngleFactors = MappingProxyType({})
LOST_UPDATES = (
    "the angular update is below what low-precision weights resolve, so rounding loses much of it: "
    "pass stochastic_rounding=True, or keep the weights in float32"
)


@dataclass
class StepCache:
    """Scratch memory that an optimizer keeps from step to step, and whether it has warned."""

    scratch: Scratch = field(default_factory=Scratch)
    has_warned: bool = False


class SharedStep(NamedTuple):
    """The step of tensors of one group, at one step count, of one shape and type.

    `key` numbers the batches that they may share with others.
    """

    t: int
    kind: TensorKind
    step: Step
    key: int
    is_noisy: bool


@dataclass
class Batch:
    """Items that `run` takes together."""

    run: Callable[[list[Any]], None]
    items: list[Any] = field(default_factory=list)
    num_entries: int = 0


def take_step(
    tasks: list[Task],
    step_for: Callable[[Group, int, TensorKind], Step],
    step_cache: StepCache,
    count: str = "step",
    angle_factors: AngleFactors = NO_FACTORS,
) -> None:
    """Take one step of all tasks. `count` names the counter in their states, which includes this step.

    `step_for(group, t, kind)` describes the step, and is called once for tensors that share all three.
    """
    preparation = Preparation(step_cache.scratch)
    steps: dict[Hashable, SharedStep] = {}
    for place, task in enumerate(tasks):
        p, _, state, group = task
        t = int(state[count])
        # Groups are compared by identity: they are dicts whose options may change between steps.
        key = (id(group), t, p.shape, p.dtype, p.device)
        shared = steps.get(key)
        if shared is None:
            lr = group["lr"]
            # torch accepts an lr of one element and any number of dimensions.
            flat = {**group, "lr": lr.reshape(())} if isinstance(lr, Tensor) and lr.dim() else group
            kind = kind_of(p, group)
            shared = steps[key] = preparation.share(group, t, kind, step_for(flat, t, kind))
        preparation.add(task, place, shared, angle_factors.get(p))
    for batch in preparation.batches:
        batch.run(batch.items)
    if preparation.spread:
        run_spread(list(preparation.spread.values()), step_cache.scratch)
    if preparation.loses_updates and not step_cache.has_warned:
        step_cache.has_warned = True
        warnings.warn(LOST_UPDATES, stacklevel=7)  # the user's line, behind torch's wrappers of step


def kind_of(p: Tensor, group: Group) -> TensorKind:
    """Return how the group splits a parameter into vectors."""
    split = (group.get("granularity", "neuron"), group.get("axis", 0), group.get("group_size", 1))
    return _kind(*split, p.shape, p.dtype, p.device)


# Needed at every step of a tensor, and always the same.
@cache
def _kind(
    granularity: Any, axis: Axis, group_size: int, shape: torch.Size, dtype: torch.dtype, device: torch.device
) -> TensorKind:
    split = Split(granularity, axis, group_size)
    rotates = split.rotates(shape)
    fan_in = split.fan_in(shape) if rotates else 1
    return TensorKind(split, rotates, fan_in, shape, dtype, at_least_float32(dtype), device)


@final
class Preparation:
    """The batches of one step, filled tensor by tensor."""

    def __init__(self, scratch: Scratch) -> None:
        self.batches: list[Batch] = []
        self.spread: dict[Hashable, tuple[Step, Turn, list[Piece]]] = {}
        self.loses_updates = False
        self._scratch = scratch
        self._open: dict[Hashable, Batch] = {}
        self._keys: dict[Hashable, int] = {}
        # Programs with two small inputs that pieces of one kind and layout share, and the numbers of each kind.
        self._programs: dict[Hashable, tuple[Program, Tensor, Tensor]] = {}
        self._numbers: dict[int, Tensor] = {}
        self._generators: dict[torch.device, torch.Generator] = {}

    def share(self, group: Group, t: int, kind: TensorKind, step: Step) -> SharedStep:
        """Return what tensors with the same step have in common."""
        dtype = kind.dtype
        turn = step.turn
        is_noisy = False
        together: Hashable
        if turn is None:
            together = (step.key, kind.device)
        else:
            # Weights of 4 bytes and more resolve every angle of training.
            if turn.angle is not None and dtype.itemsize < 4:
                is_noisy = group["stochastic_rounding"]
                self.loses_updates |= not is_noisy and loses_updates(turn.angle, dtype)
            # Vectors with one key are decided together.
            together = (turn.key, turn.numbers, dtype, kind.device, is_noisy)
        # A number, because tuples are hashed anew at each use.
        key = self._keys.setdefault(together, len(self._keys))
        return SharedStep(t, kind, step, key, is_noisy)

    def add(self, task: Task, place: int, shared: SharedStep, angle_factor: float | Tensor | None = None) -> None:
        """Prepare a tensor. `place` counts the tensors of the step."""
        step = shared.step
        tensors = _entries(task, step)
        if step.turn is not None:
            self._add_vectors(task, place, shared, step.turn, tensors, angle_factor)
            return
        way, run = plain_runner(step, tensors)
        # Tensors that step in one way and have the same dtypes share a batch. Without a way a tensor is alone.
        key = way and (way, shared.key, *[x.dtype for x in tensors])
        self._put(key, partial(run, step, self._scratch), tensors, tensors[0])

    def _add_vectors(
        self,
        task: Task,
        place: int,
        shared: SharedStep,
        turn: Turn,
        tensors: list[Tensor],
        angle_factor: float | Tensor | None,
    ) -> None:
        p, _, state, group = task
        w = tensors[0]
        step = shared.step
        split = shared.kind.split
        across = None
        rows = []
        for name, first in turn.rows.items():
            if name not in state:
                state[name] = new_row(p, split, first)
            rows.append(state[name])
        # DTensors are recognised by an attribute, because importing their class takes a second.
        if hasattr(p, "placements"):
            rows = list(map(local, rows))
            across = across_processes(p, split)
            split = split if across is None else across.split
        rows = [row if row.dim() == 1 else row.view(-1) for row in rows]
        size = w.numel()
        if across is None and size == 0:  # an empty shard has nothing to rotate, and no process waits for it
            return
        if angle_factor is not None:
            # A value per vector, not one of the numbers: tensors with other factors are decided together.
            if isinstance(angle_factor, Tensor):
                rows.append(local(row_like(p, shared.kind.split, angle_factor)).view(-1))
            else:
                rows.append(torch.full_like(rows[0], angle_factor))
        if shared.is_noisy:
            tensors.append(self._rounding_noise(w, shared.t, place))
        may_compile = bool(group["compile"]) and across is None
        has_program = may_compile and is_compiled(group["compile"], w) and lay_out(task, step, tensors)
        if isinstance(split.axis, tuple):  # the axes are one in memory, but a gradient may have any layout
            tensors[1] = laid_out_like(tensors[1], w)
        views = split.rows(*tensors)
        if has_program:
            views = merged(views)
        noise = views.pop() if shared.is_noisy else None
        whole = Piece(views, rows, shared.kind.fan_in, shared.kind.precision, across, noise)
        # The number of rows shows whether angles have factors.
        key = None if has_program else (shared.key, len(rows))
        if across is not None:
            self.spread.setdefault(key, (step, turn, []))[2].append(whole)
            return
        # A program goes through a tensor vector by vector, so it needs no pieces to stay in cache.
        pieces = [whole] if has_program or size <= memory.PIECE else whole.cut()
        run = self._compiled(shared, turn, whole) if has_program else partial(run_vectors, step, turn, self._scratch)
        for piece in pieces:
            self._put(key, run, piece, piece.entries[0], shared.is_noisy)

    def _rounding_noise(self, w: Tensor, t: int, place: int) -> Tensor:
        """Return uniform noise in [-½, ½) for stochastic rounding, seeded by the step and the tensor's place in it.

        A resumed run thus rounds alike, and so do copies of a tensor in processes that hold other parts of earlier
        tensors.
        """
        if w.device not in self._generators:
            self._generators[w.device] = torch.Generator(w.device)
        # Python's hash of integers is the same in every process.
        generator = self._generators[w.device].manual_seed(hash((t, place)) % 2**63)
        return torch.empty(w.shape, device=w.device).uniform_(-0.5, 0.5, generator=generator)

    def _compiled(self, shared: SharedStep, turn: Turn, piece: Piece) -> Callable[[list[Piece]], None]:
        """Return how a piece takes its step by a program, which is compiled if its kind has none."""
        w = piece.entries[0]
        entries = piece.entries if piece.noise is None else [*piece.entries, piece.noise]
        key = (shared.key, len(piece.rows), w.shape, w.stride(), *[x.dtype for x in entries])
        if key not in self._programs:
            if shared.key not in self._numbers:
                self._numbers[shared.key] = packed(turn.numbers, w.device)
            numbers = self._numbers[shared.key]
            ones = w.new_ones(w.shape[0], dtype=piece.dtype)
            function = partial(programs.vector_rows, shared.step, turn)
            program = program_for(turn.key, function, entries, [*piece.rows, ones], numbers)
            self._programs[key] = program, ones, numbers
        program, ones, numbers = self._programs[key]
        return partial(run_program, turn, program, entries, [*piece.rows, ones, numbers])

    def _put(
        self, key: Hashable, run: Callable[[list[Any]], None], item: Any, w: Tensor, is_noisy: bool = False
    ) -> None:
        """Put an item, which has this weight, into the open batch of its key. Without a key it gets its own batch."""
        batch = self._open.get(key)
        if batch is None:
            batch = self._open[key] = Batch(run)
            self.batches.append(batch)
        batch.items.append(item)
        batch.num_entries += w.numel()
        # No device has a lower limit than a CPU.
        if key is None or (batch.num_entries >= memory.BATCH and batch.num_entries >= memory.batch_limit(w)):
            del self._open[key]
            if is_noisy:
                # Noise is as large as the weights: run now, so that it is freed before more is drawn.
                self.batches.remove(batch)
                batch.run(batch.items)


def _entries(task: Task, step: Step) -> list[Tensor]:
    """Return this process's part of [weight, gradient, *moments]. Moments are made before the first step."""
    p, update, state, _ = task
    is_sharded = hasattr(p, "placements")
    tensors = [p.detach(), cut_like(update, p) if is_sharded else update]
    for name in step.moments:
        if name not in state:
            state[name] = new_moment(p, step.stacked)
        if step.stacked:
            tensors.extend(local(state[name]))  # += would first try to add tensors, and fail slowly
        else:
            tensors.append(state[name])
    return [local(x) for x in tensors] if is_sharded else tensors
