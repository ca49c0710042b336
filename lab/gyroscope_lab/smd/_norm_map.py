"""The maps of Spherical Motion Dynamics: how SGD and SGDM move the squared norm of a scale-invariant vector.

The maps use only the size of a gradient at unit norm, L_t = ‖g̃_t‖² = ‖g_t‖²·‖w_t‖². So any sequence L_t can be tried:
constant, drifting, in steps, noisy. Each input is a number, or an array (steps,) or (steps, runs), in float64.
"""

from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from numpy.typing import ArrayLike

from gyroscope.tools import Array, Values, check_fraction, non_negative_array, positive_array


@final
@dataclass(frozen=True)
class NormPath:
    """Squared norm after each step and the angle of each step, in radians: (steps,) or (steps, runs).

    `state` is (‖w_t‖², ⟨w_t,w_{t-1}⟩, ‖w_{t-1}‖²) at the end. Another run may start from it.
    """

    norm2: Array
    angular_update: Array
    state: Array

    @property
    def norm(self) -> Array:
        """Norm after each step."""
        return np.asarray(np.sqrt(self.norm2))


def sgd_map(
    unit_grad2: ArrayLike,
    *,
    lr: ArrayLike,
    weight_decay: ArrayLike,
    norm2: ArrayLike,
    keep_square: bool = False,
) -> NormPath:
    """Follow SGD with L2:  x_{t+1} = (1 - 2·lr·λ)·x_t + lr²·L_t/x_t,  x = ‖w‖²     (SMD 42, 130).

    `keep_square` uses (1 - lr·λ)² instead (SMD 41), which is exact. `norm2` is x_0, a number or one for each run.

    >>> path = sgd_map(np.full(20_000, 0.5), lr=0.1, weight_decay=1e-3, norm2=10.0)
    >>> f"{path.norm2[-1]:.2f} at sqrt(L·lr/(2λ)) = {(0.5 * 0.1 / 2e-3) ** 0.5:.2f}"
    '5.00 at sqrt(L·lr/(2λ)) = 5.00'
    """
    L, rate, wd, x = _inputs(unit_grad2, lr, weight_decay, norm2)
    if (L < 0).any():
        raise ValueError(f"unit_grad2 falls to {L.min()}: it is a square, 0 or above")
    keep = 1 - rate * wd
    shrink = keep**2 if keep_square else 1 - 2 * rate * wd
    push = rate**2 * L
    path = np.empty((len(L) + 1, *L.shape[1:]))
    path[0] = x
    for t in range(len(L)):
        path[t + 1] = x = shrink[t] * x + push[t] / x
    before = path[:-1]
    after = path[1:]
    angle = np.arctan2(np.sqrt(push), keep * before)
    return NormPath(after, angle, np.stack([after[-1], keep[-1] * before[-1], before[-1]]))


def sgdm_map(
    unit_grad2: ArrayLike,
    *,
    lr: ArrayLike,
    weight_decay: ArrayLike,
    momentum: float,
    norm2: ArrayLike | None = None,
    state: ArrayLike | None = None,
    lr_before: ArrayLike | None = None,
) -> NormPath:
    """Follow SGD with momentum α and L2, a map of X = (‖w_t‖², ⟨w_t,w_{t-1}⟩, ‖w_{t-1}‖²)     (SMD 60-66, 131).

        X' = A X + (lr²·h̃_t/X[0], 0, 0),   A = [[b², -2αb, α²], [b, -α, 0], [1, 0, 0]],   b = 1 + α - lr·λ

    - `unit_grad2`: h̃_t = (‖g_t‖² + 2α⟨v_{t-1},g_t⟩)·‖w_t‖², or L_t if momentum and gradient are orthogonal.
    - `lr`, `weight_decay`, `momentum`: SGDM's. If lr changes, α in A is α·lr_t/lr_{t-1}, because torch keeps the
      momentum in units of the gradient.
    - `norm2`: start at rest at this squared norm. Or `state`: go on from the end of an earlier path, whose last rate
      was `lr_before`.

    >>> path = sgdm_map(np.full(5000, 0.5), lr=0.1, weight_decay=1e-3, momentum=0.9, norm2=10.0)
    >>> theorem2 = (0.5 * 0.1 / (1e-3 * 0.1 * (2 - 1e-4 / 1.9))) ** 0.5
    >>> f"{path.norm2[-1]:.4f} {theorem2:.4f}"
    '15.8116 15.8116'
    """
    check_fraction("momentum", momentum)
    if (norm2 is None) == (state is None):
        raise ValueError("pass norm2, a squared norm to start from at rest, or state, the end of an earlier path")
    # At rest the weight before was the same, so all three numbers are.
    start = np.stack([np.asarray(norm2)] * 3) if state is None else np.asarray(state, dtype=np.float64)
    h, rate, wd, a = _inputs(unit_grad2, lr, weight_decay, start[0])
    # a, b, c are the three entries of X.
    b, c = (np.broadcast_to(part, a.shape) for part in start[1:])
    first = rate[:1] if lr_before is None else np.broadcast_to(positive_array("lr_before", lr_before), rate[:1].shape)
    alpha = momentum * rate / np.concatenate([first, rate[:-1]])
    forward = 1 + alpha - rate * wd
    push = rate**2 * h
    path = np.empty((len(h) + 1, *h.shape[1:]))
    overlap = np.empty(h.shape)
    path[0] = a
    for t in range(len(h)):
        f = forward[t]
        m = alpha[t]
        new = f * f * a - 2 * m * f * b + m * m * c + push[t] / a
        b = f * a - m * b
        c = a
        a = new
        path[t + 1] = a
        overlap[t] = b
    before = path[:-1]
    after = path[1:]
    angle = np.arctan2(np.sqrt(np.maximum(after * before - overlap**2, 0.0)), overlap)
    return NormPath(after, angle, np.stack([a, b, c]))


def next_norm(norm: Values, *, lr: Values, weight_decay: Values, unit_grad_norm: Values) -> Values:
    """Return SMD's approximation of ‖w‖ after a step of SGD: a pull inwards and a push outwards.

        ‖w'‖ ≈ ‖w‖ - lr·λ·‖w‖ + lr²/(2‖w‖³)·‖g̃‖²     (SMD 15)

    The error is of second order in lr·λ and in the square of the angle. `sgd_map(…, keep_square=True)` is exact.

    >>> next_norm(2.0, lr=0.1, weight_decay=0.01, unit_grad_norm=4.0)
    2.008
    """
    return norm - lr * weight_decay * norm + lr**2 * unit_grad_norm**2 / (2 * norm**3)


class Modes(NamedTuple):
    """Eigenvalues of the matrix A of `sgdm_map`, the slowest first. Each is the share of a mode left after a step."""

    slow: float
    momentum: float
    fast: float


def sgdm_modes(lr: float, weight_decay: float, momentum: float) -> Modes:
    """Return the eigenvalues of SGDM's map of norms, exactly.

        λ1, λ3 = (b² ± b·sqrt(b² - 4α))/2 - α,   λ2 = α,   b = 1 + α - lr·λ     (SMD 67-69)

    To first order λ1 = 1 - 2·lr·λ/(1-α) and λ3 = α² + 2α²·lr·λ/(1-α). They are real if lr·λ ≤ (1 - √α)². Larger values
    raise ValueError (SMD assumption 4).

    >>> [round(mode, 6) for mode in sgdm_modes(lr=0.1, weight_decay=5e-4, momentum=0.9)]
    [0.998996, 0.9, 0.810814]
    """
    check_fraction("momentum", momentum)
    product = float(positive_array("lr", lr) * non_negative_array("weight_decay", weight_decay))
    b = 1 + momentum - product
    limit = (1 - momentum**0.5) ** 2
    if product > limit:
        raise ValueError(
            f"lr={lr} times weight_decay={weight_decay} must be at most {limit:.3g} at momentum={momentum}. Lower one"
        )
    root = max(b * b - 4 * momentum, 0.0) ** 0.5
    slow = b * (b + root) / 2 - momentum
    # The product of the two is α², so nothing cancels.
    return Modes(slow, momentum, momentum**2 / slow)


def _inputs(
    unit_grad2: ArrayLike, lr: ArrayLike, weight_decay: ArrayLike, norm2: ArrayLike
) -> tuple[Array, Array, Array, Array]:
    """Return L, lr and weight decay as (steps, runs), and the squared norms to start from as (runs)."""
    L = np.asarray(unit_grad2, dtype=np.float64)
    if L.size == 0 or not np.isfinite(L).all():
        raise ValueError("unit_grad2 must hold a finite number for each step")
    wd = np.asarray(non_negative_array("weight_decay", weight_decay))
    rate = np.asarray(positive_array("lr", lr))
    start = np.asarray(positive_array("norm2", norm2))[None]
    # Time is the first axis of all: shorter shapes get axes at their end, not at their front as NumPy would.
    given = {"unit_grad2": L, "lr": rate, "weight_decay": wd, "norm2": start}
    dims = max(array.ndim for array in given.values())
    aligned = [array.reshape(array.shape + (1,) * (dims - array.ndim)) for array in given.values()]
    try:
        L, rate, wd, start = np.broadcast_arrays(*aligned)
    except ValueError:
        shapes = {name: array.shape for name, array in given.items()}
        raise ValueError(f"arrays are (steps,) or (steps, runs), norm2 is (runs,). These differ: {shapes}") from None
    return L, rate, wd, np.array(start[0])
