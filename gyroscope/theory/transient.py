"""On the way into equilibrium and out of it again, in closed form: what a forecast shows, at a glance."""

from math import pi
from typing import Literal

from gyroscope.theory.recursion import Number

NEVER, SETTLES = 0.3, 3.0
"""Total decay X = Σ a_t below which a run never settles, and above which it does."""


def settling(total_decay: float) -> Literal["never", "partly", "settles"]:
    """Whether a run reaches its equilibrium, from X = Σ a_t: the weight it began with shrinks by e^-X.

    nanoGPT's shakespeare-char has X ≈ 0.27, GPT-2 124M about 20.

    >>> settling(0.27), settling(20)
    ('never', 'settles')
    """
    return "never" if total_decay < NEVER else "partly" if total_decay < SETTLES else "settles"


def adamw_norm2(t: Number, start2: Number, equilibrium2: Number, decay: Number) -> Number:
    """E‖ω_t‖² on the way from start2 to equilibrium2 at constant decay, in closed form (RE 36):

        ‖ω_t‖² = ‖ω_0‖²·A^t + ‖ω̂‖²·(1 - A^t),  A = (1-a)²

    Up to 11 % off in mid-transient, for Adam's v remembers the larger gradients of a smaller weight: `forecast` knows.

    >>> adamw_norm2(0, 1.0, 4.0, 0.01), f"{adamw_norm2(500, 1.0, 4.0, 0.01):.3f}"
    (1.0, '4.000')
    """
    remaining = (1 - decay) ** (2 * t)
    return start2 * remaining + equilibrium2 * (1 - remaining)


def falls_out_before_end(
    schedule: Literal["linear", "cosine"], steps: Number, decay: Number, norm_power: float = 0.5
) -> Number:
    """Steps before the end at which a decay to zero over `steps` steps from a0 = `decay` leaves equilibrium.

        linear: sqrt(2x²T/a0),   cosine: (16x²T²/(π²a0))^(1/3),   x = norm_power

    There the equilibrium norm ∝ lr^x falls as fast as the norm, whose square relaxes by a/x per step, can follow:
    x = 1/2 for AdamW and Lion, 1/4 for SGDM with a0 = lr·λ/(1-α). Ours.

    >>> f"{falls_out_before_end('cosine', 10_000, 1e-3):.0f}"
    '3435'
    """
    if schedule == "linear":
        return (2 * norm_power**2 * steps / decay) ** 0.5
    return (16 * norm_power**2 * steps**2 / (pi**2 * decay)) ** (1 / 3)


def end_norm_ratio(total_decay: Number, norm_power: float = 0.5) -> Number:
    """Norm at the end of a linear decay to zero over its peak norm, for a total decay X above 5. Ours.

        (sqrt(π/8) / sqrt(X/(2x)))^x,   x = norm_power

    >>> f"{end_norm_ratio(20.0) ** 2:.3f}"
    '0.140'
    """
    return ((pi / 8) / (total_decay / (2 * norm_power))) ** (norm_power / 2)
