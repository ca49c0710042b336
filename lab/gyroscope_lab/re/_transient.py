"""The way into equilibrium in RE's closed form, for constant settings."""

from gyroscope.tools import Number


def adamw_norm2(t: Number, start2: Number, equilibrium2: Number, decay: Number) -> Number:
    """Return E‖ω_t‖² on the way from start2 to equilibrium2 at constant decay, in closed form:

        ‖ω_t‖² = ‖ω_0‖²·A^t + ‖ω̂‖²·(1 - A^t),  A = (1-a)²     (RE 36)

    It is up to 11 % off in mid-transient, because Adam's v remembers the larger gradients of a smaller weight.
    `forecast` follows v too.

    >>> adamw_norm2(0, 1.0, 4.0, 0.01), f"{adamw_norm2(500, 1.0, 4.0, 0.01):.3f}"
    (1.0, '4.000')
    """
    remaining = (1 - decay) ** (2 * t)  # A^t
    return start2 * remaining + equilibrium2 * (1 - remaining)
