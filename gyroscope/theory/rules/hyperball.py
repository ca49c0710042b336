"""Hyperball: steps of a fixed relative length, with the norm restored after each."""

from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np

from gyroscope._checks import check_betas, check_fraction, check_non_negative
from gyroscope._types import Number
from gyroscope.theory.law import Correlation, Equilibrium, Weights, forgetting_time
from gyroscope.theory.recursion import Motion
from gyroscope.theory.rules.base import UpdateRule
from gyroscope.theory.rules.fixed_norm import FixedNormMotion

# Fixed-point iterations for the share of a direction that a step keeps. Each gains a digit or more below lr = 0.1.
ITERATIONS = 60


@final
@dataclass(frozen=True)
class Hyperball(UpdateRule):
    """Hyperball (AdamH, MuonH): W <- ρ·n(W - lr·ρ·n(u)) with ρ = ‖W_0‖ and n(x) = x/‖x‖, for the whole matrix.

    The update is not made tangent. Momentum points back along the weight, with cosine c, so a step rotates by less than
    lr:

        s = (1 - 2·lr·c + lr²)^(-1/2),  c = -lr·Σ_k s^k·ρ(k),  η_r = atan2(lr·sqrt(1-c²), 1-lr·c),  memory 1/(1-s)

    ρ(k) = β^k is the correlation of an average. Ours, docs/theory.md, "Hyperball". Rotation follows lr_t. Under weight
    decay it follows sqrt(lr_t). momentum, betas or correlation_time describes the momentum of the inner optimizer.
    Without any, c = 0 and the memory is None.

    lr                step length relative to the norm
    momentum          β of a plain average, as in SGD with momentum
    betas             those of Adam, of which the first counts
    correlation_time  τ of the updates, about 22.5 for Muon with momentum 0.95. A momentum beside it is the ratio by
                      which their correlation falls
    tangent           the update is made tangent first, as in Layca (2019), so that tan η_r = lr

    >>> eq = Hyperball(lr=0.018, momentum=0.95).equilibrium()
    >>> f"{eq.angular_update:.5f} rad/step, forgets in {eq.timescale:.0f} steps"
    '0.01703 rad/step, forgets in 177 steps'
    """

    lr: float
    momentum: float | None = field(default=None, kw_only=True)
    betas: tuple[float, float] | None = field(default=None, kw_only=True)
    correlation_time: float | None = field(default=None, kw_only=True)
    tangent: bool = field(default=False, kw_only=True)

    weight_decay: ClassVar[float] = 0.0  # type: ignore[misc]
    has_weight_decay: ClassVar[bool] = False
    keeps_norm: ClassVar[bool] = True
    angle_formula: ClassVar[str] = "η_r = atan2(lr·sqrt(1-c²), 1-lr·c); c: cosine of the update with the weight"
    needs: ClassVar[tuple[str, ...]] = ()
    norm_power: ClassVar[float] = 0.0
    motion_class: ClassVar[type[Motion]] = FixedNormMotion

    def __post_init__(self) -> None:
        check_non_negative("lr", self.lr)
        given = [name for name in ("momentum", "correlation_time", "betas") if getattr(self, name) is not None]
        if len(given) > 1 and self.betas is not None:
            raise ValueError(f"{' and '.join(given)} describe the same momentum. Pass one of them")
        if self.momentum is not None:
            check_fraction("momentum", self.momentum)
        if self.betas is not None:
            check_betas(self.betas)
        if self.correlation_time is not None and not self.correlation_time >= 1:
            raise ValueError(f"correlation_time={self.correlation_time!r} must be 1 (no momentum) or above")

    @property
    def momentum_factor(self) -> float:
        """β of the momentum, or of an average with the correlation time of the updates. 0 if neither is given."""
        if self.momentum is None and self.correlation_time is not None:
            return (self.correlation_time - 1) / (self.correlation_time + 1)
        return self.betas[0] if self.betas is not None else self.momentum or 0.0

    @property
    def correlation(self) -> Correlation:
        """ρ(k) of the updates, which falls by the momentum's factor."""
        beta = self.momentum_factor
        if self.correlation_time is None:
            return Correlation.of_average(beta)
        # The first value for which 1 + 2·Σρ(k) is the correlation time.
        return Correlation((self.correlation_time - 1) * (1 - beta) / 2, beta)

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Return the angle and the memory. Any norm stays as it is."""
        if leading:
            return Equilibrium(lr, None, None, None)
        if self.tangent:
            return Equilibrium(np.arctan(lr), None, None, None)
        correlation = self.correlation
        s: Number = 1 + 0 * lr
        for _ in range(ITERATIONS):
            cosine = -lr * (correlation.time(1 - s) - 1) / 2
            s = (1 - 2 * lr * cosine + lr * lr) ** -0.5
        cosine = np.maximum(cosine, -1.0)
        angle = np.arctan2(lr * (1 - cosine * cosine) ** 0.5, 1 - lr * cosine)
        given = (self.momentum, self.betas, self.correlation_time)
        memory = None if given == (None, None, None) else forgetting_time(1 - s)
        return Equilibrium(angle, None, None, memory)
