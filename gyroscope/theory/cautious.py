"""Cautious weight decay: an entry decays only if its update would shrink it too (Chen et al. 2025).

    w' = w - u - a·mask⊙w,   mask = [u·w ≥ 0] entry by entry

If entries of w and u are Gaussian, the masked weight is a multiple of w, a push along u and noise. So the one law holds
with another decay and update. Ours: docs/theory.md, "Cautious decay".
"""

from collections.abc import Callable
from dataclasses import replace
from math import pi
from typing import Any, NamedTuple

import numpy as np

from gyroscope._types import Array, Number
from gyroscope.theory.law import Equilibrium, Weights, forgetting_time, leading_order, rotation_angle, safe_divide

# Share of the entries that decay if update and weight are independent.
HALF = 0.5
# The density of a Gaussian at its mean.
PEAK = (2 * pi) ** -0.5
# Replaces a learning rate of 0, so that ratios of a step to its decay and update stay finite.
TINY = 1e-60


class MaskedDecay(NamedTuple):
    """The effect of a cautious decay on a weight: w' = (1-decay)·w - push·u - noise."""

    decay: Number  # fraction of the weight that decays per step
    push: Number = 1.0  # factor by which the update grows, because it shrinks the entries that decay
    noise: Number = 0.0  # mean square of the part orthogonal to w and u, over E‖w‖²
    sign_overlap: Number = 0.0  # E⟨u, noise⟩ over sqrt(E‖u‖²·E‖w‖²) if u is a sign


def masked_decay(decay: Number, correlation: Number, length: Number) -> MaskedDecay:
    """Return the effect on Gaussian entries, from E⟨w,u⟩/sqrt(E‖w‖²·E‖u‖²) and length = sqrt(E‖w‖²/E‖u‖²).

        decay·(1/2 + arcsin(r)/π),   push = 1 + decay·sqrt(1-r²)/π·length     (ours)

    >>> masked_decay(0.01, 0.0, 0.0).decay
    np.float64(0.005)
    """
    r = np.minimum(np.maximum(correlation, -1.0), 1.0)  # rounding may exceed 1
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
    masked = MaskedDecay(HALF * a)
    # Each round divides the error of the correlation by about π/sqrt(a·τ).
    for _ in range(200):
        before = masked
        pushed2 = (before.push**2 - 1) * linear2
        growth = time(before.decay) + pushed2 * linear_time(before.decay)
        norm2 = growth / (before.decay * (2 - before.decay) - before.noise)
        radial = -before.push * linear2 * (linear_time(before.decay) - 1) / (2 * (1 - before.decay))
        masked = masked_decay(a, radial / (norm2 * linear2) ** 0.5, (norm2 / linear2) ** 0.5)
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


def plain_equivalent(rule: Any, lr: Array, weights: Weights) -> tuple[Any, Array]:
    """Return the rule and learning rates whose plain decay settles at the norm and timescale of this cautious decay.

    Motions take such steps. Other rules and their learning rates are returned as they are.
    """
    if not rule.cautious_decay:
        return rule, lr
    one = replace(weights, fan_in=None if weights.fan_in is None else np.ravel(weights.fan_in)[:1])
    settled = rule.at(lr, one)
    acts = 1 / settled.timescale
    plain = rule.during(cautious_decay=False, corrected_decay=False, weight_decay=acts / np.maximum(lr, TINY))
    # Without decay both norms are infinite.
    longer = np.where(acts > 0, safe_divide(settled.norm, plain.at(lr, one).norm), 1.0)
    return plain.during(weight_decay=plain.weight_decay / longer), lr * longer
