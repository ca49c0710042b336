"""Weights that are not scale-invariant: the effect of a radial gradient on the equilibrium (RE Appendices K and L).

The part of a gradient along the weight acts as additional weight decay. Floats and arrays (layers, neurons, steps) are
accepted. Values of single vectors are not validated: a vector without norm or rotation gives inf or NaN.
"""

from gyroscope._checks import positive_array
from gyroscope._types import Number, Values
from gyroscope.theory.law import safe_divide


def radial_decay(dot: Number, norm_squared: Number) -> Number:
    """Return the weight decay to which the radial part of the gradient amounts: λ_u = ⟨w,g⟩/‖w‖²     (RE 94).

    g is the gradient of the loss for SGD and SGDM, the scaled gradient g/(√v + ε) for Adam. λ_u is positive if the loss
    pulls the weight inwards, and 0 on average for a scale-invariant vector. One step is noise, so average over steps.

    >>> float(radial_decay(dot=0.02, norm_squared=4.0))
    0.005
    """
    return safe_divide(dot, norm_squared)


def effective_decay(weight_decay: Values, radial_decay: Values) -> Values:
    """Return the weight decay that predictions need: λ_e = λ + λ_u     (RE Appendix L).

    At 0 or below there is no equilibrium, because the gradient pushes outwards faster than decay pulls inwards.

    >>> effective_decay(weight_decay=0.25, radial_decay=-0.125)
    0.125
    """
    return weight_decay + radial_decay


def decay_error(weight_decay: Values, radial_decay: Values) -> Values:
    """Return the factor of the effective over the given weight decay, λ_err = λ_e/λ     (RE Appendix K).

    It is 1 for a scale-invariant vector and needs weight_decay > 0.

    >>> decay_error(weight_decay=0.25, radial_decay=-0.125)
    0.5
    """
    positive_array("weight_decay", weight_decay)
    return effective_decay(weight_decay, radial_decay) / weight_decay


def scaled_gradient_error(scaled_norm_squared: Number, fan_in: Number) -> Number:
    """Return the squared length of Adam's scaled gradient over its expected one, C_err = E‖g/√v‖²/C     (RE 91).

    RE's text writes the norm for the squared norm. C_err is below 1 while gradients shrink faster than v forgets, or
    come in rare bursts.

    >>> scaled_gradient_error(scaled_norm_squared=48.0, fan_in=64)
    0.75
    """
    return scaled_norm_squared / fan_in


def rotation_discrepancy(predicted: Number, measured: Number) -> Number:
    """Return the pull of weight decay over the push of gradient noise, D = (predicted/measured)² of the rotation.

        D = 2a‖w‖²/(lr²·E‖u‖²·τ) to leading order in a   (ours: docs/theory.md, "Weights that are not scale-invariant")

    1 is an equilibrium with noise. Above 1 with a steady norm, updates agree for longer than τ. Above 1 with a falling
    norm, the norm started too large. Below 1, the norm is still growing.

    >>> float(rotation_discrepancy(predicted=0.004, measured=0.002))
    4.0
    """
    return safe_divide(predicted, measured) ** 2
