"""Predictions for weights that are not scale-invariant, from the measurements of a run (RE Appendices K and L)."""

from dataclasses import dataclass

import numpy as np

from gyroscope.tools import Values, positive_array


@dataclass(frozen=True)
class Corrected:
    """Rotation (radians per step) and norm of an equilibrium after correction by `correct`."""

    angular_update: Values
    norm: Values


def correct(
    angular_update: Values,
    norm: Values,
    *,
    decay_error: Values,
    gradient_error: Values = 1.0,
    norm_power: float = 0.5,
) -> Corrected:
    """Correct the predicted equilibrium of a scale-invariant vector for a vector that is not scale-invariant.

        angular_update·sqrt(λ_err)             (RE 89)
        norm·(C_err/λ_err)^norm_power          (RE 90 and 91 with norm_power = 1/2)

    norm_power is 1/2 if the length of an update does not depend on ‖w‖ (AdamW, Lion), and 1/4 if the gradient is
    inversely proportional to ‖w‖ (SGD, SGDM). gradient_error is then that of unit_grad_norm². Other rules, such as Adam
    with L2, decay by a fraction that varies with the norm and raise ValueError. The formulas hold for λ_u measured in
    equilibrium. If λ_err ≤ 0 there is no equilibrium, and the limits are returned: rotation 0 and norm inf.

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
    # Below 0 the vector is pushed outwards for good. The limit of the formulas is the same as at 0.
    lambda_err = np.maximum(decay_error, 0.0)
    with np.errstate(divide="ignore"):
        return Corrected(angular_update * lambda_err**0.5, norm * (gradient_error / lambda_err) ** norm_power)
