"""Weights that are not scale-invariant: the effect of a radial gradient on the equilibrium (RE Appendices K and L).

The part of a gradient along the weight acts as additional weight decay, and the tracker measures it:

    λ_u = ⟨w,g⟩/‖w‖²            radial decay (RE 94), 0 on average for a scale-invariant vector. One step is noise
    λ_e = λ + λ_u               effective decay (RE Appendix L). At 0 or below there is no equilibrium
    C_err = E‖g/√v‖²/C          Adam's scaled gradient over its expected length (RE 91, whose text writes the norm for
                                the squared norm). Below 1 while gradients shrink faster than v forgets, or are rare

g is the gradient of the loss for SGD and SGDM, the scaled gradient g/(√v + ε) for Adam. λ_u is positive if the loss
pulls the weight inwards. Floats and arrays are accepted. A vector without norm or rotation gives inf or NaN.
"""

from gyroscope._checks import positive_array
from gyroscope._types import Number, Values
from gyroscope.theory.law import safe_divide


def decay_error(weight_decay: Values, radial_decay: Values) -> Values:
    """Return the factor of the effective over the given weight decay, λ_err = (λ + λ_u)/λ     (RE Appendix K).

    It is 1 for a scale-invariant vector and needs weight_decay > 0.

    >>> decay_error(weight_decay=0.25, radial_decay=-0.125)
    0.5
    """
    positive_array("weight_decay", weight_decay)
    return (weight_decay + radial_decay) / weight_decay


def rotation_discrepancy(predicted: Number, measured: Number) -> Number:
    """Return the pull of weight decay over the push of gradient noise, D = (predicted/measured)² of the rotation.

        D = 2a‖w‖²/(lr²·E‖u‖²·τ) to leading order in a   (ours: docs/theory.md, "Weights that are not scale-invariant")

    1 is an equilibrium with noise. Above 1 with a steady norm, updates agree for longer than τ. Above 1 with a falling
    norm, the norm started too large. Below 1, the norm is still growing.

    >>> float(rotation_discrepancy(predicted=0.004, measured=0.002))
    4.0
    """
    return safe_divide(predicted, measured) ** 2
