"""Shared parts of RE's random walks: the optimizers of Appendix J at any speed, and statistics of a layer."""

import numpy as np

from gyroscope.theory import SGDM, AdamL2, AdamW, Lion, UpdateRule
from gyroscope.tools import Array

NAMES = ("AdamW", "SGDM", "Lion", "Adam+L2")


def optimizers(speedup: float) -> tuple[UpdateRule, ...]:
    """Return AdamW, SGDM, Lion and Adam+L2 with the settings of RE Appendix J, which SGDM and Lion only approximate.

    `speedup` multiplies lr·weight_decay and keeps lr/weight_decay, so the same equilibrium norms are reached sooner.
    """
    f = speedup**0.5
    return AdamW(1e-3 * f, 0.1 * f), SGDM(0.1 * f, 1e-4 * f, 0.9), Lion(1e-4 * f, 1.0 * f), AdamL2(1e-3 * f, 1e-3 * f)


def layer_equilibrium(
    rule: UpdateRule, fan_in: int, gradients: Array, leading_order: bool
) -> tuple[float, float, float]:
    """Return the predicted RMS norm, mean angle and RMS update size of a layer with these gradient norms per vector."""
    eq = rule.equilibrium(fan_in=fan_in, unit_grad_norm=gradients, leading_order=leading_order)
    norm, angle, update = (np.asarray(value, dtype=np.float64) for value in (eq.norm, eq.angular_update, eq.update_rms))
    return float(np.sqrt((norm**2).mean())), float(angle.mean()), float(np.sqrt((update**2).mean()))


def relative_spread(values: Array) -> Array:
    """Return the spread over the last axis as interquartile range over median, which outliers do not affect.

    >>> relative_spread(np.array([1.0, 2.0, 3.0, 4.0, 50.0])).round(3).tolist()
    0.667
    """
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=-1)
    return np.asarray((high - low) / middle)
