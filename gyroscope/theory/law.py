"""The one law of rotational equilibrium.

Every update rule with weight decay takes the step  w <- (1 - a) w - u,  where `a` is the fraction of the weight that
decays and u the gradient's part. Once the growth that u brings balances the decay, three numbers – `a`, the size of u
and the time over which u stays correlated – settle everything: norm, angle per step and how long a direction lasts.
"""

from dataclasses import dataclass
from math import log

import numpy as np

from gyroscope.theory.recursion import Number


@dataclass(frozen=True)
class Equilibrium:
    """What a weight vector settles at; None where the given inputs do not determine it.

    `angular_update` is in radians per step, `norm` the RMS norm of one vector, `update_rms` the RMS size of the
    gradient's part of one step, `timescale` the number of steps after which a direction is forgotten:
    cos∠(w_t, w_{t+k}) = e^(-k/timescale).
    """

    angular_update: Number | None
    norm: Number | None
    update_rms: Number | None
    timescale: Number | None

    @property
    def half_life(self) -> Number | None:
        """Steps after which the cosine with an earlier direction has halved: ln 2 × timescale."""
        return None if self.timescale is None else log(2) * self.timescale


def equilibrium_angle(decay: Number, correlation_time: Number) -> Number:
    """Angle per step in equilibrium to leading order, in radians: η_r = sqrt(2a/τ) (RE Table 1, for every rule).

    >>> f"{equilibrium_angle(1e-4, 19.0):.5f}"
    '0.00324'
    """
    return (2 * decay / correlation_time) ** 0.5


def forgetting_time(decay: Number) -> Number:
    """Steps after which a direction is forgotten, 1/a; infinite without decay.

    >>> forgetting_time(0.0), forgetting_time(0.01)
    (np.float64(inf), np.float64(100.0))
    """
    return over(np.float64(1), decay)


def over(numerator: Number, denominator: Number) -> Number:
    """A quotient that is infinite, or NaN, where there is nothing to divide by: no decay, or a learning rate of 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.divide(numerator, denominator)


def turning_angle(shrink: Number) -> Number:
    """Angle of a step that keeps the norm and leaves 1 - shrink of the old vector, in radians.

    An arccos of 1 - shrink in a form that keeps its digits where shrink is tiny.
    """
    return 2 * np.arcsin((shrink / 2) ** 0.5)


def law(decay: Number, tau: Number, update_rms: Number | None) -> Equilibrium:
    """The exact balance of  w <- (1-a) w - u  with u stationary and independent of the old w (`tau` is τ(a)).

        ‖ω‖² = update_rms² · τ(a) / (a (2-a)),    1 - cos η_r = a (2 - a - a τ(a)) / (2 (1-a) τ(a))

    >>> f"{law(0.01, Correlation.of_average(0.9).time(0.01), 1.0).norm:.3f}"
    '29.526'
    """
    return Equilibrium(
        angular_update=turning_angle(decay * (2 - decay - decay * tau) / (2 * (1 - decay) * tau)),
        norm=None if update_rms is None else over(update_rms * tau**0.5, (decay * (2 - decay)) ** 0.5),
        update_rms=update_rms,
        timescale=forgetting_time(decay),
    )


def leading_order(decay: Number, tau: Number, update_rms: Number | None) -> Equilibrium:
    """The same to leading order in the decay: ‖ω‖² = update_rms² · τ / (2a), η_r = sqrt(2a/τ) (RE Table 1).

    >>> f"{leading_order(0.01, 19.0, 1.0).norm:.3f}"
    '30.822'
    """
    return Equilibrium(
        angular_update=equilibrium_angle(decay, tau),
        norm=None if update_rms is None else over(update_rms * tau**0.5, (2 * decay) ** 0.5),
        update_rms=update_rms,
        timescale=forgetting_time(decay),
    )
