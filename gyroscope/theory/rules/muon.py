"""Muon: momentum orthogonalised by Newton–Schulz iterations. The vector that rotates is the whole matrix."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, Literal, final

import numpy as np

from gyroscope._types import Number
from gyroscope.theory.law import Correlation, Equilibrium, OddCorrelation, Weights, forgetting_time
from gyroscope.theory.recursion import Motion, StationaryMotion
from gyroscope.theory.rules.base import MomentumRule, MomentumStep
from gyroscope.theory.rules.decoupled import DecoupledRule, decay_at
from gyroscope.theory.rules.nadam import nesterov_filter

# The coefficients and the number of iterations of torch.optim.Muon.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
# The factor of lr by adjustment: torch.optim.Muon's two, then dion's other two. The second gives entries the RMS of 0.2
# that AdamW's usually have.
ADJUSTMENTS: dict[str, Callable[[int, int], float]] = {
    "original": lambda rows, columns: max(1, rows / columns) ** 0.5,
    "match_rms_adamw": lambda rows, columns: 0.2 * max(rows, columns) ** 0.5,
    "spectral_norm": lambda rows, columns: (rows / columns) ** 0.5,
    "none": lambda rows, columns: 1.0,
}

ODD_POWERS = np.array([1.0, 3.0, 9.0])
# Shares of rho³ and rho⁹ in the nonlinear part of orthogonalised Gaussian noise (measured, 32² to 128²).
ODD_WEIGHTS = np.array([0.4, 0.6])


def orthogonalised(sigma: Number) -> Number:
    """Return a singular value after torch's five Newton–Schulz iterations, which is near 1.

    >>> f"{orthogonalised(0.1):.3f}"
    '0.712'
    """
    a, b, c = NEWTON_SCHULZ
    for _ in range(NEWTON_SCHULZ_STEPS):
        sigma = a * sigma + b * sigma**3 + c * sigma**5
    return sigma


@cache
def orthogonalised_noise(rows: int, columns: int) -> tuple[float, float]:
    """Return the mean square singular value q of an orthogonalised Gaussian matrix, and the linear share of the map.

    Singular values of a Gaussian matrix at unit Frobenius norm follow Marchenko and Pastur's law. The share is the
    squared correlation of the matrix before and after, the part of a correlation that passes unchanged.

    >>> [f"{value:.2f}" for value in orthogonalised_noise(128, 128)]
    ['0.79', '0.67']
    """
    short = min(rows, columns)
    c = short / max(rows, columns)
    # The density in the angle θ is smooth, so 1000 midpoints give seven digits.
    theta = (np.arange(1000) + 0.5) * np.pi / 1000
    eigenvalue = 1 + c + 2 * c**0.5 * np.cos(theta)
    density = np.sin(theta) ** 2 / eigenvalue
    density /= density.sum()
    before = (eigenvalue / short) ** 0.5
    after = orthogonalised(before)
    q = float(density @ after**2)
    return q, float((density @ (before * after)) ** 2 / (density @ before**2 * q))


@final
@dataclass(frozen=True)
class Muon(DecoupledRule, MomentumRule):
    """`torch.optim.Muon` on one matrix. The step is adjusted to the matrix's shape, the decay a = lr·λ is not.

    Each matrix of a stack […, rows, columns] (experts, heads) settles by itself. E‖u‖² = q·min(m,n)·(adjusted lr)². The
    linear share of the momentum's correlation passes the orthogonalisation, and the rest passes as odd powers. Ours:
    docs/theory.md, "Muon". Within 2 % of torch's Muon under white noise. Needs the `shape`.

    lr, weight_decay, momentum, nesterov  as in torch
    adjust_lr_fn  adjustment of lr to the shape of the matrix, as in torch, or "none"
    corrected_decay, cautious_decay  as AdamW's

    >>> eq = Muon(lr=1e-3, weight_decay=0.1).equilibrium(shape=(256, 256))
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm:.2f}"
    '0.00293 rad/step at norm 4.93'
    """

    momentum: float = 0.95
    nesterov: bool = True
    adjust_lr_fn: Literal["original", "match_rms_adamw", "spectral_norm", "none"] = "original"
    corrected_decay: bool = False
    cautious_decay: bool = field(default=False, repr=False)

    needs: ClassVar[tuple[str, ...]] = ("shape",)
    motion_class: ClassVar[type[Motion]] = StationaryMotion

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adjust_lr_fn not in ADJUSTMENTS:
            options = ", ".join(map(repr, ADJUSTMENTS))
            raise ValueError(f"adjust_lr_fn={self.adjust_lr_fn!r} must be one of {options}")

    @property
    def momentum_step(self) -> MomentumStep | None:
        """m <- α·m + (1-α)·g."""
        return MomentumStep(self.momentum, 1 - self.momentum) if self.momentum else None

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Return the one law for the whole matrix."""
        if weights.shape is None:
            # The share of a cautious decay that acts depends on τ, and τ on the shape.
            return Equilibrium(None, None, None, None if self.cautious_decay else forgetting_time(decay_at(self, lr)))
        return super().at(lr, weights, leading=leading)

    def unit_update(self, weights: Weights) -> tuple[float, OddCorrelation]:
        """Return E‖u‖² of the orthogonalised matrix and the correlation that passes."""
        rows, columns = weights.matrix
        q, share = orthogonalised_noise(rows, columns)
        adjustment = ADJUSTMENTS[self.adjust_lr_fn](rows, columns)
        beta = self.momentum
        c0, c1 = nesterov_filter(beta, beta) if self.nesterov else (1 - beta, (1 - beta) * beta)
        linear = Correlation.of_filter(c0, c1, beta)
        shares = np.concatenate([[share], (1 - share) * ODD_WEIGHTS])
        return adjustment * (q * min(rows, columns)) ** 0.5, OddCorrelation(linear, ODD_POWERS, shares)
