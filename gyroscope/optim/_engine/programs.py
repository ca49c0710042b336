"""Steps in the form in which they are compiled: functions of entries, values per vector and packed numbers.

They call the formulas of the eager steps. Their additions let Inductor (torch's compiler) generate one loop: a step of
a large tensor takes as long as its memory traffic, and each further loop reads the tensor once more.
"""

from math import prod

import torch
from torch import Tensor

from gyroscope.geometry import at_least_float32
from gyroscope.optim._engine.steps import Step, Turn
from gyroscope.optim.formulas import column, is_per_vector


def entries_one_by_one(step: Step, entries: list[Tensor], rows: list[Tensor], numbers: Tensor) -> list[Tensor]:
    """Take a step entry by entry. `numbers` are lr, decay and those of the direction."""
    lr, decay, *values = numbers.unbind(0)
    w = entries[0]
    u = torch.empty_like(w, dtype=at_least_float32(w.dtype))
    assert step.direction is not None
    step.direction(entries, u, **dict(zip(step.numbers, values, strict=True)))
    step.descend(w, u, lr, decay)
    return []


def vector_rows(step: Step, turn: Turn, entries: list[Tensor], rows: list[Tensor], numbers: Tensor) -> list[Tensor]:
    """Take a step of whole vectors, and return the coefficients per vector.

    Inductor computes an output once per vector instead of once per entry. `entries` are weight, gradient, moments
    and noise if any. `rows` are the values per vector, and ones. `turn.numbers` are not used, because the present ones
    are an input.
    """
    *state, ones = rows
    values = numbers.unbind(0)
    w, grad = entries[:2]
    # Slices, not pop: in Dynamo of torch 2.8 a starred target is a tuple.
    end = 2 + len(step.moments)
    moments = entries[2:end]
    noise = entries[end] if len(entries) > end else None
    nested = _nested(grad, ones)
    dtype = at_least_float32(w.dtype)
    u = torch.empty_like(w, dtype=dtype) if step.direction is not None else nested.to(dtype)
    measured = turn.measure([w, nested, *moments], state, u, None, values)
    first, *rest = measured
    change = turn.decide([_one_by_one(first), *rest], state, prod(w.shape[1:]), values)
    turn.move([w, grad, *moments], u, change.coefficients, noise)
    for row, new in zip(state, change.rows, strict=False):  # factors of the angle do not change
        row.copy_(new)
    return [c for c in change.coefficients if is_per_vector(c)]


def _nested(grad: Tensor, ones: Tensor) -> Tensor:
    """Return the gradient times 1 per vector, which lets Inductor nest its loops, vectors over entries.

    Without it the moments are one flat loop over all entries and the sums another. With it they are one.
    """
    return grad * column(ones, grad)


def _one_by_one(squares: Tensor) -> Tensor:
    """Return values per vector, 0 or above, via a type that Inductor does not vectorise on a CPU.

    The code per vector then runs one vector at a time, like the loops over its entries before and after it, and all
    three become one loop: a vector's entries are in cache when they are moved.
    """
    if squares.device.type != "cpu":
        return squares
    return squares * (squares >= 0).to(torch.uint16).to(squares.dtype)
