"""The steps in the form in which they are compiled: one function of entries, values per vector and packed numbers.

They call the formulas of the eager steps. What they add helps Inductor (torch's compiler) to make one loop of them:
a step of a large tensor takes as long as its memory traffic, and each further loop reads the tensor once more.
"""

from math import prod

import torch
from torch import Tensor

from gyroscope.geometry import at_least_float32
from gyroscope.optim._engine.steps import VectorStep
from gyroscope.optim.formulas import column, is_per_vector, k_adam_


def vector_rows(step: VectorStep, entries: list[Tensor], rows: list[Tensor], numbers: Tensor) -> list[Tensor]:
    """A step of whole vectors: moves weight and moments, and brings the row state up to date.

    step       its functions; its numbers are those of the moment at which it was compiled, and come as an input
    entries    weight, gradient, moments, noise if there is any, and memory for Δ if it is kept
    rows       the step's values per vector, and ones

    Returns the coefficients per vector: as outputs, Inductor makes them once per vector and not once per entry.
    """
    *state, ones = rows
    values = numbers.unbind(0)
    w, grad = entries[:2]
    # Slices, not pop: to Dynamo of torch 2.8 what a star takes is a tuple.
    end = 2 + len(step.moments)
    moments = entries[2:end]
    others = entries[end:-1] if step.keeps_update else entries[end:]
    nested = _nested(grad, ones)
    dtype = at_least_float32(w.dtype)
    if step.keeps_update:
        u = entries[-1]
    elif step.makes_update:
        u = torch.empty_like(w, dtype=dtype)
    else:
        u = nested.to(dtype)
    measured = step.measure([w, nested, *moments], state, u, None, values)
    first, *rest = measured
    change = step.decide([_one_by_one(first), *rest], state, prod(w.shape[1:]), values)
    # A move may use Δ up, and the scratch memory must not be written twice; Inductor copies nothing for the clone.
    step.move([w, grad, *moments], u.clone(), change.coefficients, others[0] if others else None)
    for row, new in zip(state, change.rows, strict=False):  # factors of the angle do not change
        row.copy_(new)
    return [c for c in change.coefficients if is_per_vector(c)]


def k_adam_rows(tensors: list[Tensor], rows: list[Tensor], numbers: Tensor) -> tuple[Tensor, ...]:
    """k-Adam's step: `numbers` are lr, L2, decay and ε, then three for each stage."""
    values = numbers.unbind(0)
    k_adam_(tensors, list(zip(values[4::3], values[5::3], values[6::3], strict=True)), *values[:4])
    return ()


def _nested(grad: Tensor, ones: Tensor) -> Tensor:
    """The gradient times a factor of 1 per vector, which keeps Inductor's loops nested, vectors over entries.

    Without it the moments are one flat loop over all entries, and the sums another; with it they make one loop.
    """
    return grad * column(ones, grad)


def _one_by_one(squares: Tensor) -> Tensor:
    """Values per vector, 0 or above, by way of a type that Inductor does not vectorise on a CPU.

    What is computed per vector then runs one vector at a time, like the loops over its entries before and after it, and
    the three become one loop: a vector's entries are in cache when they are moved.
    """
    if squares.device.type != "cpu":
        return squares
    return squares * (squares >= 0).to(torch.uint16).to(squares.dtype)
