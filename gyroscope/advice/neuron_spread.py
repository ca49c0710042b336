"""How differently the neurons of a layer rotate under white noise alone."""

from statistics import NormalDist

import numpy as np

from gyroscope.advice import thresholds as limit


def noise_ratio(fan_in: int, vectors: int, *, samples: int = 1, spacing: float = 1.0, momentum: float = 0.0) -> float:
    """Return the 95th over the 5th percentile of the vectors' mean angles if only white noise rotates them.

        angle ∝ χ_{C-1},  χ²_p ≈ n·(1 - 2/(9n) + z_p·sqrt(2f/(9n)))³ with n = C-1     (Wilson and Hilferty)
        f = (1 + 2 Σ_{k<N} (1 - k/N)·ρ^k)/N,  ρ = β^(2·spacing)

    Ours. A step's length is that of a Gaussian vector of C - 1 free entries. Squared lengths `spacing` steps apart
    correlate by the square of the momentum's correlation. Percentiles of `vectors` values are Blom's.

    >>> f"{noise_ratio(64, 1000):.2f} {noise_ratio(64, 1000, samples=20, spacing=10, momentum=0.9):.2f}"
    '1.34 1.08'
    """
    # One of the C directions of a step is radial and does not rotate the vector.
    n = max(fan_in - 1, 1)
    # Blom: the expected i-th of N ordered normal numbers is the quantile of (i - 3/8)/(N + 1/4).
    place = 1 + limit.OUTER_SHARE * (vectors - 1)
    z = -NormalDist().inv_cdf((place - 0.375) / (vectors + 0.25))
    k = np.arange(1, samples)
    f = (1 + 2 * float(np.sum((1 - k / samples) * momentum ** (2 * spacing * k)))) / samples
    # The cube root of χ² is nearly normal. Angles are the square root of χ², hence the power 3/2.
    centre = 1 - 2 / (9 * n)
    spread = z * (2 * f / (9 * n)) ** 0.5
    return float(((centre + spread) / max(centre - spread, 1e-3)) ** 1.5)
