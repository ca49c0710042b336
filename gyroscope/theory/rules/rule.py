"""A user's own rule: the one law with a given decay, correlation time and size of the update."""

from dataclasses import dataclass
from typing import ClassVar, final

from gyroscope._checks import check_fraction, check_non_negative, check_positive
from gyroscope._types import Array, Number
from gyroscope.theory.law import Correlation, Equilibrium, Weights, law, leading_order
from gyroscope.theory.recursion import Motion, StationaryMotion, StationarySteps
from gyroscope.theory.rules.base import UpdateRule


@final
@dataclass(frozen=True)
class Rule(UpdateRule):
    """A user's own update rule, through the one law: w <- (1 - decay)·w - u.

    `correlation_time` is τ = 1 + 2 Σ_k rho(k) of u (1 without momentum, (1+β)/(1-β) for an average). The exact form
    assumes a geometric autocorrelation. `update_rms` is the RMS norm of one vector's u, and without it there are no
    norms. A schedule multiplies decay and update alike. Ours: docs/theory.md, "The one law".

    >>> mine = Rule(decay=1e-4, correlation_time=19.0, update_rms=0.01)
    >>> f"{mine.equilibrium().norm:.3f} {mine.equilibrium(leading_order=True).angular_update:.5f}"
    '3.081 0.00324'
    """

    decay: float
    correlation_time: float
    update_rms: float | None = None

    weight_decay: ClassVar[float] = 0.0  # type: ignore[misc]  # its decay is a fraction per step
    has_weight_decay: ClassVar[bool] = False
    lr: ClassVar[float] = 1.0  # type: ignore[misc]  # decay and update_rms are given per step
    motion_class: ClassVar[type[Motion]] = StationaryMotion

    def __post_init__(self) -> None:
        check_fraction("decay", self.decay)
        check_positive("correlation_time", self.correlation_time)
        if self.update_rms is not None:
            check_non_negative("update_rms", self.update_rms)

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """The size of its updates, if that is not given."""
        return ("update_rms",) if self.update_rms is None else ()

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Return the one law."""
        update_rms = None if self.update_rms is None else lr * self.update_rms
        if leading:
            return leading_order(lr * self.decay, self.correlation_time, update_rms)
        return law(lr * self.decay, self.correlation(weights).time(lr * self.decay), update_rms)

    def stationary_steps(self, lr: Array, weights: Weights) -> StationarySteps:
        """Return updates of known size. They are rough while a momentum that starts at zero fills."""
        assert self.update_rms is not None  # `needs` names it
        return StationarySteps(lr * self.decay, lr * self.update_rms, self.correlation(weights))

    def correlation(self, weights: Weights) -> Correlation:
        """Return the correlation of the average whose τ = (1+β)/(1-β) this is."""
        return Correlation.of_average((self.correlation_time - 1) / (self.correlation_time + 1))
