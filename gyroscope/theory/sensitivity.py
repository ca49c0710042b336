"""Weights that are not scale-invariant: what a radial gradient does to the equilibrium, and how to notice.

From Appendices K and L of Rotational Equilibrium (RE; Kosson et al. 2024). The part of a gradient along the weight acts
as additional weight decay, so predictions for scale-invariant vectors can be corrected by what a run measured.
Floats and arrays (layers, neurons, steps) alike.
"""

from dataclasses import dataclass

import numpy as np

from gyroscope._types import Values

__all__ = [
    "Corrected",
    "correct",
    "decay_error",
    "effective_decay",
    "kappa",
    "radial_decay",
    "scaled_gradient_error",
]


@dataclass(frozen=True)
class Corrected:
    """Rotation (radians per step) and norm of an equilibrium after correction by `correct`."""

    angular_update: Values
    norm: Values


def radial_decay(dot: Values, norm_squared: Values) -> Values:
    """Weight decay that the radial part of the gradient amounts to, in the unit of weight_decay.

        lambda_u = <w, g> / ||w||^2     (RE (94) once averaged over steps)

    g is the gradient of the loss for SGD and SGDM, the scaled gradient g / (sqrt(v) + eps) for Adam. Positive where the
    loss pulls the weight inwards, 0 on average for a scale-invariant vector. One step is noise: pass averages over
    steps, or take the mean of what comes back.

    >>> radial_decay(dot=0.02, norm_squared=4.0)
    0.005
    """
    _require_positive(norm_squared=norm_squared)
    return dot / norm_squared


def effective_decay(weight_decay: Values, radial_decay: Values) -> Values:
    """Weight decay together with what the gradient adds, in the unit of weight_decay.

        lambda_e = lambda + lambda_u     (RE Appendix L)

    Takes the place of weight_decay in every prediction. At 0 or below there is no equilibrium: the gradient pushes the
    weight outwards faster than weight decay pulls it in.

    >>> effective_decay(weight_decay=0.25, radial_decay=-0.125)
    0.125
    """
    return weight_decay + radial_decay


def decay_error(weight_decay: Values, radial_decay: Values) -> Values:
    """Factor by which weight decay was mistaken, a plain number: 1 for a scale-invariant vector.

        lambda_err = lambda_e / lambda     (RE Appendix K)

    Needs weight_decay > 0, as the prediction that it corrects does; without, predict from `effective_decay` at once.

    >>> decay_error(weight_decay=0.25, radial_decay=-0.125)
    0.5
    """
    _require_positive(weight_decay=weight_decay)
    return effective_decay(weight_decay, radial_decay) / weight_decay


def scaled_gradient_error(scaled_norm_squared: Values, fan_in: Values) -> Values:
    """Factor by which Adam's scaled gradient misses its expected squared length, a plain number.

        C_err = E||g / sqrt(v)||^2 / C, C = fan_in     (RE (91); its text writes the norm for the squared norm)

    Below 1 while gradients shrink faster than v forgets, or come in rare bursts.

    >>> scaled_gradient_error(scaled_norm_squared=48.0, fan_in=64)
    0.75
    """
    _require_positive(scaled_norm_squared=scaled_norm_squared, fan_in=fan_in)
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

        angular_update * sqrt(lambda_err)                 (RE (89))
        norm * (C_err / lambda_err)^norm_power            (RE (90), (91) with norm_power = 1/2)

    norm_power is 1/2 where the length of an update does not depend on ||w|| (AdamW, Lion) and 1/4 where the gradient is
    inversely proportional to ||w|| (SGD, SGDM; gradient_error is then that of unit_grad_norm^2). Other rules, such as
    Adam with L2, decay by a fraction that varies with the norm: ValueError. Holds for lambda_u measured in equilibrium.
    Where lambda_err <= 0 there is none and the limits come back, rotation 0 and norm inf: where such a vector goes.

    >>> found = correct(0.01, 2.0, decay_error=0.25)
    >>> f"{found.angular_update:.3f} rad, norm {found.norm:.1f}"
    '0.005 rad, norm 4.0'
    """
    _require_positive(norm=norm, gradient_error=gradient_error)
    if norm_power not in (0.5, 0.25):
        raise ValueError(
            f"norm_power={norm_power} must be 1/2 (AdamW, Lion) or 1/4 (SGD, SGDM): other rules need their own"
        )
    if not np.all(np.isfinite(decay_error)):
        raise ValueError(f"decay_error={decay_error} must be finite: leave out vectors without a gradient or a norm")
    lambda_err = np.maximum(decay_error, 0.0)
    with np.errstate(divide="ignore"):
        return Corrected(angular_update * lambda_err**0.5, norm * (gradient_error / lambda_err) ** norm_power)


def kappa(norm: Values, update_rms: Values, *, decay: Values, correlation_time: Values) -> Values:
    """Pull of weight decay over push of gradient noise, a plain number: (predicted / measured rotation)^2.

        kappa = 2 * a * ||w||^2 / (lr^2 * E||u||^2 * tau), a = decay, tau = correlation_time     (ours)

    update_rms is lr * sqrt(E||u||^2), the length of the gradient's part of a step. Reads, to leading order in a:
    1 is an equilibrium with noise; above 1 with a steady norm, updates agree for longer than tau (persistent signal);
    above 1 with a falling norm, it started too large; below 1 the norm is still growing.

    >>> kappa(norm=2.0, update_rms=0.5, decay=0.125, correlation_time=4.0)
    1.0
    """
    _require_positive(norm=norm, update_rms=update_rms, correlation_time=correlation_time)
    return 2 * decay * norm**2 / (update_rms**2 * correlation_time)


def _require_positive(**values: Values) -> None:
    for name, value in values.items():
        if not np.all(np.isfinite(value) & np.greater(value, 0)):
            raise ValueError(f"{name}={value} must be positive and finite: leave out vectors for which it is not")
