"""Stability of Adam in its two averages: which (beta1, beta2) keep every update bounded, whatever the gradients.

Numbered equations are those of "Continuous-time analysis of adaptive optimization and normalization" (CT), whose γ is
beta1 and whose β is beta2; beside them stand their exact twins for the discrete step. Step n = 0 is the first.
Values give floats, and arrays are broadcast.
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
    """Distance of Adam from instability in continuous time, C; above 0 it is stable, and infinite at beta1 = 0.

        C = (2·β2·(1-β1) - β1·(1-β2))/(β1·β2) = 2/β1 - 1/β2 - 1     (CT Theorem 1)

    C > 0 suffices for the discrete step too: it implies `exact_margin` > 0, but not the reverse.

    >>> f"{margin(0.9, 0.999):.4f}"
    '0.2212'
    """
    gamma, beta = _checked(beta1, beta2)
    with np.errstate(divide="ignore"):
        return plain((2 * beta * (1 - gamma) - gamma * (1 - beta)) / (beta * gamma))


def exact_margin(beta1: Values, beta2: Values) -> Values:
    """The margin of Adam's discrete step, ln(β2/β1²); above 0, and only there, updates stay bounded for all gradients.

    Ours: docs/theory.md, "Stability of Adam". `margin` equals it to first order as the betas go to 1. Infinite at
    beta1 = 0.

    >>> f"{exact_margin(0.9, 0.999):.4f}"
    '0.2097'
    """
    gamma, beta = _checked(beta1, beta2)
    with np.errstate(divide="ignore"):
        return plain(np.log(beta) - 2 * np.log(gamma))


def growth_rate(beta1: Values, beta2: Values, exact: bool = False) -> Values:
    """Exponent per step with which the largest possible update grows: |C|/2 where C < 0, and 0 where stable     (CT 5).

    `exact` gives the discrete ½·ln(β1²/β2) (ours), which is never larger.

    >>> f"{growth_rate(0.99, 0.9):.4f} {growth_rate(0.99, 0.9, exact=True):.4f} {growth_rate(0.9, 0.999):.1f}"
    '0.0455 0.0426 0.0'
    """
    return plain(np.maximum(0.0, -0.5 * np.asarray((exact_margin if exact else margin)(beta1, beta2))))


def update_bound(n: Steps, beta1: Values, beta2: Values, exact: bool = False) -> Values:
    """Largest entry that Adam's update at step n can have, whatever the gradients were, in units of lr.

        sqrt(1-β2^(n+1))/(1-β1^(n+1)) · (1-β1)/β1·sqrt(β2/(1-β2)) · B_n     (CT 5)
        B_n = 1/sqrt(C), sqrt(n) or exp(n|C|/2)/sqrt|C|   for C above, at or below 0
        exact:   sqrt(1-β2^(n+1))/(1-β1^(n+1)) · (1-β1)/sqrt(1-β2) · sqrt(Σ_{j≤n} (β1²/β2)^j)     (ours)

    Without eps and weight decay. It asks nothing of the gradients, so each stage of k-Adam has it with its own betas,
    whatever the stages before emit (CT Theorem 3); only the first need attain it.

    The exact bound holds always, and gradients g_i ∝ (β1/β2)^(n-i) attain it. (5) lies above it wherever C > 0 but can
    lie below it in early steps where C ≤ 0; it is void, returned as inf, at beta1 = 0 and at n = 0 with C = 0. Growth
    beyond a float's range is inf.

    >>> f"{update_bound(1000, 0.9, 0.999):.3f} {update_bound(1000, 0.9, 0.999, exact=True):.3f}"
    '5.939 5.783'
    """
    gamma, beta = _checked(beta1, beta2)
    steps = step_array("n", n)
    # expm1 and log keep the digits of 1 - β^(n+1) where β is near 1. The growth e^(n·rate) is taken out of the series
    # and multiplied last: it alone may exceed a float's range, and is inf then.
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
    """Σ_{j≤n} (γ²/β)^j, over its largest term."""
    x = np.abs(exact_margin(gamma, beta))
    x = np.maximum(x, np.finfo(np.float64).tiny)  # at ratio 1 the sum is n+1: the quotient says so, but not for 0/0
    return np.asarray(np.expm1(-(n + 1) * x) / np.expm1(-x))


def _continuous_series(n: Integers, gamma: Array, beta: Array) -> Array:
    """B_n² of (5), over its growth; inf where (5) is void."""
    c = np.abs(margin(gamma, beta))
    rounding = 4 * np.finfo(np.float64).eps * (1 / beta + 1)  # of C = 2/γ - (1/β + 1) for the betas nearest to C = 0
    series = np.where(c <= rounding, n, 1 / c)
    return np.where(series > 0, series, np.inf)


def level_curve(c: float, beta2: Values) -> Values:
    """The beta1 at which Adam's `margin` is c, for each beta2: β1 = 2/(c + 1 + 1/β2)     (CT 3.1).

    A margin of c is reached where c > 1 - 1/β2, thus everywhere for c ≥ 0.

    >>> f"{level_curve(0.0, 0.5):.4f} {level_curve(margin(0.9, 0.999), 0.999):.4f}"
    '0.6667 0.9000'
    """
    _, beta = _checked(0.0, beta2)
    lowest = 1 - 1 / beta
    if not np.all(c > lowest):
        raise ValueError(
            f"c={c!r} is no margin that beta2={beta2!r} can have: choose c above 1 - 1/beta2 = {np.max(lowest):.6g}"
        )
    return plain(2 / (c + 1 + 1 / beta))


def normal_curve(beta1: Values, beta2: Values, at_beta2: Values) -> Values:
    """The beta1 at `at_beta2` on the curve through (beta1, beta2) that crosses every level curve at a right angle.

        β1 = (2·β2³ + β1³ - 2·at_beta2³)^(1/3)     (CT Appendix F)

    The margin rises with at_beta2 along it: the fastest way out of instability, in the plane of the betas.

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
    """The betas of k-Adam's k stages, derived from one pair; the same pair for every stage     (CT 4.3).

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
