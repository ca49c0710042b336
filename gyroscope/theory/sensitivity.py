"""Weights that are not scale-invariant: what a radial gradient does to the equilibrium, and how to notice.

From Appendices K and L of RE. The part of a gradient along the weight acts as additional weight decay, so predictions
for scale-invariant vectors can be corrected by what a run measured. Floats and arrays (layers, neurons, steps) alike.
What is computed from single vectors is not validated: a vector without norm or rotation gives inf or NaN.
"""

from dataclasses import dataclass

import numpy as np

from gyroscope._checks import positive_array
from gyroscope._types import Number, Values
from gyroscope.theory.law import over


@dataclass(frozen=True)
class Corrected:
    """Rotation (radians per step) and norm of an equilibrium after correction by `correct`."""

    angular_update: Values
    norm: Values


def radial_decay(dot: Number, norm_squared: Number) -> Number:
    """Weight decay that the radial part of the gradient amounts to, in the unit of weight_decay.

        λ_u = ⟨w,g⟩/‖w‖²     (RE 94, once averaged over steps)

    g is the gradient of the loss for SGD and SGDM, the scaled gradient g/(√v + ε) for Adam. Positive where the loss
    pulls the weight inwards, 0 on average for a scale-invariant vector. One step is noise: pass averages over steps, or
    take the mean of what comes back.

    >>> float(radial_decay(dot=0.02, norm_squared=4.0))
    0.005
    """
    return over(dot, norm_squared)


def effective_decay(weight_decay: Values, radial_decay: Values) -> Values:
    """Weight decay together with what the gradient adds, in the unit of weight_decay.

        λ_e = λ + λ_u     (RE Appendix L)

    Takes the place of weight_decay in every prediction. At 0 or below there is no equilibrium: the gradient pushes the
    weight outwards faster than weight decay pulls it in.

    >>> effective_decay(weight_decay=0.25, radial_decay=-0.125)
    0.125
    """
    return weight_decay + radial_decay


def decay_error(weight_decay: Values, radial_decay: Values) -> Values:
    """Factor by which weight decay was mistaken, a plain number: 1 for a scale-invariant vector.

        λ_err = λ_e/λ     (RE Appendix K)

    Needs weight_decay > 0, as the prediction that it corrects does; without, predict from `effective_decay` at once.

    >>> decay_error(weight_decay=0.25, radial_decay=-0.125)
    0.5
    """
    positive_array("weight_decay", weight_decay)
    return effective_decay(weight_decay, radial_decay) / weight_decay


def scaled_gradient_error(scaled_norm_squared: Number, fan_in: Number) -> Number:
    """Factor by which Adam's scaled gradient misses its expected squared length, a plain number.

        C_err = E‖g/√v‖²/C, C = fan_in     (RE 91; its text writes the norm for the squared norm)

    Below 1 while gradients shrink faster than v forgets, or come in rare bursts.

    >>> scaled_gradient_error(scaled_norm_squared=48.0, fan_in=64)
    0.75
    """
    return scaled_norm_squared / fan_in


def correct(
    angular_update: Values,
    norm: Values,
    *,
    decay_error: Values,
    gradient_error: Values = 1.0,
    norm_power: float = 0.5,
) -> Corrected:
    """Predicted equilibrium of a scale-invariant vector, corrected for one that is not.

        angular_update·sqrt(λ_err)             (RE 89)
        norm·(C_err/λ_err)^norm_power          (RE 90 and 91 with norm_power = 1/2)

    norm_power is 1/2 where the length of an update does not depend on ‖w‖ (AdamW, Lion) and 1/4 where the gradient is
    inversely proportional to ‖w‖ (SGD, SGDM; gradient_error is then that of unit_grad_norm²). Other rules, such as
    Adam with L2, decay by a fraction that varies with the norm: ValueError. Holds for λ_u measured in equilibrium.
    Where λ_err ≤ 0 there is none and the limits come back, rotation 0 and norm inf: where such a vector goes.

    >>> corrected = correct(0.01, 2.0, decay_error=0.25)
    >>> f"{corrected.angular_update:.3f} rad, norm {corrected.norm:.1f}"
    '0.005 rad, norm 4.0'
    """
    positive_array("norm", norm)
    positive_array("gradient_error", gradient_error)
    if norm_power not in (0.5, 0.25):
        raise ValueError(
            f"norm_power={norm_power} must be 1/2 (AdamW, Lion) or 1/4 (SGD, SGDM): other rules need their own"
        )
    if not np.all(np.isfinite(decay_error)):
        raise ValueError(f"decay_error={decay_error} must be finite: leave out vectors without a gradient or a norm")
    # Below 0 the vector is pushed outwards for good; the limit of the formulas is the same as at 0.
    lambda_err = np.maximum(decay_error, 0.0)
    with np.errstate(divide="ignore"):
        return Corrected(angular_update * lambda_err**0.5, norm * (gradient_error / lambda_err) ** norm_power)


def rotation_discrepancy(predicted: Number, measured: Number) -> Number:
    """Pull of weight decay over push of gradient noise, a plain number, from predicted and measured rotation.

        D = (predicted/measured)² = 2a‖w‖²/(lr²·E‖u‖²·τ) to leading order in a     (ours)

    1 is an equilibrium with noise; above 1 with a steady norm, updates agree for longer than τ (persistent signal);
    above 1 with a falling norm, it started too large; below 1 the norm is still growing. Derived in docs/theory.md,
    "Weights that are not scale-invariant".

    >>> float(rotation_discrepancy(predicted=0.004, measured=0.002))
    4.0
    """
    return over(predicted, measured) ** 2
