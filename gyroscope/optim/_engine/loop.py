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
from gyroscope.optim._engine.batches import Piece, plain_runner, run_program, run_spread, run_vectors
from gyroscope.optim._engine.compiled import is_compiled, merged, packed, program_for
from gyroscope.optim._engine.memory import Scratch, laid_out_like
from gyroscope.optim._engine.steps import FirstValue, Group, PlainStep, Step, Vectors, VectorStep

NO_FACTORS: Mapping[Tensor, float] = MappingProxyType({})
LOST_UPDATES = (
    "the angular update is below what low-precision weights resolve, so rounding loses much of it: "
    "pass stochastic_rounding=True, or keep the weights in float32"
)


class Task(NamedTuple):
    """A parameter with all that its step needs. `update` is its gradient, or a Δ made by another optimizer."""

    p: Tensor
    update: Tensor
    state: dict[str, Any]
    group: Group


@dataclass
class StepCache:
    """Scratch memory that an optimizer keeps from step to step, and whether it has warned."""

    scratch: Scratch = field(default_factory=Scratch)
    has_warned: bool = False


@dataclass
class Batch:
    """Items that `run` takes together."""

    run: Callable[[list[Any]], None]
    items: list[Any] = field(default_factory=list)
    num_entries: int = 0


def take_step(
    tasks: list[Task],
    step_for: Callable[[Group, int, Vectors], Step],
    step_cache: StepCache,
    count: str = "step",
    angle_factors: Mapping[Tensor, float] = NO_FACTORS,
) -> None:
    """Take one step of all tasks. `count` names the counter in their states, which includes this step.

    `step_for(group, t, vectors)` describes the step, and is called once for tensors that share all three. A factor in
    `angle_factors` multiplies the parameter's angle.
    """
    preparation = Preparation(step_cache.scratch)
    steps: dict[Hashable, tuple[Vectors, Step]] = {}
    for place, task in enumerate(tasks):
        p = task.p
        group = task.group
        t = int(task.state[count])
        # Groups are compared by identity: they are dicts whose options may change between steps.
        key = (id(group), t, p.shape, p.dtype, p.device)
        if key not in steps:
            lr = group["lr"]
            # torch accepts an lr of one element and any number of dimensions.
            flat = {**group, "lr": lr.reshape(())} if isinstance(lr, Tensor) and lr.dim() else group
            vectors = vectors_for(p, group)
            steps[key] = (vectors, step_for(flat, t, vectors))
        preparation.add(task, place, t, *steps[key], angle_factors.get(p))
    for batch in preparation.batches:
        batch.run(batch.items)
    if preparation.spread:
        run_spread(list(preparation.spread.values()), step_cache.scratch)
    if preparation.loses_updates and not step_cache.has_warned:
        step_cache.has_warned = True
        warnings.warn(LOST_UPDATES, stacklevel=7)  # the user's line, behind torch's wrappers of step


def vectors_for(p: Tensor, group: Group) -> Vectors:
    """Return how the group splits a parameter into vectors."""
    split = (group.get("granularity", "neuron"), group.get("axis", 0), group.get("group_size", 1))
    return _vectors(*split, p.shape, p.dtype, p.device)


# Needed at every step of a tensor, and always the same.
@cache
def _vectors(
    granularity: Any, axis: Axis, group_size: int, shape: torch.Size, dtype: torch.dtype, device: torch.device
) -> Vectors:
    split = Split(granularity, axis, group_size)
    rotates = split.rotates(shape)
    return Vectors(split, rotates, split.fan_in(shape) if rotates else 1, shape, dtype, device)


@final
class Preparation:
    """The batches of one step, filled tensor by tensor."""

    def __init__(self, scratch: Scratch) -> None:
        self.batches: list[Batch] = []
        self.spread: dict[Hashable, tuple[VectorStep, list[Piece]]] = {}
        self.loses_updates = False
        self._scratch = scratch
        self._open: dict[Hashable, Batch] = {}
        # Small inputs that programs of this step share.
        self._inputs: dict[Hashable, Tensor] = {}
        self._generators: dict[torch.device, torch.Generator] = {}

    def add(
        self, task: Task, place: int, t: int, vectors: Vectors, step: Step, angle_factor: float | None = None
    ) -> None:
        """Prepare a tensor at its t-th step. `place` counts the tensors of the step."""
        tensors = _entries(task, step)
        if isinstance(step, PlainStep):
            kind, run = plain_runner(step, tensors)
            # Tensors of one kind and dtypes share a batch. Without a kind a tensor is alone.
            key = kind and (kind, step.key, tensors[0].device, *[x.dtype for x in tensors])
            self._put(key, partial(run, step, self._scratch), tensors, tensors[0])
            return
        self._add_vectors(task, place, t, vectors, step, tensors, angle_factor)

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
        w = tensors[0]
        split = vectors.split
        across = None
        for name, first in step.rows.items():
            if name not in state:
                state[name] = new_row(p, split, first, place)
        rows = [state[name] for name in step.rows]
        # DTensors are recognised by an attribute, because importing their class takes a second.
        if hasattr(p, "placements"):
            rows = list(map(local, rows))
            across = across_processes(p, split)
            split = split if across is None else across.split
        if across is None and w.numel() == 0:  # an empty shard has nothing to rotate, and no process waits for it
            return
        if angle_factor is not None:
            # A value per vector, not one of the numbers: tensors with other factors are decided together.
            rows.append(torch.full_like(rows[0], angle_factor))
        is_noisy = self._is_noisy(w, step, group)
        if is_noisy:
            tensors.append(self._rounding_noise(w, t, place))
        may_compile = bool(group["compile"]) and across is None
        has_program = may_compile and is_compiled(group["compile"], w) and _laid_out(task, step, tensors)
        if isinstance(split.axis, tuple):  # the axes are one in memory, but a gradient may have any layout
            tensors[1] = laid_out_like(tensors[1], w)
        views = split.rows(*tensors)
        if has_program:
            views = merged(views)
        noise = views.pop() if is_noisy else None
        whole = Piece(views, rows, vectors.fan_in, at_least_float32(w.dtype), across, noise)
        # Vectors with one key are decided together. The number of rows shows whether angles have factors.
        key = None if has_program else (step.key, step.numbers, len(rows), w.dtype, w.device, is_noisy)
        if across is not None:
            self.spread.setdefault(key, (step, []))[1].append(whole)
            return
        for piece in [whole] if w.numel() <= memory.PIECE else whole.cut():
            run = self._compiled(step, piece) if has_program else partial(run_vectors, step, self._scratch)
            self._put(key, run, piece, piece.entries[0], is_noisy)

    def _is_noisy(self, w: Tensor, step: VectorStep, group: Group) -> bool:
        angle = step.angle
        # Weights of 4 bytes and more resolve every angle of training.
        if angle is None or w.dtype.itemsize >= 4:
            return False
        is_noisy: bool = group["stochastic_rounding"]
        # Reading an angle on a device would wait for it.
        if not is_noisy and not (isinstance(angle, Tensor) and angle.device.type != "cpu"):
            # Rounding to nearest keeps a mean rotation down to about 1.28 spacings of the dtype.
            self.loses_updates |= bool(0 < angle < 1.28 * torch.finfo(w.dtype).eps)
        return is_noisy

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

    def _compiled(self, step: VectorStep, piece: Piece) -> Callable[[list[Piece]], None]:
        """Return how a piece takes its step by a program, which is compiled if its kind has none."""
        w = piece.entries[0]
        numbers = self._input((step.numbers, w.device), partial(packed, step.numbers, w.device))
        ones = self._input((len(w), piece.dtype, w.device), partial(w.new_ones, len(w), dtype=piece.dtype))
        rows = [*piece.rows, ones]
        entries = piece.entries if piece.noise is None else [*piece.entries, piece.noise]
        # Only for its dtype and layout: the program gets scratch memory when it runs.
        scratch = [self._scratch.like(w, piece.dtype)] if step.keeps_update else []
        function = partial(programs.vector_rows, step)
        program = program_for(step.key, function, [*entries, *scratch], rows, numbers, step.keeps_update)
        return partial(run_program, step, self._scratch, program, entries, [*rows, numbers])

    def _input(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """Return a small tensor that is an input of many programs of this step."""
        if key not in self._inputs:
            self._inputs[key] = make()
        return self._inputs[key]

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
    p = task.p
    tensors = [p.detach(), cut_like(task.update, p) if hasattr(p, "placements") else task.update]
    for name in step.moments:
        if name not in task.state:
            task.state[name] = new_moment(p, step.stacked)
        # += would first try to add tensors, and fail slowly.
        tensors.extend(local(task.state[name]) if step.stacked else [task.state[name]])
    return [local(x) for x in tensors] if hasattr(p, "placements") else tensors


def _laid_out(task: Task, step: VectorStep, tensors: list[Tensor]) -> bool:
    """Give all tensors the weight's layout, as a program needs, and return whether that is possible."""
    alike = [laid_out_like(x, tensors[0]) for x in tensors]
    moments = zip(step.moments, alike[2:], tensors[2:], strict=False)
    changed = {name: new for name, new, old in moments if new is not old}
    # A DTensor in the state cannot be replaced by its local part: such a tensor steps eagerly.
    if changed and hasattr(task.p, "placements"):
        return False
    # Gradients are copied at each step. Moments, which the step writes, get the weights' layout for good.
    task.state.update(changed)
    tensors[:] = alike
    return True


def new_moment(p: Tensor, stacked: int) -> Tensor:
    """Return a moment before the first step, in the parameter's memory layout, and float32 or better.

    In float16 the square of a gradient above 255 is infinite, and of one below 2e-4 it is 0.
    """
    zeros = torch.zeros_like(p, dtype=at_least_float32(p.dtype))
    if not stacked:
        return zeros
    if hasattr(p, "placements"):
        return torch.stack([zeros] * stacked)
    return torch.zeros_like(zeros.expand(stacked, *p.shape))


def new_row(p: Tensor, split: Split, first: FirstValue, place: int) -> Tensor:
    """Return a value per vector before the first step: float32 or better, and sharded as the vectors are."""
    num_vectors = split.num_vectors(p.shape)
    dtype = at_least_float32(p.dtype)
    values = first(num_vectors, place).to(dtype) if callable(first) else torch.zeros(num_vectors, dtype=dtype) + first
    return row_like(p, split, values)
