"""One step on the sphere of one tensor: views, state, compiled functions and shards around `spherical_step.py`."""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from gyroscope._checks import check_betas, check_non_negative
from gyroscope.geometry import Split, at_least_float32
from gyroscope.optim._engine.base import Group, State
from gyroscope.optim._engine.compiled import can_run, one_by_one, packed, program_for
from gyroscope.optim._engine.shards import across_processes, local
from gyroscope.optim._engine.workspace import Own, Workspace, in_cache
from gyroscope.optim.formulas import Number, adam_knobs, adamw, fused_adam_, plain_
from gyroscope.optim.sphere_formulas import Adam, AdamNumbers, Change, combine_, divide_, inner_products

Rule = Callable[..., Change]


def check_adam(group: Group) -> None:
    """Raise for options that Adam cannot use."""
    check_betas(group["betas"])
    check_non_negative("eps", group["eps"])


def adam_numbers(group: Group, state: State, space: Workspace) -> tuple[Split, AdamNumbers]:
    """The group's split, and Adam's options of the moment with the bias corrections of this step."""
    (beta1, beta2), t = group["betas"], int(state["step"])

    def make() -> tuple[Split, AdamNumbers]:
        rest = (group["lr"], group["weight_decay"], beta1, beta2, 1 - beta1**t, 1 - beta2**t, group["eps"])
        return Split.of(group), AdamNumbers(*rest)

    return cast(tuple[Split, AdamNumbers], space.once((id(group), t), make))


def plain_adam_(p: Tensor, grad: Tensor, state: State, by: AdamNumbers, space: Workspace) -> None:
    """Adam's own step, L2 in the gradient, of a tensor that does not turn."""
    moments = per_entry(state, "exp_avg", p), per_entry(state, "exp_avg_sq", p, at_least_float32(p.dtype))
    own = space.once(("own", by), lambda: _own(by, space))
    space.act(own, [local(x) for x in (p.detach(), grad, *moments)])


def _own(by: AdamNumbers, space: Workspace) -> Own:
    knobs = adam_knobs(by.beta1, by.beta2, by.correction1, by.correction2, by.eps)

    def step(tensors: list[Tensor]) -> None:
        w, grad, m, v = tensors
        u = space.like(w)
        adamw(grad + by.l2 * w, u, m, v, **knobs)
        plain_(w, u, by.lr, 0.0)

    known = not any(isinstance(number, Tensor) for number in by)
    return Own(step, partial(fused_adam_, **knobs, lr=by.lr, l2=by.l2) if known else None)


def per_entry(state: State, name: str, p: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor like the parameter in its state, zeros at first."""
    if name not in state:
        state[name] = torch.zeros_like(p, dtype=dtype)
    return cast(Tensor, state[name])


def per_vector(state: State, name: str, p: Tensor, split: Split, first: Number = 0.0) -> Tensor:
    """A value per vector in a parameter's state: float32 or better, and spread over processes as the vectors are."""
    if name not in state:
        dtype = at_least_float32(p.dtype)
        like = split.sum(p) if hasattr(p, "placements") else p.new_empty(split.num_vectors(p.shape))
        state[name] = torch.zeros_like(like, dtype=dtype).add_(first)
    return cast(Tensor, state[name])


def advance_(
    p: Tensor,
    grad: Tensor,
    m: Tensor,
    rows: list[Tensor],
    rule: Rule,
    by: Any,
    split: Split,
    space: Workspace,
    *,
    compile: bool,
    **options: Any,
) -> None:
    """One step of a tensor that turns: `rule(products, *rows, by, **options)` says what becomes of each vector."""
    across = across_processes(p, split)
    w, g, m = (split if across is None else across.split).rows(*map(local, (p, grad, m)))
    rows, on_cpu = [local(row) for row in rows], w.device.type == "cpu"
    if compile and across is None and can_run(w):
        numbers = space.once((by, w.device), lambda: packed(by, w.device))
        key = (rule, type(by), on_cpu, *options.items())
        step = partial(_advance, rule, type(by), options, not on_cpu)
        program = program_for(key, step, [w, g, m], rows, numbers)
        act = partial(program, [w, g, m, *rows, numbers])
        space.later(partial(_then_divide, act, w, g, by.eps) if on_cpu and isinstance(by, AdamNumbers) else act)
        return
    parts = in_cache(w)
    found = torch.cat([torch.stack(inner_products(w[part], g[part], m[part])) for part in parts], -1)
    found = found if across is None else across.summed(found)
    change = rule(found.unbind(0), *rows, _sized(by, split.fan_in(p.shape)), **options)
    here = change if across is None else change.at(across.mine)
    for part in parts:
        combine_(w[part], g[part], m[part], here.at(part), divide=not on_cpu)
    if on_cpu and here.adam is not None:
        divide_(w, g, here.adam)
    for row, new in zip(rows, change.state, strict=True):
        row.copy_(new)


def _advance(
    rule: Rule,
    kind: type,
    options: dict[str, Any],
    divide: bool,
    entries: list[Tensor],
    rows: list[Tensor],
    numbers: Tensor,
) -> list[Tensor]:
    w, g, m = entries
    ww, *others = inner_products(w, g, m)
    by = _sized(kind(*numbers.unbind(0)), prod(w.shape[1:]))
    change = rule((one_by_one(ww), *others), *rows, by, **options)
    combine_(w, g, m, change, divide)
    for row, new in zip(rows, change.state, strict=True):
        row.copy_(new)
    # The coefficients are of no use outside, but an output is made once per vector and not once per entry.
    adam = [] if change.adam is None else [change.adam.prior, change.adam.share]
    return adam + [c for c in change.coefficients if isinstance(c, Tensor) and c.dim()]


def _then_divide(act: Callable[[], Sequence[Tensor]], w: Tensor, g: Tensor, eps: Number) -> None:
    prior, share, *_ = act()
    divide_(w, g, Adam(prior, share, eps))


def _sized(by: Any, fan_in: int) -> Any:
    return by._replace(fan_in=fan_in) if isinstance(by, AdamNumbers) else by
