"""The way into equilibrium and out of it again, in closed form: does a run settle, and when does it fall out?"""

import math
from typing import Literal

from gyroscope._types import Number

# Total decay X = Σ a_t below which a run never settles: three quarters of the initial weight are still there.
NEVER = 0.3
# Total decay from which on a run is longer than its memory, and equilibrium is what to compare with: 1/e of the initial
# weight is left. Below it the forecast from the start is: right to 7-23 % for a char-GPT with X = 0.11, whose
# equilibrium is off by 74 %.
MEMORY_PASSED = 1.0
# Total decay above which a run settles: a twentieth of the initial weight is left.
SETTLES = 3.0


def settling(total_decay: float) -> Literal["never", "partly", "settles"]:
    """Whether a run reaches its equilibrium, from X = Σ a_t: the weight it began with shrinks by e^-X (ours).

    nanoGPT's shakespeare-char has X ≈ 0.27, GPT-2 124M about 20. docs/theory.md, "Settling and falling out".

    >>> settling(0.27), settling(20)
    ('never', 'settles')
    """
    if total_decay < NEVER:
        return "never"
    return "partly" if total_decay < SETTLES else "settles"


def falls_out_before_end(
    schedule: Literal["linear", "cosine"], steps: Number, decay: Number, norm_power: float = 0.5
) -> Number:
    """Steps before the end at which a decay to zero over `steps` steps from a0 = `decay` leaves equilibrium.

        linear: sqrt(2x²T/a0),   cosine: (16x²T²/(π²a0))^(1/3),   x = norm_power     (ours)

    There the equilibrium norm ∝ lr^x falls as fast as the norm, whose square relaxes by a/x per step, can follow:
    x = 1/2 for AdamW and Lion, 1/4 for SGDM with a0 = lr·λ/(1-α). Derived in docs/theory.md, "Settling and falling
    out".

    >>> f"{falls_out_before_end('cosine', 10_000, 1e-3):.0f}"
    '3435'
    """
    if schedule == "linear":
        return (2 * norm_power**2 * steps / decay) ** 0.5
    return (16 * norm_power**2 * steps**2 / (math.pi**2 * decay)) ** (1 / 3)


def end_norm_ratio(total_decay: Number, norm_power: float = 0.5) -> Number:
    """Norm at the end of a linear decay to zero over its peak norm, for a total decay X above 5.

        (sqrt(π/8)/sqrt(X/(2x)))^x,   x = norm_power     (ours: docs/theory.md, "Settling and falling out")

    >>> f"{end_norm_ratio(20.0) ** 2:.3f}"
    '0.140'
    """
    return ((math.pi / 8) / (total_decay / (2 * norm_power))) ** (norm_power / 2)
