"""Norm and direction of a scale-invariant weight in continuous time (CT §4.2), and the exact formulas for comparison.

A step is W ← (1 - lr·λ)·W - lr·u. Norms need ‖u‖² (and, to be exact, ⟨W,u⟩) at every step, measured from a run.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gyroscope.tools import Array, check_count


def norm_equation(update2: ArrayLike, *, lr: ArrayLike, weight_decay: float, norm2: ArrayLike) -> Array:
    """Return ‖W‖² after each step by CT's equation. ‖u‖² is constant during a step. Time is the first axis.

        ‖W(t)‖² = ‖W(0)‖²·e^(-2λt) + η∫e^(-2λ(t-s))‖u(s)‖²ds,  t = η·n     (CT 8)

    It drops ⟨W,u⟩. Under gradient noise momentum points inwards, and the result is too low, at β1 = 0.9 down to a
    nineteenth of the true square (`norm_identity` keeps the term). docs/theory.md, "Errata of the papers".

    >>> norm_equation(np.ones(3), lr=0.1, weight_decay=0.0, norm2=1.0).round(2).tolist()
    [1.01, 1.02, 1.03]
    """
    u2, rate = _over_time(update2, lr)
    # ‖u‖² is constant during a step, so the integral over the step is closed.
    keep = np.exp(-2 * rate * weight_decay)
    gain = rate * (1 - keep) / (2 * weight_decay) if weight_decay else rate**2
    return _recursion(keep, gain * u2, norm2)


def norm_identity(
    update2: ArrayLike, overlap: ArrayLike, *, lr: ArrayLike, weight_decay: float, norm2: ArrayLike
) -> Array:
    """Return the exact ‖W‖² after each step, from ‖u‖² and the `overlap` ⟨W,u⟩ at each step. Time is the first axis.

        ‖W'‖² = (1-a)²‖W‖² - 2(1-a)·lr·⟨W,u⟩ + lr²‖u‖²,  a = lr·λ

    >>> norm_identity([4.0], [1.0], lr=0.5, weight_decay=0.0, norm2=1.0).tolist()
    [1.0]
    """
    u2, rate = _over_time(update2, lr)
    keep = 1 - rate * weight_decay
    return _recursion(keep**2, rate**2 * u2 - 2 * keep * rate * np.asarray(overlap, dtype=np.float64), norm2)


def direction_flow(
    direction: Tensor,
    updates: Sequence[Tensor],
    norms: Sequence[float],
    *,
    lr: float,
    substeps: int = 100,
    as_printed: bool = False,
) -> Iterator[Tensor]:
    """Yield Ŵ = W/‖W‖ after each step from rest. u and ‖W‖ are constant during a step.

        ½η·Ŵ̈ + Ŵ̇ + Λ·Ŵ = -(u - ⟨u,Ŵ⟩Ŵ)/‖W‖,   Λ = ½η‖Ŵ̇‖²     (CT 16 and 17)

    Euler's method in units of a step: with φ = dŴ/ds, dφ/ds = -2φ - ‖φ‖²Ŵ - 2η·u⊥/‖W‖. `as_printed` is CT (9), which
    leaves out ⟨u,Ŵ⟩ and has another factor ‖W‖ in Λ that does not follow from (16) and (17).

    >>> up, push = torch.tensor([0.0, 1.0]), torch.tensor([-1.0, 0.0])
    >>> [round(x.norm().item(), 3) for x in direction_flow(up, [push] * 3, [1.0] * 3, lr=0.01)]
    [1.0, 1.0, 1.0]
    """
    check_count("substeps", substeps, at_least=2)
    unit = direction
    phi = torch.zeros_like(direction)
    for u, norm in zip(updates, norms, strict=True):
        push = 2 * lr * u / norm
        for _ in range(substeps):
            pull = norm * phi.square().sum() if as_printed else phi.square().sum() - (push * unit).sum()
            force = -2 * phi - pull * unit - push
            unit = unit + phi / substeps  # with φ before its own step, as in Euler's method
            phi = phi + force / substeps
        yield unit


def _over_time(update2: ArrayLike, lr: ArrayLike) -> tuple[Array, Array]:
    """Return ‖u‖² as an array, and lr of a shape to multiply it: a number, or one for each step."""
    u2 = np.asarray(update2, dtype=np.float64)
    rate = np.asarray(lr, dtype=np.float64)
    rate = rate.reshape(rate.shape + (1,) * (u2.ndim - rate.ndim)) if rate.ndim else np.full((1,) * u2.ndim, rate)
    return u2, np.broadcast_to(rate, (len(u2), *rate.shape[1:]))


def _recursion(keep: Array, gain: Array, norm2: ArrayLike) -> Array:
    """Return the path of y' = keep·y + gain."""
    path = np.empty_like(gain)
    y = np.asarray(norm2, dtype=np.float64)
    for t in range(len(gain)):
        path[t] = y = keep[t] * y + gain[t]
    return path
