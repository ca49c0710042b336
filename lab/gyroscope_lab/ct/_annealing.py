"""A learning rate that falls as fast as Adam's bound grows in the unstable region (CT §3)."""

import numpy as np

from gyroscope.theory.law import plain
from gyroscope.theory.stability import growth_rate
from gyroscope.tools import Integers, Values, step_array


def annealed_lr(n: int | Integers, lr: float, beta1: Values, beta2: Values) -> Values:
    """Return the learning rate at step n that undoes the growth of the bound (5).

        lr·exp(-n|C|/2) where C < 0, else lr     (CT 19)

    Stronger than needed, as the paper saw: the discrete step grows by the smaller `growth_rate(…, exact=True)`.

    >>> f"{annealed_lr(100, lr=0.1, beta1=0.99, beta2=0.9):.5f}"
    '0.00106'
    """
    return plain(lr * np.exp(-step_array("n", n) * growth_rate(beta1, beta2)))
