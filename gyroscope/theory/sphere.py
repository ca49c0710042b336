"""Schemes on the sphere that follow the directions of SGD with weight decay.

Equations are those of Roburin et al., "Spherical Perspective on Learning with Batch Norm" (SP).
"""

from dataclasses import dataclass

import numpy as np

from gyroscope._checks import check_decay, check_positive, positive_array
from gyroscope._types import Integers, Values


def lr_without_decay(lr: float, weight_decay: float, k: int | Integers) -> Values:
    """Return the learning rate at step k that gives SGD without decay exactly the directions of SGD with decay.

        lr_k = lr·(1 - lr·λ)^(-2k-1)     (SP 44)

    Holds for scale-invariant weights from the same start, with L2 in the gradient and without momentum. Overflow gives
    inf.

    >>> f"{lr_without_decay(lr=0.1, weight_decay=0.01, k=1000):.4f}"
    '0.7404'
    """
    check_decay(lr, weight_decay)
    if np.any(np.asarray(k) < 0):
        raise ValueError(f"k={k} is not a step: the first is 0")
    with np.errstate(over="ignore"):
        # log1p, because lr·λ is often below the rounding of 1.
        rate = lr * np.exp(-(2 * np.asarray(k) + 1) * np.log1p(-lr * weight_decay))
    return float(rate) if rate.ndim == 0 else rate


@dataclass(frozen=True)
class AdamGStar:
    """AdamG* on the unit sphere (SP 3.2): u' = normalise(u - lr·g/sqrt(v)), and then v' = beta·v + ‖g‖², from v0."""

    lr: float
    beta: float
    v0: Values


def adam_g_star(lr: float, weight_decay: float, radius: Values) -> AdamGStar:
    """Return the AdamG* that follows the directions of SGD with decay from `radius` r0 (one, or one per weight).

        beta = (1 - lr·λ)⁴,   lr* = (2·beta)^(-1/2),   v0 = r0⁴/(2·lr²·beta^(1/2))     (SP Theorem 4)

    They are equal to second order in the radius: at a fixed lr·k the directions differ by O(lr³).

    >>> star = adam_g_star(lr=0.1, weight_decay=0.01, radius=1.0)
    >>> f"lr={star.lr:.4f} beta={star.beta:.4f} v0={star.v0:.2f}"
    'lr=0.7085 beta=0.9960 v0=50.10'
    """
    check_decay(lr, weight_decay)
    check_positive("lr", lr)
    r0 = positive_array("radius", radius)
    beta = (1 - lr * weight_decay) ** 4
    return AdamGStar(lr=(2 * beta) ** -0.5, beta=beta, v0=r0**4 / (2 * lr**2 * beta**0.5))
