"""Stability of Adam: which (beta1, beta2) keep every update bounded for any gradients.

Numbered equations are those of "Continuous-time analysis of adaptive optimization and normalization" (CT), whose γ is
beta1 and whose β is beta2. Exact versions for the discrete step are ours. The first step is n = 0. Arrays broadcast.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from gyroscope._checks import fraction_array, step_array
from gyroscope._types import Array, Integers, Values
from gyroscope.theory.law import plain

Steps: TypeAlias = int | Integers


def _checked(beta1: Values, beta2: Values) -> tuple[Array, Array]:
    return fraction_array("beta1", beta1), fraction_array("beta2", beta2, zero=False)


def margin(beta1: Values, beta2: Values) -> Values:
    """Return the distance of Adam from instability in continuous time, C. Above 0 it is stable.

        C = (2·β2·(1-β1) - β1·(1-β2))/(β1·β2) = 2/β1 - 1/β2 - 1     (CT Theorem 1)

    C > 0 implies `exact_margin` > 0, but not the reverse. C is infinite at beta1 = 0.

    >>> f"{margin(0.9, 0.999):.4f}"
    '0.2212'
    """
    gamma, beta = _checked(beta1, beta2)
    with np.errstate(divide="ignore"):
        return plain((2 * beta * (1 - gamma) - gamma * (1 - beta)) / (beta * gamma))


def exact_margin(beta1: Values, beta2: Values) -> Values:
    """Return the margin of Adam's discrete step, ln(β2/β1²). Only above 0 do updates stay bounded for all gradients.

    Ours: docs/theory.md, "Stability of Adam". `margin` equals it to first order as the betas go to 1.

    >>> f"{exact_margin(0.9, 0.999):.4f}"
    '0.2097'
    """
    gamma, beta = _checked(beta1, beta2)
    with np.errstate(divide="ignore"):
        return plain(np.log(beta) - 2 * np.log(gamma))


def growth_rate(beta1: Values, beta2: Values, exact: bool = False) -> Values:
    """Return the exponent per step of the largest possible update: |C|/2 if C < 0, and 0 if stable     (CT 5).

    `exact` gives the discrete ½·ln(β1²/β2) (ours), which is never larger.

    >>> f"{growth_rate(0.99, 0.9):.4f} {growth_rate(0.99, 0.9, exact=True):.4f} {growth_rate(0.9, 0.999):.1f}"
    '0.0455 0.0426 0.0'
    """
    return plain(np.maximum(0.0, -0.5 * np.asarray((exact_margin if exact else margin)(beta1, beta2))))


def update_bound(n: Steps, beta1: Values, beta2: Values, exact: bool = False) -> Values:
    """Return the largest possible entry of Adam's update at step n for any gradients, in units of lr.

        sqrt(1-β2^(n+1))/(1-β1^(n+1)) · (1-β1)/β1·sqrt(β2/(1-β2)) · B_n     (CT 5)
        B_n = 1/sqrt(C), sqrt(n) or exp(n|C|/2)/sqrt|C|   for C above, at or below 0
        exact:   sqrt(1-β2^(n+1))/(1-β1^(n+1)) · (1-β1)/sqrt(1-β2) · sqrt(Σ_{j≤n} (β1²/β2)^j)     (ours)

    Without eps and weight decay. The bound holds for any gradients, and so for each stage of k-Adam with its own betas
    (CT Theorem 3). Gradients g_i ∝ (β1/β2)^(n-i) attain the exact bound. (5) is above it if C > 0, but can be below it
    in early steps if C ≤ 0. At beta1 = 0, and at n = 0 with C = 0, (5) is void and inf is returned. Overflow gives inf.

    >>> f"{update_bound(1000, 0.9, 0.999):.3f} {update_bound(1000, 0.9, 0.999, exact=True):.3f}"
    '5.939 5.783'
    """
    gamma, beta = _checked(beta1, beta2)
    steps = step_array("n", n)
    # expm1 and log keep the digits of 1 - β^(n+1) if β is near 1. The growth e^(n·rate) is multiplied last, because it
    # alone may overflow.
    with np.errstate(divide="ignore", over="ignore"):
        unbias = np.sqrt(-np.expm1((steps + 1) * np.log(beta))) / -np.expm1((steps + 1) * np.log(gamma))
        if exact:
            scale = 1 / np.sqrt(1 - beta)
            series = _discrete_series(steps, gamma, beta)
        else:
            scale = np.sqrt(beta / (1 - beta)) / gamma
            series = _continuous_series(steps, gamma, beta)
        return plain(unbias * (1 - gamma) * scale * np.sqrt(series) * np.exp(steps * growth_rate(gamma, beta, exact)))


def _discrete_series(n: Integers, gamma: Array, beta: Array) -> Array:
    """Return Σ_{j≤n} (γ²/β)^j over its largest term."""
    x = np.abs(exact_margin(gamma, beta))
    x = np.maximum(x, np.finfo(np.float64).tiny)  # at ratio 1 the sum is n+1, but 0/0 is not
    return np.asarray(np.expm1(-(n + 1) * x) / np.expm1(-x))


def _continuous_series(n: Integers, gamma: Array, beta: Array) -> Array:
    """Return B_n² of (5) over its growth, or inf if (5) is void."""
    c = np.abs(margin(gamma, beta))
    rounding = 4 * np.finfo(np.float64).eps * (1 / beta + 1)  # of C = 2/γ - (1/β + 1) for the betas nearest to C = 0
    series = np.where(c <= rounding, n, 1 / c)
    return np.where(series > 0, series, np.inf)


def level_curve(c: float, beta2: Values) -> Values:
    """Return the beta1 at which Adam's `margin` is c, for each beta2: β1 = 2/(c + 1 + 1/β2)     (CT 3.1).

    It exists if c > 1 - 1/β2.

    >>> f"{level_curve(0.0, 0.5):.4f} {level_curve(margin(0.9, 0.999), 0.999):.4f}"
    '0.6667 0.9000'
    """
    _, beta = _checked(0.0, beta2)
    lowest = 1 - 1 / beta
    if not np.all(c > lowest):
        raise ValueError(
            f"c={c!r} is not a possible margin at beta2={beta2!r}: choose c above 1 - 1/beta2 = {np.max(lowest):.6g}"
        )
    return plain(2 / (c + 1 + 1 / beta))


def normal_curve(beta1: Values, beta2: Values, at_beta2: Values) -> Values:
    """Return beta1 at `at_beta2` on the curve through (beta1, beta2) that crosses every level curve at a right angle.

        β1 = (2·β2³ + β1³ - 2·at_beta2³)^(1/3)     (CT Appendix F)

    The margin rises fastest along it, in the plane of the betas.

    >>> f"{normal_curve(0.9, 0.999, at_beta2=0.97):.4f}"
    '0.9647'
    """
    gamma0, beta0 = _checked(beta1, beta2)
    _, beta = _checked(0.0, at_beta2)
    cube = gamma0**3 + 2 * (beta0**3 - beta**3)
    if not np.all((cube >= 0) & (cube < 1)):
        low, high = (np.cbrt(np.maximum(0, beta0**3 + (gamma0**3 - end) / 2)) for end in (1, 0))
        raise ValueError(
            f"at_beta2={at_beta2!r} is off the normal curve through beta1={beta1!r}, beta2={beta2!r}: "
            f"choose it above {low} and at most {np.minimum(1, high)}"
        )
    return plain(np.cbrt(cube))


STRATEGIES: dict[str, Callable[[float, int], float]] = {
    "inverse_exp": lambda beta, k: 1 - (1 - beta) ** (1 / k),
    "exp": lambda beta, k: beta**k,
    "scaled": lambda beta, k: beta / k,
    "naive": lambda beta, k: beta,
}


def kadam_betas(strategy: str, k: int, betas: tuple[float, float]) -> list[tuple[float, float]]:
    """Return the betas of k-Adam's k stages, one pair for all, derived from a pair of Adam's     (CT 4.3).

        inverse_exp 1-(1-β)^(1/k),   exp β^k,   scaled β/k,   naive β

    >>> [(round(beta1, 4), round(beta2, 4)) for beta1, beta2 in kadam_betas("inverse_exp", 2, (0.9, 0.999))]
    [(0.6838, 0.9684), (0.6838, 0.9684)]
    """
    _checked(*betas)
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy={strategy!r} is unknown: choose one of {', '.join(STRATEGIES)}")
    if not isinstance(k, int) or k < 1:
        raise ValueError(f"k={k!r} must be a number of stages: an integer, 1 (plain Adam) or more")
    stage = STRATEGIES[strategy]
    return [(stage(betas[0], k), stage(betas[1], k))] * k
