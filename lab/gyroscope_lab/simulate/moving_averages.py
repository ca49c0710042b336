"""Moving averages of a sequence, and Adam's adaptive normalization (CT Definition 2, Appendix J).

The first axis of a sequence is the step: x[0], …, x[n].
"""

import numpy as np
from numpy.typing import ArrayLike

from gyroscope.tools import Array


def moving_average(x: ArrayLike, gamma: float) -> Array:
    """Return the bias-corrected moving average of a whole sequence.

        M_γ(x) = (1-γ)/(1-γ^(n+1)) · (x_n + γ·x_{n-1} + … + γ^n·x_0)     (CT Definition 2)

    >>> float(moving_average([1.0, 3.0], gamma=0.5).round(4))
    2.3333
    """
    values = np.asarray(x, dtype=np.float64)
    if not 0 <= gamma < 1:
        raise ValueError(f"gamma={gamma!r} must be in [0, 1)")
    if values.ndim == 0 or len(values) == 0:
        raise ValueError(f"x={x!r} must be a sequence with at least one step")
    weights = gamma ** np.arange(len(values) - 1, -1, -1.0)
    return np.asarray(np.tensordot(weights, values, axes=1) / weights.sum())


def adaptive_normalization(x: ArrayLike, gamma: float, beta: float) -> Array:
    """Return Adam's update divided by lr, after a sequence of gradients.

        A_γβ(x) = M_γ(x)/sqrt(M_β(x²))     (CT Definition 2 with γ = β1, β = β2, eps = 0)

    An entry whose gradients are all 0 gives NaN.

    >>> adaptive_normalization([[1.0, -4.0]], gamma=0.9, beta=0.999).tolist()
    [1.0, -1.0]
    """
    values = np.asarray(x, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(moving_average(values, gamma) / np.sqrt(moving_average(values**2, beta)))


def continuous_moving_average(x: ArrayLike, alpha: float, start: ArrayLike = 0.0) -> Array:
    """Return w_n = (1-α)w_{n-1} + α·x_n in continuous time, after each step. x is constant during a step.

        w(t) = w(0)·e^(-κt) + κ·∫ e^(-κ(t-τ)) x(τ) dτ,   κ = α/(1-α)     (CT Appendix J, t in steps)

    The paper prints κ = (1-α)/α, which is the rate of an average whose factor is α and not 1-α (docs/theory.md).

    >>> continuous_moving_average([1.0, 1.0], alpha=0.5).round(4).tolist()
    [0.6321, 0.8647]
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha={alpha!r} must be in (0, 1)")
    values = np.asarray(x, dtype=np.float64)
    kept = np.exp(-alpha / (1 - alpha))
    average = np.asarray(start, dtype=np.float64)
    averages = []
    for value in values:
        average = kept * average + (1 - kept) * value
        averages.append(average)
    return np.asarray(averages)
