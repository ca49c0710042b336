"""Rules that keep each vector's norm: the update is made tangent and scaled, and the norm is restored."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np

from gyroscope._checks import check_betas, check_fraction, check_non_negative, check_positive
from gyroscope._types import Array, Number
from gyroscope.theory.law import Correlation, Equilibrium, Weights, forgetting_time
from gyroscope.theory.recursion import Guess, Improve, Moments, Motion, Series, Step
from gyroscope.theory.rules.base import UpdateRule
from gyroscope.theory.rules.decoupled import DecoupledRule, decay_at

# The largest angle in radians. A step along the tangent, however long, rotates by less than π/2.
STEEPEST = 1.5
# Fixed-point iterations for the share of a direction that a Hyperball step keeps. Each gains a digit or more below
# lr = 0.1.
ITERATIONS = 60


@final
class FixedNormMotion(Motion):
    """Tangent steps at a constant norm, by the rule's angle or those of a base rule from the same norm."""

    def __init__(self, rule: Any, norm2: Array) -> None:
        super().__init__(rule, norm2)
        self._base = rule.plain.motion(norm2.copy()) if rule.follows_base else None

    def _improve(self, lr: Array, weights: Weights) -> Improve:
        settled = self.rule.at(lr[:, None], weights)
        angle = settled.angular_update
        if self._base is not None:
            before2 = self._base.norm2
            self._base.rule = self.rule.plain
            angle = np.minimum(self._base.advance(lr, weights).angles(before2), STEEPEST)
        square = np.tan(angle) ** 2 * self.norm2
        zero = np.zeros((len(lr), 1))
        forgets = np.broadcast_to(np.nan if settled.timescale is None else 1 / settled.timescale, square.shape)

        def improve(part: slice, guess: Guess) -> tuple[Step, Moments]:
            norm2 = guess["norm2"]
            return Step(zero[part], zero[part], square[part], norm2, forgets[part]), {"norm2": Series(norm2, norm2)}

        return improve


@final
@dataclass(frozen=True)
class FixedNorm(UpdateRule):
    """A rotational optimizer (RE Algorithm 1): norms stay, and tan η_r(t) = sqrt(2·a_t/τ) of `rule` in each step.

    With `follows_base` (`gyroscope.optim.follow`) each step rotates as under `rule` from the same initial norm.

    With a `radius` weights take steps of `rule`, and each vector is set to that norm afterwards, as in nGPT. That is
    Hyperball with a relative step of lr·‖u‖/radius, or lr·sqrt(C(1-β1)/(1+β1)) for AdamW at radius 1 (ours).

    >>> from gyroscope.theory import AdamW
    >>> f"{FixedNorm(AdamW(1e-3, 0.1)).equilibrium().angular_update:.5f}"
    '0.00324'
    """

    rule: UpdateRule
    follows_base: bool = False
    radius: float | None = field(default=None, repr=False)

    weight_decay: ClassVar[float] = 0.0  # type: ignore[misc]  # the inner rule's sets the angle
    has_weight_decay: ClassVar[bool] = False
    keeps_norm: ClassVar[bool] = True
    angle_formula: ClassVar[str] = "tan η_r = sqrt(2a/τ), a: decay per step, τ: correlation time of the updates"
    norm_power: ClassVar[float] = 0.0
    motion_class: ClassVar[type[Motion]] = FixedNormMotion

    def __post_init__(self) -> None:
        if self.radius is not None:
            check_positive("radius", self.radius)
            if not isinstance(self.rule, DecoupledRule):
                raise ValueError(
                    f"radius needs a rule whose updates have a known size, such as AdamW, not {self.rule!r}"
                )

    @property
    def lr(self) -> float:  # type: ignore[override]
        """The rule's."""
        return self.rule.lr

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """The inputs of the base if it is followed, else the shape if the rule's angle depends on it."""
        if self.follows_base or self.radius is not None:
            return self.rule.needs
        return tuple(name for name in self.rule.needs if name == "shape")

    @property
    def angle_exponent(self) -> float:
        """The rule's, or 1 at a radius, because steps follow lr."""
        return self.rule.angle_exponent if self.radius is None else 1.0

    @property
    def plain(self) -> UpdateRule:
        """The rule that sets the angle."""
        return self.rule

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Return the angle, and the rule's memory 1/a. Norms stay as they are."""
        if self.radius is not None:
            return self._at_radius(self.radius, lr, weights, leading)
        settled = self.rule.at(lr, weights, leading=True)
        tangent: Number = settled.angular_update
        known = tangent is not None and not leading
        return Equilibrium(np.arctan(tangent) if known else tangent, None, None, settled.timescale)

    def _at_radius(self, radius: float, lr: Number, weights: Weights, leading: bool) -> Equilibrium:
        """Return Hyperball's angle for the rule's steps. Decay shortens the weight before the step."""
        assert isinstance(self.rule, DecoupledRule)
        size, _ = self.rule.unit_update(weights)
        if size is None:
            return Equilibrium(None, None, None, None)
        ball = Hyperball(0.0, momentum=self.rule.momentum_factor)
        return ball.at(lr * size / (radius * (1 - decay_at(self.rule, lr))), weights, leading=leading)


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
    betas             Adam's. Only the first counts
    correlation_time  τ of the updates, about 22.5 for Muon with momentum 0.95. If momentum is given too, it is the
    ratio by which their correlation falls
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
    angle_formula: ClassVar[str] = "η_r = atan2(lr·sqrt(1-c²), 1-lr·c), c: cosine of the update with the weight"
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

    def correlation(self, weights: Weights) -> Correlation:
        """Return ρ(k) of the updates, which falls by the momentum's factor."""
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
        correlation = self.correlation(weights)
        s: Number = 1 + 0 * lr
        for _ in range(ITERATIONS):
            before = s
            cosine = -lr * (correlation.time(1 - s) - 1) / 2
            s = (1 - 2 * lr * cosine + lr * lr) ** -0.5
            if np.max(np.abs(s - before)) < 1e-16:
                break
        cosine = np.maximum(cosine, -1.0)
        angle = np.arctan2(lr * (1 - cosine * cosine) ** 0.5, 1 - lr * cosine)
        given = (self.momentum, self.betas, self.correlation_time)
        memory = None if given == (None, None, None) else forgetting_time(1 - s)
        return Equilibrium(angle, None, None, memory)
