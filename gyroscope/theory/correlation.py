"""How long updates keep pointing the same way: the correlation that momentum gives to noise."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gyroscope.theory.recursion import Array, Number


@dataclass(frozen=True)
class Correlation:
    """Autocorrelation of the update that falls geometrically: rho(k) = first · ratio^(k-1) for k ≥ 1.

    Momentum, Nesterov's momentum and Lion's interpolation all have this form.
    """

    first: Number
    ratio: Number

    @classmethod
    def of_filter(cls, c0: Number, c1: Number, ratio: Number) -> "Correlation":
        """Of u_t = c0·g_t + c1·Σ_{i≥1} ratio^(i-1)·g_{t-i} with white g."""
        tail = c1 * c1 / (1 - ratio * ratio)
        return cls((c0 * c1 + ratio * tail) / (c0 * c0 + tail), ratio)

    @classmethod
    def of_average(cls, beta: Number) -> "Correlation":
        """Of an exponential moving average: rho(k) = beta^k."""
        return cls(beta, beta)

    def time(self, a: Number = 0.0) -> Number:
        """τ(a) = 1 + 2 Σ_k rho(k) (1-a)^k: the steps over which updates add up in one direction.

        >>> Correlation.of_average(0.9).time()
        19.000000000000004
        """
        return 1 + 2 * self.first * (1 - a) / (1 - self.ratio * (1 - a))


@dataclass(frozen=True)
class OddCorrelation:
    """Correlation of an odd function of Gaussians, a sign or an orthogonalisation: Σ_n weights_n·rho(k)^powers_n."""

    linear: Correlation
    powers: npt.NDArray[np.int64]
    weights: Array

    def time(self, a: Number = 0.0) -> Number:
        """τ(a) of the sum, power by power: each of them is geometric in k.

        >>> f"{OddCorrelation(Correlation.of_average(0.9), np.array([1]), np.array([1.0])).time():.0f}"
        '19'
        """
        keep = np.asarray(1 - a)[..., None]
        first, ratio = self.linear.first**self.powers, self.linear.ratio**self.powers
        return 1 + 2 * (self.weights * first * keep / (1 - keep * ratio)).sum(-1)
