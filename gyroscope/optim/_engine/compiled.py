"""Compiled steps: the only file that uses torch's compiler (docs/decisions/0002-compiled-steps.md).

A program has three forms, each with one warning if it fails: Inductor's interface, which is internal to torch and may
change, then the public `torch.compile`, then the eager function. All give the same numbers.
"""

import types
import warnings
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Literal, cast, final

import torch
from torch import Tensor

from gyroscope.optim._engine.memory import is_dense

# (tensors with an entry per weight, tensors with a value per vector, numbers), changed in place.
Function = Callable[[list[Tensor], list[Tensor], Tensor], Sequence[Tensor]]
# Takes [*entries, *rows, numbers], and may empty the list.
Program = Callable[[list[Tensor]], Sequence[Tensor]]

# "auto" compiles where it pays.
Compile = bool | Literal["auto"]
# All programs compiled in this process.
PROGRAMS: dict[tuple[object, ...], "SafeProgram"] = {}
# Programs count entries with 32-bit integers.
MAX_ENTRIES = 2**31
# Entries from which compile="auto" makes a program on a CPU. Smaller tensors share eager operations.
AUTO_ENTRIES = 2**16
# Sizes of the tensors on which a step is captured: large, so that loops run on several threads, and different primes,
# so that no size or product of sizes is taken for another.
MATRIX = (1031, 2053)
ROW = (1, 1_000_003, 13, 11, 7, 5, 3)
TENSOR = (1031, 67, 13, 11, 7, 5, 3)

# What was warned of, by the form that failed.
FALLBACKS: dict[str, str] = {}


def program_for(
    key: tuple[object, ...], function: Function, entries: list[Tensor], rows: list[Tensor], numbers: Tensor
) -> Program:
    """Return `function` compiled for tensors of this kind and any size. `key` lists what else it depends on.

    The entries have one shape and one layout (`merged`).
    """
    dtypes = [x.dtype for x in (*entries, *rows)]
    kind = (key, len(entries), numbers.numel(), entries[0].device, *dtypes, *_layout(entries[0]))
    program = PROGRAMS.get(kind)
    if program is None:
        program = PROGRAMS[kind] = SafeProgram(function, entries, rows, numbers)
    return program


def is_compiled(compile: Compile, w: Tensor) -> bool:
    """Return whether a program takes the step of this weight, as the option `compile` says.

    The weight must be dense in memory, with entries, and not too many.
    """
    if not compile or (compile == "auto" and not pays(w)):
        return False
    return 0 < w.numel() < MAX_ENTRIES and (w.is_contiguous() or is_dense(w))


def pays(w: Tensor) -> bool:
    """Return whether a program is faster than eager operations: on CUDA, and for large tensors on a CPU."""
    return w.device.type == "cuda" or (w.device.type == "cpu" and w.numel() >= AUTO_ENTRIES)


def check_compile(compile: object) -> None:
    """Raise for a value that the option does not have."""
    if compile not in (True, False, "auto"):
        raise ValueError(f"compile={compile!r} is unknown: choose True, False or 'auto' (where it pays)")


def merged(views: list[Tensor]) -> list[Tensor]:
    """Return views of one shape and layout with as few dimensions as possible. Dimension 0, the vectors, stays.

    Each number of dimensions and order of strides needs its own program, so fewer of them are compiled.
    """
    first = views[0]
    if first.dim() == 2:
        return views
    sizes = [first.shape[0]]
    strides = [first.stride(0)]
    for size, stride in zip(first.shape[1:], first.stride()[1:], strict=True):
        if size == 1:
            continue
        if len(sizes) > 1 and strides[-1] == stride * size:
            sizes[-1] *= size
            strides[-1] = stride
        else:
            sizes.append(size)
            strides.append(stride)
    return [x.as_strided(sizes, strides) for x in views]


def packed(values: Sequence[Any], device: torch.device) -> Tensor:
    """Return numbers as one float64 tensor on the device: one input of a program instead of many."""
    if any(isinstance(value, Tensor) and value.device.type != "cpu" for value in values):
        return torch.stack([torch.as_tensor(value, dtype=torch.float64, device=device) for value in values])
    return torch.tensor([float(value) for value in values], dtype=torch.float64).to(device, non_blocking=True)


@final
class SafeProgram:
    """A program in the first of three forms that works: Inductor, torch.compile, or eager."""

    def __init__(self, function: Function, entries: list[Tensor], rows: list[Tensor], numbers: Tensor) -> None:
        count = len(entries)

        def flat(*tensors: Tensor) -> Sequence[Tensor]:
            return function(list(tensors[:count]), list(tensors[count:-1]), tensors[-1])

        self.form = "inductor"
        self._flat = flat
        self._has_run = False
        self._program: Callable[..., Sequence[Tensor]]
        try:
            self._program = _by_inductor(flat, _examples(entries, rows, numbers), count)
        except Exception as error:  # a compiler may raise anything, and training must go on
            self._fall_back(error)

    def __call__(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        """Take the step of [*entries, *rows, numbers]."""
        if self.form == "inductor":
            try:
                return self._program(list(tensors))
            except AssertionError as error:
                # A program checks sizes and strides before it writes anything.
                self._fall_back(error)
        if self.form == "torch.compile":
            try:
                outputs = self._program(*tensors)
            except Exception as error:
                # The first call compiles before it writes. Later ones may fail in the middle of the step.
                if self._has_run or isinstance(error, torch.OutOfMemoryError):
                    raise
                self._fall_back(error)
            else:
                self._has_run = True
                return outputs
        return self._flat(*tensors)

    def _fall_back(self, error: Exception) -> None:
        """Use the next form, with one warning per process."""
        failed = self.form
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
        if failed == "inductor":
            self.form = "torch.compile"
            self._program = _by_torch_compile(self._flat)
            remedy = "torch.compile is used instead, which takes longer for small tensors"
        else:
            self.form = "eager"
            remedy = "steps are taken eagerly instead. Pass compile=False to do so without this warning"
        if failed not in FALLBACKS:
            FALLBACKS[failed] = (
                f"compile: {failed} of torch {torch.__version__} cannot make a program ({reason}): {remedy}"
            )
            warnings.warn(FALLBACKS[failed], stacklevel=2)


def _by_torch_compile(flat: Callable[..., Sequence[Tensor]]) -> Callable[..., Sequence[Tensor]]:
    """Return the function by torch's public compiler, which compiles at the first call."""
    # Dynamo counts recompilations per code object and gives up after a few, so each kind of tensor has a copy.
    inner = cast(types.FunctionType, flat)
    copy = types.FunctionType(inner.__code__.replace(), inner.__globals__, inner.__name__, None, inner.__closure__)
    # Symbolic sizes as in `_by_inductor`. A graph break could fail in the middle of the step.
    return torch.compile(copy, dynamic=True, fullgraph=True)


def _by_inductor(flat: Callable[..., Sequence[Tensor]], examples: list[Tensor], count: int) -> Program:
    """Return the function captured by make_fx on examples and compiled by Inductor, without torch.compile's wrappers.

    Dynamo's guards and AOTAutograd's wrappers take longer than the step of a small tensor. The kind of the program
    contains what they would guard: types, device, order of strides, and which sizes are 1.
    """
    from torch._functorch.config import patch as functorch_config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._inductor.config import patch as inductor_config
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(flat, tracing_mode="symbolic")(*examples)
    fakes = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    _check_symbolic(fakes)
    programs: list[Any] = []

    def remember(module: Any, *args: Any, **options: Any) -> Any:
        _write_early(module.graph, count)
        programs.append(compile_fx_inner(module, *args, **options))
        return programs[-1]

    # Inductor stores what is used twice, in memory of the weights' size, if it takes more reads or operations.
    thresholds = {"realize_reads_threshold": 100, "realize_opcount_threshold": 1000}
    # A cached program would bypass `remember`.
    with functorch_config(enable_autograd_cache=False), inductor_config(thresholds):
        compile_fx(graph, fakes, inner_compile=remember)
    # compile_fx itself returns AOTAutograd's wrapper.
    return cast(Program, programs[-1].current_callable)


def _check_symbolic(fakes: list[Tensor]) -> None:
    """Raise if tracing has fixed a size to the example's, because the program would refuse all others."""
    for x in fakes:
        sizes: list[Any] = list(x.shape)
        fixed = [size for size in sizes if size != 1 and not isinstance(size, torch.SymInt)]
        if fixed and x.dim() > 1:
            raise RuntimeError(f"tracing fixed a size to that of its example: {fixed[0]}")


def _write_early(graph: Any, count: int) -> None:
    """Write moments, which are among the first `count` inputs, where they are computed, and read them there.

    The second half of a step then makes Δ again from moments that are in cache, and Δ is never stored. An input that is
    read for anything else than its new value, such as Lion's moment, is written last.
    """
    for memory in [node for node in graph.nodes if node.op == "placeholder"][:count]:
        # The graph is functional: a write into an input is one copy_ at its end.
        for writing in [user for user in memory.users if user.target is torch.ops.aten.copy_.default]:
            value = writing.args[1]
            if _leads_only_to(memory, {value, writing}):
                value.append(writing)
                value.replace_all_uses_with(writing, delete_user_cb=lambda user, last=writing: user is not last)


def _leads_only_to(node: Any, ends: set[Any]) -> bool:
    """Return whether every path through users of a node ends at one of `ends`."""
    return all(user in ends or (user.users and _leads_only_to(user, ends)) for user in node.users)


def _layout(x: Tensor) -> tuple[object, ...]:
    """Return what a program depends on: which sizes are 1, and the order of strides (None: contiguous)."""
    ones = tuple(size == 1 for size in x.shape)
    return ones, None if x.is_contiguous() else _order(x)


def _order(x: Tensor) -> tuple[int, ...]:
    """Return the dimensions from the largest stride to the smallest."""
    return tuple(sorted(range(x.dim()), key=lambda dim: (x.stride(dim), x.shape[dim]), reverse=True))


def _examples(entries: list[Tensor], rows: list[Tensor], numbers: Tensor) -> list[Tensor]:
    """Return other tensors of the same kind, on which a step is captured.

    They are not views: tracing compares the sizes of a view and its base, and thereby fixes them.
    """
    first = entries[0]
    large = ROW if first.shape[0] == 1 else MATRIX if first.dim() == 2 else TENSOR
    sizes = [1 if size == 1 else other for size, other in zip(first.shape, large, strict=False)]
    order = range(first.dim()) if first.is_contiguous() else _order(first)
    strides = [0] * first.dim()
    for place, dim in enumerate(order):
        strides[dim] = prod(sizes[inner] for inner in list(order)[place + 1 :])
    made = [torch.empty_strided(sizes, strides, dtype=x.dtype, device=x.device) for x in entries]
    return [*made, *(row.new_empty(sizes[0]) for row in rows), numbers.clone()]
