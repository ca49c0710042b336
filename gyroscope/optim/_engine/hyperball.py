"""Hyperball's step as published, for the loop: whole matrices take steps of a fixed relative length at a fixed norm."""

import warnings
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor

from gyroscope.geometry import Split
from gyroscope.optim import formulas
from gyroscope.optim._engine.rotation import imbalance_row, norm_slack
from gyroscope.optim._engine.steps import FirstValue, Group, Vectors, VectorStep
from gyroscope.optim.formulas import Change, Number, column


def hyperball(group: Group, decay: Number, vectors: Vectors) -> VectorStep:
    """Return the step W ← R·n(W - lr·R·n(u)) of the Δ = -u that another optimizer has made.

    `decay` is that of the plain step, which a zero matrix takes.
    """
    lr = group["lr"]
    slack = norm_slack(vectors.dtype)
    rows: dict[str, FirstValue] = {"radius": -1.0, **imbalance_row(group)}
    return VectorStep(
        moments=(),
        rows=rows,
        numbers=(lr, decay),
        key=(keep_norm, slack),
        measure=_three_sums,
        decide=partial(keep_norm, slack=slack),
        move=_move,
        angle=lr,
    )


def is_published_hyperball(group: Group) -> bool:
    """Return whether the group takes this step, rather than Layca's or that of an equilibrium."""
    return bool(group["mode"] == "hyperball" and not group["tangent"])


def matrix_options(group: Group) -> Group:
    """Return the split into whole matrices of a group whose split was not chosen by hand.

    `param_groups` writes one vector per neuron, with names. Axes (0, 1) are those of experts: one matrix per expert.
    """
    if not any(option in group for option in asdict(Split())):
        return asdict(Split("tensor"))
    split = Split.of(group)
    if split.granularity != "neuron" or "param_names" not in group:
        return {}
    stacked = split.axis[:-1] if isinstance(split.axis, tuple) else ()
    return asdict(Split(axis=stacked[0] if len(stacked) == 1 else stacked) if stacked else Split("tensor"))


def warn_of_zero_matrices(weights: Sequence[Tensor]) -> None:
    """Warn if weights are zero, such as projections that start at zero."""
    zeros = [tuple(p.shape) for p in weights if p.numel() and not p.is_meta and not p.detach().any()]
    if zeros:
        warnings.warn(
            f"{len(zeros)} of {len(weights)} weights are zero (the first has shape {zeros[0]}), and hyperball has no "
            "norm to keep: they take the inner optimizer's plain step until they are not zero, and keep that norm",
            stacklevel=2,
        )


def keep_norm(
    sums: Sequence[Tensor], rows: Sequence[Tensor], fan_in: Number, numbers: Sequence[Number], *, slack: float
) -> Change:
    """Return A and B of  W ← A·W + B·Δ  from ⟨W,W⟩, ⟨W,Δ⟩ and ⟨Δ,Δ⟩ of each matrix.

        W ← R·n(W + lr·R·n(Δ)),  n(x) = x/‖x‖     (Hyperball, docs/theory.md)

    `rows` are the radius R, not positive before it is known, and factors of lr if there are any. R is the first norm
    above 0. If a norm differs from it by more than `slack`, something else has set the weights, and R is read again.
    Until there is a radius, W takes the plain step. Without an update, or at lr = 0, it stays.
    """
    ww, wu, uu = sums
    lr, decay = numbers
    radius, *factors = rows
    none = torch.zeros_like(ww)
    length = none + lr
    for factor in factors:
        length = length * factor
    norm = ww.sqrt()
    R = torch.where((norm - radius).abs() > slack * radius, norm, radius)
    rate = length * R * uu.rsqrt()
    size = R * (ww + 2 * rate * wu + rate * rate * uu).rsqrt()
    # Not uu > 0, so that an update that is not a number shows in the weights.
    moves = (length > 0) & (uu != 0)
    has_radius = R > 0
    A = torch.where(moves, size, none + 1)
    B = torch.where(moves, size * rate, none)
    A = torch.where(has_radius, A, none + (1 - decay))
    B = torch.where(has_radius, B, none + lr)
    return Change((A, B), (R,))


def _three_sums(
    entries: Sequence[Tensor],
    rows: Sequence[Tensor],
    u: Tensor,
    product: Tensor | None,
    numbers: Sequence[Number],
) -> tuple[Tensor, ...]:
    """Return ⟨W,W⟩, ⟨W,Δ⟩ and ⟨Δ,Δ⟩. `product` is scratch memory for eager execution."""
    w = entries[0].to(u.dtype)
    dims = tuple(range(1, u.dim()))
    if product is None:  # a program reads all three in one loop
        return (w * w).sum(dims), (w * u).sum(dims), (u * u).sum(dims)
    # A norm is one pass over memory, a summed product would be two.
    ww = torch.linalg.vector_norm(w, dim=dims).square_()
    uu = torch.linalg.vector_norm(u, dim=dims).square_()
    return ww, torch.mul(w, u, out=product).sum(dims), uu


def _move(entries: Sequence[Tensor], u: Tensor, coefficients: Sequence[Tensor], noise: Tensor | None = None) -> None:
    """Compute W ← A·W + B·Δ for the first of the entries. Δ may be overwritten."""
    A, B = coefficients
    w = entries[0]
    if w.dtype == u.dtype:
        w.mul_(column(A, u)).addcmul_(u, column(B, u))
    else:
        formulas.move_(entries, u, (A, B, torch.zeros_like(A)), noise)
