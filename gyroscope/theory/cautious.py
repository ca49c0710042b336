"""Cautious weight decay: only entries decay whose update has the sign that would shrink them (Chen et al. 2025).

    w' = w - u - a·mask⊙w,   mask = [u·w ≥ 0] entry by entry

If entries of w and u are Gaussian, the masked weight is a multiple of w, a push along u and noise. So the one law holds
with another decay and update. Ours: docs/theory.md, "Cautious decay".
"""

from collections.abc import Callable
from math import pi
from typing import Any, NamedTuple, final

import numpy as np

from gyroscope._types import Array, Number
from gyroscope.theory.law import Equilibrium, Weights, forgetting_time, leading_order, rotation_angle, safe_divide
from gyroscope.theory.recursion import LinearSteps, Motion, Step

# Share of the entries that decay if update and weight are independent.
HALF = 0.5
# The density of a Gaussian at its mean.
PEAK = (2 * pi) ** -0.5
# Takes the place of 0 at a learning rate of 0, so that ratios of a step to its decay and update stay finite.
TINY = 1e-60


class MaskedDecay(NamedTuple):
    """The effect of a cautious decay on a weight: w' = (1-decay)·w - push·u - noise."""

    decay: Number  # fraction of the weight that decays per step
    push: Number  # factor by which the update grows, because it shrinks the entries that decay
    noise: Number  # mean square of what is neither along w nor along u, over E‖w‖²
    sign_overlap: Number  # E⟨u, noise⟩ over sqrt(E‖u‖²·E‖w‖²) if u is a sign


def masked_decay(decay: Number, correlation: Number, length: Number) -> MaskedDecay:
    """Return the effect on Gaussian entries, from E⟨w,u⟩/sqrt(E‖w‖²·E‖u‖²) and length = sqrt(E‖w‖²/E‖u‖²).

        decay·(1/2 + arcsin(r)/π),   push = 1 + decay·sqrt(1-r²)/π·length     (ours)

    >>> masked_decay(0.01, 0.0, 0.0).decay
    np.float64(0.005)
    """
    r = np.minimum(np.maximum(correlation, -1.0), 1.0)  # rounding may lead beyond
    across = np.sqrt(1 - r * r) / pi
    above_half = np.arcsin(r) / pi
    radial = r * across
    noise = HALF**2 - above_half * (above_half + 2 * radial) - across * across
    overlap = (1 - 2 * (r * above_half + across)) * PEAK
    return MaskedDecay(decay * (HALF + above_half), 1 + decay * across * length, decay * decay * noise, decay * overlap)


def cautious_equilibrium(
    decay: Number,
    update_rms: Number | None,
    time: Callable[[Number], Number],
    *,
    linear_time: Callable[[Number], Number] | None = None,
    excess: float = 1.0,
    leading: bool = False,
) -> Equilibrium:
    """Return the one law for updates with τ(a) = `time` and cautious decay. To leading order half of the decay acts.

    If the update is the sign of a Gaussian, `linear_time` is the Gaussian's τ(a), and E‖u‖² is `excess` times that of
    the linear part.

    >>> eq = cautious_equilibrium(1e-4, 0.01, lambda a: (1.9 - 0.9 * a) / (0.1 + 0.9 * a))
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm:.3f}, forgets in {eq.timescale:.0f} steps"
    '0.00228 rad/step at norm 4.449, forgets in 20265 steps'
    """
    if leading:
        return leading_order(HALF * decay, time(0.0), update_rms)
    linear_time = time if linear_time is None else linear_time
    a = np.maximum(decay, TINY)
    linear2 = 1 / excess  # this and norm2 are in units of E‖u‖²
    masked = MaskedDecay(HALF * a, 1.0, 0.0, 0.0)
    # Each round divides the error of the correlation by about π/sqrt(a·τ).
    for _ in range(200):
        before = masked
        pushed2 = (before.push**2 - 1) * linear2
        growth = time(before.decay) + pushed2 * linear_time(before.decay)
        norm2 = growth / (before.decay * (2 - before.decay) - before.noise)
        aligned = -before.push * linear2 * (linear_time(before.decay) - 1) / (2 * (1 - before.decay))
        masked = masked_decay(a, aligned / (norm2 * linear2) ** 0.5, (norm2 / linear2) ** 0.5)
        if np.max(np.abs(masked.decay / before.decay - 1)) < 1e-13:
            break
    square = 1 + pushed2 + masked.noise * norm2
    if excess > 1:
        square = square + 2 * masked.sign_overlap * norm2**0.5
    # E⟨w, u⟩, with push and noise, keeps the norm constant.
    cross = (square - masked.decay * (2 - masked.decay) * norm2) / (2 * (1 - masked.decay))
    settles = np.where(decay > 0, 1.0, 0.0)
    acts = decay * (masked.decay / a)
    return Equilibrium(
        angular_update=rotation_angle(acts * (1 + cross / (norm2 * masked.decay))),
        norm=None if update_rms is None else safe_divide(update_rms * norm2**0.5, settles),
        update_rms=update_rms,
        timescale=forgetting_time(acts),
    )


@final
class CautiousLinearMotion(Motion):
    """Motion of a rule with `linear_steps` under cautious decay, whose share depends on the current moments.

    y = E‖w‖², p = E⟨w,m⟩ and q = E‖m‖² as in `LinearMotion`. L is the linear part of u.
    """

    def __init__(self, rule: Any, norm2: Array) -> None:
        super().__init__(rule, norm2)
        self._p, self._q, self._D = np.zeros((3, norm2.size))

    def _block(self, lr: Array, weights: Weights) -> Step:
        steps: LinearSteps = self.rule.linear_steps(lr, self.done, weights)
        assert steps.D is not None  # the gradient's scale cancels, so E‖g‖²·E‖w‖² may be 1
        old, new = steps.update.momentum, steps.update.gradient
        keep, share = steps.momentum.momentum, steps.momentum.gradient
        decay, cross, square, norm2 = np.empty((4, len(lr), self.norm2.size))
        coupling = np.ones(len(lr)) if steps.coupling is None else steps.coupling
        y = self.norm2
        for t in range(len(lr)):
            g2 = steps.unit_grad2 / y
            self._D = steps.D.keep * self._D + steps.D.momentum * self._q + g2
            s = steps.scale[t] * np.sqrt(steps.size / self._D)
            along = s * old * self._p  # E⟨w, L⟩
            linear2 = np.maximum(s * s * (old * old * self._q + new * new * g2), TINY * y)
            masked = masked_decay(steps.decay[t], along / np.sqrt(y * linear2), np.sqrt(y / linear2))
            left = 1 - masked.decay
            decay[t] = masked.decay
            cross[t] = masked.push * along
            square[t] = (masked.push**2 + steps.excess - 1) * linear2 + masked.noise * y
            norm2[t] = left**2 * y - 2 * left * cross[t] + square[t]
            if steps.excess > 1:  # a sign: longer steps that point outwards less
                longer = 2 * masked.sign_overlap * np.sqrt(steps.excess * linear2 * y)
                square[t] += longer
                cross[t] += longer / (2 * left)
            taken_in = old * keep * self._q + new * share * g2
            self._p = left * keep * self._p - masked.push * s * coupling[t] * taken_in
            self._q = keep * keep * self._q + share * share * g2
            y = norm2[t]
        return Step(decay, cross, square, norm2)


@final
class CautiousStationaryMotion(Motion):
    """Motion of a rule with `stationary_steps`, such as Muon, under cautious decay."""

    def __init__(self, rule: Any, norm2: Array) -> None:
        super().__init__(rule, norm2)
        self._overlap = np.zeros_like(norm2)  # E⟨w, u⟩ / update_rms

    def _block(self, lr: Array, weights: Weights) -> Step:
        decays, update_rms, correlation, _ = self.rule.stationary_steps(lr, weights)
        first = np.broadcast_to(correlation.first, len(lr))
        decay, cross, square, norm2 = np.empty((4, len(lr), self.norm2.size))
        y = self.norm2
        for t in range(len(lr)):
            rms = np.maximum(update_rms[t], np.sqrt(TINY * y))
            masked = masked_decay(decays[t], self._overlap / np.sqrt(y), np.sqrt(y) / rms)
            left = 1 - masked.decay
            decay[t] = masked.decay
            cross[t] = masked.push * rms * self._overlap
            square[t] = masked.push**2 * rms**2 + masked.noise * y
            norm2[t] = left**2 * y - 2 * left * cross[t] + square[t]
            self._overlap = left * correlation.ratio * self._overlap - first[t] * masked.push * rms
            y = norm2[t]
        return Step(decay, cross, square, norm2)
