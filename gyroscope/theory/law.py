"""The one law of rotational equilibrium (ours; derived in docs/theory.md, "The one law").

Every update rule with weight decay takes the step  w <- (1 - a) w - u,  where `a` is the fraction of the weight that
decays and u the gradient's part. Once the growth that u brings balances the decay, three numbers determine norm, angle
per step and memory: `a`, the size of u, and the time over which u stays correlated.
"""

from dataclasses import dataclass
from math import log, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from gyroscope._checks import positive_array
from gyroscope._types import Array, Number, Values


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


UNDETERMINED = Equilibrium(None, None, None, None)


@dataclass(frozen=True)
class Weights:
    """What a prediction may need to know about the weights; None where unknown. Arrays describe many layers at once."""

    fan_in: Any = None
    """entries of one vector"""
    unit_grad_norm: Any = None
    """RMS gradient norm times the weight norm"""
    shape: Any = None
    """of the whole tensor, outputs first as torch has it"""

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns of what Muon takes for one vector: the last two dimensions of a stack […, rows, columns].

        Where a vector has all entries of the tensor, as of a convolution, its outputs by all the rest.

        >>> Weights(64 * 32, shape=(8, 64, 32)).matrix, Weights(64 * 27, shape=(64, 3, 3, 3)).matrix
        ((64, 32), (64, 27))
        """
        if len(self.shape) < 2:
            raise ValueError(
                f"shape={self.shape!r}: Muon turns matrices; pass rows and columns, after those of a stack"
            )
        if self.fan_in is not None and np.all(self.fan_in == prod(self.shape)):
            return self.shape[0], prod(self.shape[1:])
        rows, columns = self.shape[-2:]
        return rows, columns

    @property
    def norm_of_matrix(self) -> Number:
        """Norm of that matrix over the norm of one vector of fan_in entries: Muon takes all of them for one."""
        return (prod(self.matrix) / self.fan_in) ** 0.5

    @classmethod
    def checked(
        cls,
        fan_in: npt.ArrayLike | None = None,
        unit_grad_norm: npt.ArrayLike | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> "Weights":
        """The same, validated; a shape also gives the fan-in of one row."""
        if shape is not None:
            if not isinstance(shape, tuple | list) or not all(isinstance(n, int) and n > 0 for n in shape) or not shape:
                raise ValueError(f"shape={shape!r} must be a tuple of positive whole numbers, for example (256, 128)")
            shape = tuple(shape)
            fan_in = prod(shape[1:]) if fan_in is None else fan_in
        return cls(
            None if fan_in is None else positive_array("fan_in", fan_in),
            None if unit_grad_norm is None else positive_array("unit_grad_norm", unit_grad_norm),
            shape,
        )


def law(decay: Number, tau: Number, update_rms: Number | None) -> Equilibrium:
    """The exact balance of  w <- (1-a) w - u  with u stationary and independent of the old w (`tau` is τ(a)).

        ‖ω‖² = update_rms² · τ(a) / (a (2-a)),    1 - cos η_r = a (2 - a - a τ(a)) / (2 (1-a) τ(a))     (ours)

    Derived in docs/theory.md, "The one law". RE's finite-rate forms (37) and (70) have τ(0) for τ(a) and give a larger
    norm: by 5 % at a = 0.01 and by 22 % at a = 0.05 for AdamW with β1 = 0.9.

    >>> f"{law(0.01, Correlation.of_average(0.9).time(0.01), 1.0).norm:.3f}"
    '29.526'
    """
    # With 1 - cos and not cos, for a leaves no digits beside 1.
    return Equilibrium(
        angular_update=turning_angle(decay * (2 - decay - decay * tau) / (2 * (1 - decay) * tau)),
        norm=None if update_rms is None else over(update_rms * tau**0.5, (decay * (2 - decay)) ** 0.5),
        update_rms=update_rms,
        timescale=forgetting_time(decay),
    )


def leading_order(decay: Number, tau: Number, update_rms: Number | None) -> Equilibrium:
    """The same to leading order in the decay: ‖ω‖² = update_rms² · τ / (2a), η_r = sqrt(2a/τ) (ours).

    For AdamW and SGDM it is RE Table 1.

    >>> f"{leading_order(0.01, 19.0, 1.0).norm:.3f}"
    '30.822'
    """
    return Equilibrium(
        angular_update=equilibrium_angle(decay, tau),
        norm=None if update_rms is None else over(update_rms * tau**0.5, (2 * decay) ** 0.5),
        update_rms=update_rms,
        timescale=forgetting_time(decay),
    )


def never_settles(update_rms: Number) -> Equilibrium:
    """Without decay nothing balances the growth: an ever larger norm, ever slower rotation."""
    # Sums and products with update_rms give the limits its shape, a number's or an array's.
    return Equilibrium(0.0 * update_rms, np.inf + update_rms, update_rms, np.inf + update_rms)


def equilibrium_angle(decay: Number, correlation_time: Number) -> Number:
    """Angle per step in equilibrium to leading order, in radians: η_r = sqrt(2a/τ) (ours; AdamW, SGDM: RE Table 1).

    >>> f"{equilibrium_angle(1e-4, 19.0):.5f}"
    '0.00324'
    """
    return (2 * decay / correlation_time) ** 0.5


def forgetting_time(decay: Number) -> Number:
    """Steps after which a direction is forgotten, 1/a (ours); infinite without decay.

    >>> forgetting_time(0.0), forgetting_time(0.01)
    (np.float64(inf), np.float64(100.0))
    """
    return over(np.float64(1), decay)


def turning_angle(shrink: Number) -> Number:
    """Angle of a step that keeps the norm and leaves 1 - shrink of the old vector, in radians: arccos(1 - shrink).

    >>> f"{turning_angle(1e-20):.3e}"
    '1.414e-10'
    """
    # arccos would lose all digits where shrink is below the rounding of 1.
    return 2 * np.arcsin((shrink / 2) ** 0.5)


def plain(value: Any) -> Values:
    """A float for an array without dimensions; other arrays as they are."""
    return float(value) if np.ndim(value) == 0 else value


def over(numerator: Number, denominator: Number) -> Number:
    """A quotient that is infinite, or NaN, where there is nothing to divide by: no decay, or a learning rate of 0.

    >>> float(over(1.0, 0.0)), float(over(0.0, 0.0))
    (inf, nan)
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.divide(numerator, denominator)


@dataclass(frozen=True)
class Correlation:
    """Autocorrelation of the update that falls geometrically: rho(k) = first · ratio^(k-1) for k ≥ 1.

    Momentum, Nesterov's momentum and Lion's interpolation all have this form (docs/theory.md, "Correlation times").
    """

    first: Number
    ratio: Number

    @classmethod
    def of_filter(cls, c0: Number, c1: Number, ratio: Number) -> "Correlation":
        """Of u_t = c0·g_t + c1·Σ_{i≥1} ratio^(i-1)·g_{t-i} with white g."""
        later = c1 * c1 / (1 - ratio * ratio)
        return cls((c0 * c1 + ratio * later) / (c0 * c0 + later), ratio)

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
    powers: Array
    weights: Array

    def time(self, a: Number = 0.0) -> Number:
        """τ(a) of the sum, power by power: each of them is geometric in k.

        >>> f"{OddCorrelation(Correlation.of_average(0.9), np.array([1.0]), np.array([1.0])).time():.0f}"
        '19'
        """
        keep = np.asarray(1 - a)[..., None]  # a may be an array: the powers take an axis of their own
        first = self.linear.first**self.powers
        ratio = self.linear.ratio**self.powers
        return 1 + 2 * (self.weights * first * keep / (1 - keep * ratio)).sum(-1)


@dataclass(frozen=True)
class SampledCorrelation:
    """Autocorrelation of the update by lag, from 1 on, for updates without a closed form."""

    by_lag: Array

    def time(self, a: Number = 0.0) -> Number:
        """Return τ(a) = 1 + 2 Σ_k rho(k) (1-a)^k.

        >>> f"{SampledCorrelation(0.9 ** np.arange(1, 400)).time():.2f}"
        '19.00'
        """
        keep = np.asarray(1 - a)[..., None]  # a may be an array: the lags take an axis of their own
        return 1 + 2 * (self.by_lag * keep ** np.arange(1, len(self.by_lag) + 1)).sum(-1)
