"""How fast a norm under SGD and SGDM approaches its equilibrium, and how much it fluctuates there (SMD).

SGD moves x = ‖w‖² of a scale-invariant vector by (SMD 42)

    x' = (1 - 2·lr·weight_decay)·x + L_t·lr²/x

with L_t = ‖g̃‖² the squared unit gradient norm. SGDM is a map of three numbers (SMD 66), and L_t becomes
h̃ = (‖g‖² + 2·momentum·⟨v,g⟩)·‖w‖², v the momentum buffer before the step. `mean` (L of the paper), `variance` (V)
and `lower` (l) are the mean, variance and lower bound of L_t.
"""

import math

import numpy as np

from gyroscope.tools import Values, check_fraction, non_negative_array, positive_array


def contraction_near_equilibrium(lr: Values, weight_decay: Values, momentum: float = 0.0) -> Values:
    """Return the factor per step by which ‖w‖² approaches its equilibrium once it is near.

        1 - 4·lr·weight_decay/(1 - momentum)     (slope of SMD (42) and (66) at their fixed points)

    This is the leading order. With momentum 0.9 the rate is 1 % too slow at a hundredth of the limit on
    lr·weight_decay, and 11 % at a tenth. Beyond a quarter the norm overshoots its equilibrium. ‖w‖⁴ approaches by this
    factor from any distance (ours). Without weight decay the factor is 1, because the norm never settles.

    >>> f"{contraction_near_equilibrium(lr=0.1, weight_decay=5e-4, momentum=0.9):.3f}"
    '0.998'
    """
    return 1 - 4 * _decay(lr, weight_decay, momentum)


def contraction_far_above(lr: Values, weight_decay: Values, momentum: float = 0.0) -> Values:
    """Return the factor per step by which ‖w‖² falls while it is many times its equilibrium.

        1 - 2·lr·weight_decay/(1 - momentum)     (SMD (67), (124), (128))

    Only weight decay matters there, because the gradient's share falls as 1/‖w‖⁴. No norm falls faster.

    >>> f"{contraction_far_above(lr=0.1, weight_decay=5e-4, momentum=0.9):.3f}"
    '0.999'
    """
    return 1 - 2 * _decay(lr, weight_decay, momentum)


def contraction_of_bound(lr: Values, weight_decay: Values, momentum: float = 0.0) -> Values:
    """Return the factor per step of SMD's bound on the mean square E(‖w‖² - equilibrium)².

        1 - 4·lr·weight_decay/(1 - momentum)     (SMD (17), (20))

    This is the factor of `contraction_near_equilibrium`, but for the square of the error. For the error itself the
    bound guarantees only half that rate, as in `contraction_far_above`. The bound shrinks until it reaches
    `norm_variance_bound`.

    >>> f"{contraction_of_bound(lr=0.1, weight_decay=5e-4):.4f}"
    '0.9998'
    """
    return 1 - 4 * _decay(lr, weight_decay, momentum)


def norm_variance_bound(lr: Values, momentum: float = 0.0, *, variance: Values, lower: Values) -> Values:
    """Return SMD's bound on the variance of ‖w‖² in equilibrium, in units of ‖w‖⁴.

        SGD      variance·lr²/lower                                                  (SMD (17), (51))
        SGDM     3·variance·lr²·(1 + 4α² + α⁴)/(lower·(1-α)⁴), α = momentum          (SMD (20), (101))

    The second does not reduce to the first. As momentum -> 0 it is three times as large. `norm_variance` is the value.

    >>> norm_variance_bound(lr=0.5, variance=0.1, lower=0.5)
    0.05
    """
    _check(momentum, lr=lr, variance=variance)
    positive_array("lower", lower)
    bound = variance * lr**2 / lower
    return bound if momentum == 0 else 3 * bound * _mode_gains(momentum) / (1 - momentum) ** 4


def norm_variance(lr: Values, momentum: float = 0.0, *, variance: Values, mean: Values) -> Values:
    """Return the variance of ‖w‖² in equilibrium, in units of ‖w‖⁴. `norm_variance_bound` bounds it.

        variance·lr²/(4·mean·(1-α)²)     (ours: docs/theory.md, "Scatter of norm and angle under SGDM")

    a = lr·weight_decay/(1-α) cancels to leading order (SGD (42), all orders: divide by 1 - 2a). The bound is
    4·mean/lower times larger for SGD, 5,900·mean/lower times at momentum 0.9.

    >>> norm_variance(lr=0.5, variance=0.1, mean=1.0)
    0.00625
    """
    _check(momentum, lr=lr, variance=variance)
    positive_array("mean", mean)
    return variance * lr**2 / (4 * mean * (1 - momentum) ** 2)


def angle_variance_bound(momentum: float = 0.0, *, variance: Values, mean: Values, lower: Values) -> Values:
    """Return SMD's bound on the variance of the angle per step in equilibrium, in radians squared.

        SGD      variance/(mean·lower)                                                    (SMD (21), (111))
        SGDM     variance·(1-α²)·(1 + 4α² + α⁴)/(4·mean·lower·α⁴), α = momentum           (SMD (22), (123))

    The second does not reduce to the first but diverges as momentum -> 0. The proof bounds the one mode that rotates
    the vector, of size α², by all three. Neither bound shrinks with lr·weight_decay. The value, `angle_variance`, does.

    >>> angle_variance_bound(variance=0.1, mean=1.0, lower=0.5)
    0.2
    """
    _check(momentum, variance=variance)
    positive_array("mean", mean)
    positive_array("lower", lower)
    if not np.all(np.less_equal(lower, mean)):
        raise ValueError(f"lower={lower} exceeds mean={mean}, but must be below it: swap them")
    bound = variance / (mean * lower)
    return bound if momentum == 0 else bound * (1 - momentum**2) * _mode_gains(momentum) / (4 * momentum**4)


def angle_variance(
    lr: Values, weight_decay: Values, momentum: float = 0.0, *, variance: Values, mean: Values
) -> Values:
    """Return the variance of the angle per step in equilibrium, in radians squared, under `angle_variance_bound`.

        lr·weight_decay·(1-α)/(2·(1+α²))·variance/mean²     (ours)

    Derived in docs/theory.md, "Scatter of norm and angle under SGDM". For SGD the relative variation of the angle is
    half that of L_t. This is the leading order in lr·weight_decay and in the fluctuations of L_t.

    >>> f"{angle_variance(lr=0.1, weight_decay=5e-4, variance=0.1, mean=1.0):.2e}"
    '2.50e-06'
    """
    _check(momentum, variance=variance)
    positive_array("mean", mean)
    return _decay(lr, weight_decay, momentum) * (1 - momentum) ** 2 / (2 * (1 + momentum**2)) * variance / mean**2


def steps_to_new_equilibrium(k: float, lr: float, weight_decay: float, momentum: float = 0.0) -> int:
    """Return the smallest number of steps to the new equilibrium after lr was divided by k. `lr` is the NEW rate.

        ⌈ln k·(1-α)/(4·lr·weight_decay)⌉     (SMD Corollary 3.1)

    This is a lower bound. After these steps ‖w‖⁴ is still 2 - 1/k times its new equilibrium (ours), so the norm is up
    to 19 % too large. If lr or weight_decay is 0, there is no equilibrium and ValueError is raised.

    >>> steps_to_new_equilibrium(k=10, lr=0.01, weight_decay=5e-4, momentum=0.9)
    11513
    """
    if not 1 < k < math.inf:
        raise ValueError(f"k={k} must be finite and above 1: the old learning rate over the new, such as 10")
    positive_array("lr", lr)
    positive_array("weight_decay", weight_decay)
    # ‖w‖⁴ closes in by 1 - 4a per step: ln k over that rate.
    return math.ceil(math.log(k) / (4 * float(_decay(lr, weight_decay, momentum))))


def least_gradient_share(lr: float, weight_decay: float, momentum: float = 0.0) -> float:
    """Return the share of the mean that the smallest L_t must exceed for SMD's theorems to apply: l/L.

        SGD      2·(2ηλ/(1 - 2ηλ))²                                  (SMD assumption 3)
        SGDM     2·(6ηλ/((1-α)³(1+α) - 8ηλ(1-α)))², α = momentum     (SMD assumption 6)

    η is lr and λ is weight_decay. The proofs need this, but equilibrium does not. At ηλ = 2·10⁻⁴ and momentum 0.9 the
    second is already 1, which no sequence reaches. It is infinite if its denominator is not positive.

    >>> f"{least_gradient_share(0.2, 1e-4):.1e}", f"{least_gradient_share(0.2, 1e-4, momentum=0.9):.4f}"
    ('3.2e-09', '0.0081')
    """
    _check(momentum, lr=lr, weight_decay=weight_decay)
    product = lr * weight_decay
    if momentum == 0:
        factor = 2 * product
        room = 1 - 2 * product
    else:
        factor = 6 * product
        room = (1 - momentum) ** 3 * (1 + momentum) - 8 * product * (1 - momentum)
    return 2 * (factor / room) ** 2 if room > 0 else math.inf


def _decay(lr: Values, weight_decay: Values, momentum: float) -> Values:
    """Return the fraction of the weight that decays per step, or raise if the leading order has no meaning."""
    _check(momentum, lr=lr, weight_decay=weight_decay)
    # SMD's assumption 4 keeps the modes real. If momentum is small, a positive factor needs more than that.
    limit = min((1 - momentum**0.5) ** 2, (1 - momentum) / 4)
    if not np.all(np.less(lr * weight_decay, limit)):
        raise ValueError(
            f"lr={lr} times weight_decay={weight_decay} must be under {limit:.3g} at momentum={momentum}: lower either"
        )
    return lr * weight_decay / (1 - momentum)


def _mode_gains(alpha: float) -> float:
    """Return the sum of squares of (1, -2α, α²), by which noise enters the modes of the SGDM map (SMD 91-93)."""
    return 1 + 4 * alpha**2 + alpha**4


def _check(momentum: float, **values: Values) -> None:
    check_fraction("momentum", momentum)
    for name, value in values.items():
        non_negative_array(name, value)
