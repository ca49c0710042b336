"""The drift of a norm that takes part in rotational steps (ours, docs/theory.md, "Free norms")."""

from gyroscope._types import Number


def noise_drift(squared_tangent: Number, excess: Number, lag: Number) -> Number:
    """Return how much log n grows per step if gradients are noise, D = E k⟨Δ,d⟩ of d ← (d + k·Δ⊥)/‖d + k·Δ⊥‖.

        D = ½(τ-1)(T + D²) + D² - L·D·(½T + D),   to leading order ½η²(τ-1)

    Momentum has older gradients, which were tangent to older directions and point outwards now. `squared_tangent` is
    T = tan²η = k²‖Δ⊥‖² of the rotation, `excess` is τ-1 = 2Σρ(k) of the updates, and `lag` is L = Σkρ(k)/Σρ(k).

    >>> f"{noise_drift(2e-4 / 19, 18, 10):.3e}"
    '9.473e-05'
    """
    half = squared_tangent / 2
    forgetting = 1 + lag * half
    # The quadratic's root without cancellation. The curvature is 0 for an average.
    curvature = lag - excess / 2 - 1
    return 2 * half * excess / (forgetting + (forgetting * forgetting + 4 * curvature * half * excess) ** 0.5)
