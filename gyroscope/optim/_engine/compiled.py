"""Compiled steps: programs for kinds of tensors, and numbers that may change without a new program."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from gyroscope.optim.formulas import Turning, column, move_, sums, turn

Function = Callable[[list[Tensor], list[Tensor], Tensor], Sequence[Tensor]]
"""Of tensors with an entry per weight, tensors with a value per vector, and numbers; it changes them in place."""

Program = Callable[[list[Tensor]], Sequence[Tensor]]

PROGRAMS: dict[tuple[object, ...], Program] = {}
"""What was compiled so far in this process."""
MATRIX, ROW, TENSOR = (1031, 2053), (1, 1_000_003, 13, 11, 7, 5, 3), (1031, 67, 13, 11, 7, 5, 3)
"""Sizes of the tensors on which a step is captured: large, so that loops are spread over threads, and all different."""
LARGEST = 2**31
"""Entries from which a tensor is beyond the numbers with which a program may count them."""


def program_for(
    key: tuple[object, ...],
    function: Function,
    entries: list[Tensor],
    rows: list[Tensor],
    numbers: Tensor,
    scratch: bool = False,
) -> Program:
    """`function` compiled for tensors of this kind: sizes stay free. `key` names what else it depends on.

    It is captured by make_fx on other tensors of the same kind and goes to Inductor, whose program is called without
    what Dynamo and AOTAutograd put around it: that costs more time than the step of a small tensor. What Dynamo would
    guard is in the kind: types, device, the order of strides, and which sizes are 1.
    A program takes one list, [*entries, *rows, numbers], and empties it. With `scratch` the last of the entries is
    memory to work in: left to itself, a program would ask the system for new pages at each call.
    """
    kind = (key, scratch, numbers.numel(), entries[0].device, *map(_kind, entries), *[row.dtype for row in rows])
    program = PROGRAMS.get(kind)
    if program is None:
        program = PROGRAMS[kind] = _compiled(function, entries, rows, numbers, scratch)
    return program


def can_run(w: Tensor) -> bool:
    """Whether a program may take this weight: it has entries, and not too many."""
    return 0 < w.numel() < LARGEST


def _kind(x: Tensor) -> tuple[object, ...]:
    ones = [size == 1 for size in x.shape] if 1 in x.shape else []
    return x.dtype, x.dim(), *ones, None if x.is_contiguous() else _order(x)


def _order(x: Tensor) -> tuple[int, ...]:
    """Dimensions from the largest stride to the smallest; empty where memory between entries is not theirs."""
    order = sorted(range(x.dim()), key=lambda dim: (x.stride(dim), x.shape[dim]), reverse=True)
    dense = all(
        x.stride(dim) == prod(x.shape[inner] for inner in order[place + 1 :])
        for place, dim in enumerate(order)
        if x.shape[dim] > 1
    )
    return tuple(order) if dense else ()


def _example(x: Tensor) -> Tensor:
    """Another tensor of x's kind."""
    large = ROW if x.shape[0] == 1 else MATRIX if x.dim() == 2 else TENSOR
    sizes = [1 if size == 1 else other for size, other in zip(x.shape, large, strict=False)]
    if x.is_contiguous():
        return x.new_empty(sizes)
    order = _order(x)
    if not order:
        return x.new_empty([2 * size for size in sizes])[tuple(slice(0, 2 * size, 2) for size in sizes)]
    made = x.new_empty([sizes[dim] for dim in order])
    return made.permute([order.index(dim) for dim in range(x.dim())])


def _compiled(function: Function, entries: list[Tensor], rows: list[Tensor], numbers: Tensor, scratch: bool) -> Program:
    from torch._functorch.config import patch
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    count, like = len(entries), [_example(x) for x in entries]
    examples = [*like, *(row.new_empty(like[0].shape[0]) for row in rows), numbers.clone()]

    def flat(*tensors: Tensor) -> Sequence[Tensor]:
        return function(list(tensors[:count]), list(tensors[count:-1]), tensors[-1])

    graph = make_fx(flat, tracing_mode="symbolic")(*examples)
    fake = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    programs: list[Any] = []

    def remembered(module: Any, *args: Any, **options: Any) -> Any:
        if scratch:
            _write_early(module.graph, len(entries) - 1)
        programs.append(compile_fx_inner(module, *args, **options))
        return programs[-1]

    with patch(enable_autograd_cache=False):  # from that cache it would not come by `remembered`
        compile_fx(graph, fake, inner_compile=remembered)
    return cast(Program, programs[0].current_callable)


def _write_early(graph: Any, scratch: int) -> None:
    """Let what is written into an input at the end stand there as soon as it is known, and be read there."""
    memory = [node for node in graph.nodes if node.op == "placeholder"][scratch]
    (writing,) = (user for user in memory.users if user.target is torch.ops.aten.copy_.default)
    value = writing.args[1]
    value.append(writing)
    value.replace_all_uses_with(writing, delete_user_cb=lambda user: user is not writing)


def packed(values: Sequence[Any], device: torch.device) -> Tensor:
    """Numbers as one float64 tensor on the device: one input of a program instead of many."""
    if any(isinstance(value, Tensor) and value.device.type != "cpu" for value in values):
        return torch.stack([torch.as_tensor(value, dtype=torch.float64, device=device) for value in values])
    return torch.tensor([float(value) for value in values], dtype=torch.float64).to(device, non_blocking=True)


def rotate_rows(
    entries: list[Tensor],
    rows: list[Tensor],
    numbers: Tensor,
    *,
    direction: Callable[..., None],
    names: tuple[str, ...],
    flags: Mapping[str, bool],
    l2: bool,
    moments: int,
    scratch: bool,
    centre: bool,
    slack: float,
) -> tuple[Tensor, ...]:
    """A rotational step on rows, one program: moves weight and moments, and brings the row state up to date.

    `entries` are weight, gradient, moments and noise if there is any; `rows` radius, average of ‖Δ⊥‖², factors of the
    angle if imbalanced, and ones; `numbers` the seven of `Turning`, then the direction's by name. `l2`: the direction
    wants the weight, and as last number the L2 of what takes the plain step. `scratch`: the last entry is memory for Δ.
    """
    (w, grad, *others), (radius, update_sq, *imbalance, ones) = entries, rows
    u = others.pop() if scratch else torch.empty_like(w, dtype=radius.dtype)
    values, noise = numbers.unbind(0), others[moments:]
    by, knobs = Turning(*values[:7]), {**flags, **dict(zip(names, values[7:], strict=False))}
    if imbalance:
        by = by._replace(angle=by.angle * imbalance[0])
    if l2:
        knobs |= {"w": w, "l2": column(values[-1] * (radius == 0), w).to(radius.dtype)}
    # A factor per vector keeps Inductor's loops nested, vectors over entries: moments, Δ and sums make one loop.
    direction(grad * column(ones, w), u, *others[:moments], **knobs)
    turned = turn(sums(w, u), one_by_one(radius), update_sq, by, fan_in=prod(w.shape[1:]), centre=centre, slack=slack)
    move_(w, u.clone(), *turned[:3], noise[0] if noise else None)  # Inductor copies nothing for the clone
    radius.copy_(turned.radius)
    update_sq.copy_(turned.update_sq)
    return tuple(turned[:3])  # outputs, so that Inductor makes them once per vector and not once per entry


def one_by_one(values: Tensor) -> Tensor:
    """The values, none of them -2 or below, by way of a type that Inductor does not vectorise on a CPU.

    What is computed per vector then runs one vector at a time, like the loops over its entries before and after it, and
    the three become one loop: a vector's entries are in cache when they are moved.
    """
    if values.device.type != "cpu":
        return values
    return values * (values > -2).to(torch.uint16).to(values.dtype)
