"""The one law of rotational equilibrium (ours, derived in docs/theory.md, "The one law").

Every update rule with weight decay takes the step  w <- (1 - a) w - u.  The fraction `a` of the weight decays, and u is
the gradient's part. Norm, angle per step and memory follow from `a`, the size of u, and its correlation time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import log, prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gyroscope._checks import positive_array
from gyroscope._types import Array, Number, Values


@dataclass(frozen=True)
class Equilibrium:
    """The values that a weight vector settles at, or None if the given inputs do not determine them.

    angular_update  radians per step
    norm            RMS norm of one vector
    update_rms      RMS size of the gradient's part of one step
    timescale       steps after which a direction is forgotten: cos∠(w_t, w_{t+k}) = e^(-k/timescale)
    """

    angular_update: Number | None
    norm: Number | None
    update_rms: Number | None
    timescale: Number | None

    @property
    def half_life(self) -> Number | None:
        """Steps after which the cosine with an earlier direction has halved: ln 2 × timescale."""
        return None if self.timescale is None else log(2) * self.timescale


@dataclass(frozen=True)
class Weights:
    """Facts about the weights that a prediction may need, or None if unknown. Arrays describe many layers at once."""

    fan_in: Any = None  # entries of one vector
    unit_grad_norm: Any = None  # RMS gradient norm times the weight norm
    shape: Any = None  # of the whole tensor, outputs first as in torch

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns of the matrix that Muon rotates: the last two dimensions of a stack […, rows, columns].

        If a vector has all entries of the tensor, as in a convolution, the rows are its outputs. If it is a block of
        rows, as with Muon per head, the rows are those of the block.

        >>> Weights(64 * 32, shape=(8, 64, 32)).matrix, Weights(64 * 27, shape=(64, 3, 3, 3)).matrix
        ((64, 32), (64, 27))
        >>> Weights(16 * 32, shape=(64, 32)).matrix
        (16, 32)
        """
        if len(self.shape) < 2:
            raise ValueError(
                f"shape={self.shape!r}: Muon rotates matrices. Pass rows and columns, after the dimensions of a stack"
            )
        if self.fan_in is not None and np.all(self.fan_in == prod(self.shape)):
            return self.shape[0], prod(self.shape[1:])
        rows, columns = self.shape[-2:]
        if self.fan_in is not None and np.all(self.fan_in == np.max(self.fan_in)):
            block, rest = divmod(int(np.max(self.fan_in)), columns)
            if not rest and 1 < block < rows:
                return block, columns
        return rows, columns

    @property
    def norm_of_matrix(self) -> Number:
        """Norm of that matrix over the norm of one vector of fan_in entries."""
        return (prod(self.matrix) / self.fan_in) ** 0.5

    @classmethod
    def checked(
        cls,
        fan_in: npt.ArrayLike | None = None,
        unit_grad_norm: npt.ArrayLike | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> "Weights":
        """Return validated weights. A shape also gives the fan-in of one row."""
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
    """Return the exact balance of  w <- (1-a) w - u  with stationary u, independent of the old w. `tau` is τ(a).

        ‖ω‖² = update_rms² · τ(a) / (a (2-a)),    1 - cos η_r = a (2 - a - a τ(a)) / (2 (1-a) τ(a))     (ours)

    RE's finite-rate forms (37) and (70) have τ(0) instead of τ(a) and give a larger norm, by 5 % at a = 0.01 and 22 %
    at a = 0.05 for AdamW with β1 = 0.9.

    >>> f"{law(0.01, Correlation.of_average(0.9).time(0.01), 1.0).norm:.3f}"
    '29.526'
    """
    return Equilibrium(
        # From 1 - cos, because cos would lose the digits of a small angle.
        angular_update=rotation_angle(decay * (2 - decay - decay * tau) / (2 * (1 - decay) * tau)),
        norm=None if update_rms is None else safe_divide(update_rms * tau**0.5, (decay * (2 - decay)) ** 0.5),
        update_rms=update_rms,
        timescale=forgetting_time(decay),
    )


def leading_order(decay: Number, tau: Number, update_rms: Number | None) -> Equilibrium:
    """Return the law to leading order in the decay: ‖ω‖² = update_rms² · τ / (2a), η_r = sqrt(2a/τ) (ours).

    For AdamW and SGDM it is RE Table 1.

    >>> f"{leading_order(0.01, 19.0, 1.0).norm:.3f}"
    '30.822'
    """
    return Equilibrium(
        angular_update=equilibrium_angle(decay, tau),
        norm=None if update_rms is None else safe_divide(update_rms * tau**0.5, (2 * decay) ** 0.5),
        update_rms=update_rms,
        timescale=forgetting_time(decay),
    )


def balanced(
    decay: Number, tau: Callable[[Number], Number], update_rms: Number | None, *, leading: bool
) -> Equilibrium:
    """Return the law for updates with the correlation time τ(a) = `tau`, exactly or to leading order."""
    return leading_order(decay, tau(0.0), update_rms) if leading else law(decay, tau(decay), update_rms)


def never_settles(update_rms: Number) -> Equilibrium:
    """Return the limit without decay: the norm grows forever, and the rotation slows down."""
    # Sums and products with update_rms give the limits its shape.
    return Equilibrium(0.0 * update_rms, np.inf + update_rms, update_rms, np.inf + update_rms)


def equilibrium_angle(decay: Number, correlation_time: Number) -> Number:
    """Return the angle per step in equilibrium to leading order, in radians: η_r = sqrt(2a/τ) (ours).

    >>> f"{equilibrium_angle(1e-4, 19.0):.5f}"
    '0.00324'
    """
    return (2 * decay / correlation_time) ** 0.5


def forgetting_time(decay: Number) -> Number:
    """Return the steps after which a direction is forgotten, 1/a (ours). It is infinite without decay.

    >>> forgetting_time(0.0), forgetting_time(0.01)
    (np.float64(inf), np.float64(100.0))
    """
    return safe_divide(np.float64(1), decay)


def angle_to_start(initial_norm: Number, norm: Number, total_decay: Number) -> Number:
    """Return the angle between the initial and the current weights after a walk in noise, in radians.

        cos θ = ‖w_0‖·e^(-X)/‖w_t‖,   e^(-X) = Π(1-a)     (ours: docs/theory.md, "A run shorter than its memory")

    It holds if gradients are noise. A signal adds up, so a network is further from its start. It is NaN if the decay is
    unknown.

    >>> f"{angle_to_start(1.0, 1.2, total_decay=0.5):.3f}"
    '1.041'
    """
    # Rounding may exceed 1 before the first rotation.
    return np.arccos(np.minimum(initial_norm * np.exp(-total_decay) / norm, 1.0))


def rotation_angle(shrink: Number) -> Number:
    """Return the angle of a step that keeps the norm and 1 - shrink of the old vector: arccos(1 - shrink), in radians.

    >>> f"{rotation_angle(1e-20):.3e}"
    '1.414e-10'
    """
    # arccos would lose all digits if shrink is below the rounding of 1.
    return 2 * np.arcsin((shrink / 2) ** 0.5)


def plain(value: Any) -> Values:
    """Return an array without dimensions as a float, and other arrays unchanged."""
    return float(value) if np.ndim(value) == 0 else value


def safe_divide(numerator: Number, denominator: Number) -> Number:
    """Return a quotient that is infinite or NaN if the denominator is 0, as without decay or at a learning rate of 0.

    >>> float(safe_divide(1.0, 0.0)), float(safe_divide(0.0, 0.0))
    (inf, nan)
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.divide(numerator, denominator)


@dataclass(frozen=True)
class Correlation:
    """Autocorrelation of the update that falls geometrically: rho(k) = first · ratio^(k-1) for k ≥ 1.

    Momentum, Nesterov's momentum and Lion's interpolation have this form (docs/theory.md, "Correlation times").
    """

    first: Number
    ratio: Number

    @classmethod
    def of_filter(cls, c0: Number, c1: Number, ratio: Number) -> "Correlation":
        """Return the correlation of u_t = c0·g_t + c1·Σ_{i≥1} ratio^(i-1)·g_{t-i} with white g."""
        later = c1 * c1 / (1 - ratio * ratio)
        return cls((c0 * c1 + ratio * later) / (c0 * c0 + later), ratio)

    @classmethod
    def of_average(cls, beta: Number) -> "Correlation":
        """Return the correlation of an exponential moving average: rho(k) = beta^k."""
        return cls(beta, beta)

    def time(self, a: Number = 0.0) -> Number:
        """Return τ(a) = 1 + 2 Σ_k rho(k) (1-a)^k, the steps over which updates add up in one direction.

        >>> Correlation.of_average(0.9).time()
        19.000000000000004
        """
        return 1 + 2 * self.first * (1 - a) / (1 - self.ratio * (1 - a))

    @property
    def mean_lag(self) -> Number:
        """Σ_k k·rho(k) / Σ_k rho(k), in steps."""
        return 1 / (1 - self.ratio)


@dataclass(frozen=True)
class OddCorrelation:
    """Correlation of an odd function of Gaussians, a sign or an orthogonalisation: Σ_n weights_n·rho(k)^powers_n."""

    linear: Correlation
    powers: Array
    weights: Array

    def time(self, a: Number = 0.0) -> Number:
        """Return τ(a), a sum over powers, each of which is geometric in k.

        >>> f"{OddCorrelation(Correlation.of_average(0.9), np.array([1.0]), np.array([1.0])).time():.0f}"
        '19'
        """
        keep = np.asarray(1 - a)[..., None]  # a may be an array, so the powers take an axis of their own
        first = self.linear.first**self.powers
        ratio = self.linear.ratio**self.powers
        return 1 + 2 * (self.weights * first * keep / (1 - keep * ratio)).sum(-1)

    @cached_property
    def mean_lag(self) -> float:
        """Σ_k k·rho(k) / Σ_k rho(k), in steps. 1 if nothing is correlated."""
        room = 1 - self.linear.ratio**self.powers
        sums = self.weights * self.linear.first**self.powers / room
        return float((sums / room).sum() / sums.sum()) if self.linear.first else 1.0


@dataclass(frozen=True)
class SampledCorrelation:
    """Autocorrelation of the update by lag, from 1 on, for updates without a closed form."""

    by_lag: Array

    def time(self, a: Number = 0.0) -> Number:
        """Return τ(a) = 1 + 2 Σ_k rho(k) (1-a)^k.

        >>> f"{SampledCorrelation(0.9 ** np.arange(1, 400)).time():.2f}"
        '19.00'
        """
        keep = np.asarray(1 - a)[..., None]
        return 1 + 2 * (self.by_lag * keep ** np.arange(1, len(self.by_lag) + 1)).sum(-1)

    @cached_property
    def mean_lag(self) -> float:
        """Σ_k k·rho(k) / Σ_k rho(k), in steps."""
        return float(np.arange(1, len(self.by_lag) + 1) @ self.by_lag / self.by_lag.sum())


AnyCorrelation: TypeAlias = Correlation | OddCorrelation | SampledCorrelation
