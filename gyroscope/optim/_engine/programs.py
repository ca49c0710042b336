"""The steps in the form in which they are compiled: one function of entries, values per vector and packed numbers.

They call the formulas of the eager steps. What they add helps Inductor (torch's compiler) to make one loop of them:
a step of a large tensor takes as long as its memory traffic, and each further loop reads the tensor once more.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from gyroscope.optim.formulas import Change, Number, TurnNumbers, column, is_per_vector, k_adam_, move_, sums, turn
from gyroscope.optim.sphere_formulas import combine_, divide_, inner_products


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
    """A rotational step on rows: moves weight and moments, and brings the row state up to date.

    entries    weight, gradient, moments, noise if there is any, and with `scratch` memory for Δ
    rows       radius, average of ‖Δ⊥‖², factors of the angle if imbalanced, and ones
    numbers    the seven of `TurnNumbers`, then the direction's by `names`, and with `l2` the L2 of the plain step
    """
    w, grad, *others = entries
    radius, update_sq, *imbalance, ones = rows
    # Not others.pop(): to Dynamo of torch 2.8 what a star takes is a tuple.
    u = others[-1] if scratch else torch.empty_like(w, dtype=radius.dtype)
    noise = others[moments:-1] if scratch else others[moments:]
    values = numbers.unbind(0)
    knobs: dict[str, Any] = {**flags, **dict(zip(names, values[7:], strict=False))}
    if l2:
        knobs |= {"w": w, "l2": column(values[-1] * (radius == 0), w)}
    direction(_nested(grad, ones), u, *others[:moments], **knobs)
    change = turn(
        sums(w, u),
        [_one_by_one(radius), update_sq, *imbalance],
        prod(w.shape[1:]),
        by=TurnNumbers(*values[:7]),
        centre=centre,
        slack=slack,
    )
    # move_ may use Δ up, and the scratch memory must not be written twice; Inductor copies nothing for the clone.
    move_([w], u.clone(), change.coefficients, noise[0] if noise else None)
    radius.copy_(change.rows[0])
    update_sq.copy_(change.rows[1])
    return change.coefficients  # outputs, so that Inductor makes them once per vector and not once per entry


def sphere_rows(
    entries: list[Tensor],
    rows: list[Tensor],
    numbers: Tensor,
    *,
    rule: Callable[..., Change],
    kind: type,
    options: Mapping[str, Any],
    divide: bool,
) -> list[Tensor]:
    """A step on the sphere of weight, gradient and momentum: `numbers` are those of `kind`, in its order.

    Returns the coefficients that are tensors, those of Adam's division first.
    """
    by = kind(*numbers.unbind(0))
    ww, *others = inner_products(entries)
    change = rule((_one_by_one(ww), *others), rows, prod(entries[0].shape[1:]), by=by, **options)
    combine_(entries, None, change.coefficients, eps=getattr(by, "eps", None), divide=divide)
    for row, new in zip(rows, change.rows, strict=True):
        row.copy_(new)
    *coefficients, prior, share = change.coefficients
    return [c for c in (prior, share, *coefficients) if is_per_vector(c)]


def k_adam_rows(tensors: list[Tensor], rows: list[Tensor], numbers: Tensor) -> tuple[Tensor, ...]:
    """k-Adam's step: `numbers` are lr, L2, decay and ε, then three for each stage."""
    values = numbers.unbind(0)
    k_adam_(tensors, list(zip(values[4::3], values[5::3], values[6::3], strict=True)), *values[:4])
    return ()


def divide_by_outputs(eps: Number, entries: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Adam's division after a program of `sphere_rows`, whose first two outputs it takes."""
    divide_(entries[0], entries[1], outputs[0], outputs[1], eps)


def _nested(grad: Tensor, ones: Tensor) -> Tensor:
    """The gradient times a factor of 1 per vector, which keeps Inductor's loops nested, vectors over entries.

    Without it the moments are one flat loop over all entries, and the sums another; with it they make one loop.
    """
    return grad * column(ones, grad)


def _one_by_one(values: Tensor) -> Tensor:
    """The values, none of them -2 or below, by way of a type that Inductor does not vectorise on a CPU.

    What is computed per vector then runs one vector at a time, like the loops over its entries before and after it, and
    the three become one loop: a vector's entries are in cache when they are moved.
    """
    if values.device.type != "cpu":
        return values
    return values * (values > -2).to(torch.uint16).to(values.dtype)
