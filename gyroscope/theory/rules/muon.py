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

Iterations = tuple[tuple[float, float, float], ...]

# The coefficients and the number of iterations of torch.optim.Muon.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
# The coefficients of each iteration, by the names of timm and Emerging-Optimizers. Published variants of Polar Express
# (arXiv 2505.16932) differ by 2 % in the norm.
COEFFICIENTS: dict[str, Iterations] = {
    "original": (NEWTON_SCHULZ,) * NEWTON_SCHULZ_STEPS,
    "quintic": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    "polar_express": (
        (8.1566, -22.4833, 15.8788),
        (4.0429, -2.8089, 0.5000),
        (3.8917, -2.7725, 0.5061),
        (3.2858, -2.3681, 0.4645),
        (2.3465, -1.7098, 0.4232),
    ),
}
# The factor of lr by adjustment: torch.optim.Muon's two, and those of other libraries. The second gives entries the RMS
# of 0.2 that AdamW's usually have.
ADJUSTMENTS: dict[str, Callable[[int, int], float]] = {
    "original": lambda rows, columns: max(1, rows / columns) ** 0.5,
    "match_rms_adamw": lambda rows, columns: 0.2 * max(rows, columns) ** 0.5,
    "spectral_norm": lambda rows, columns: (rows / columns) ** 0.5,
    "rms_to_rms": lambda rows, columns: (rows / columns) ** 0.5,
    "spectral": lambda rows, columns: max(rows, columns) ** 0.5,
    "none": lambda rows, columns: 1.0,
}

ODD_POWERS = np.array([1.0, 3.0, 9.0])
# Shares of rho³ and rho⁹ in the nonlinear part of orthogonalised Gaussian noise (measured, 32² to 128²).
ODD_WEIGHTS = np.array([0.4, 0.6])


def orthogonalised(sigma: Number, iterations: Iterations = COEFFICIENTS["original"]) -> Number:
    """Return a singular value after Newton–Schulz iterations, which is near 1.

    >>> f"{orthogonalised(0.1):.3f} {orthogonalised(0.1, COEFFICIENTS['quintic']):.3f}"
    '0.712 1.019'
    """
    for a, b, c in iterations:
        sigma = a * sigma + b * sigma**3 + c * sigma**5
    return sigma


@cache
def orthogonalised_noise(
    rows: int, columns: int, iterations: Iterations = COEFFICIENTS["original"]
) -> tuple[float, float]:
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
    after = orthogonalised(before, iterations)
    q = float(density @ after**2)
    return q, float((density @ (before * after)) ** 2 / (density @ before**2 * q))


@final
@dataclass(frozen=True)
class Muon(DecoupledRule, MomentumRule):
    """`torch.optim.Muon` on one matrix. The step is adjusted to the matrix's shape, the decay a = lr·λ is not.

    Each matrix of a stack […, rows, columns] (experts, heads) settles by itself. E‖u‖² = q·min(m,n)·(adjusted lr)². The
    linear share of the momentum's correlation passes the orthogonalisation, and the rest passes as odd powers. Ours:
    docs/theory.md, "Muon". Within 2 % of torch's Muon under white noise. Needs the `shape`.

    Arguments:
        lr: as in torch.
        weight_decay: as in torch.
        momentum: as in torch.
        nesterov: as in torch.
        adjust_lr_fn: adjustment of lr to the shape of the matrix, as in torch, or another of `ADJUSTMENTS`.
        ns_coefficients: "original" (torch's), "quintic" or "polar_express", or a triple for each iteration. They set
            the norm. The rotation changes by up to 4 %.
        nesterov_momentum: share μ of the momentum in u ∝ μ·m + (1-μ)·g, by default `momentum`.
        corrected_decay: as AdamW's.
        cautious_decay: as AdamW's.

    >>> eq = Muon(lr=1e-3, weight_decay=0.1).equilibrium(shape=(256, 256))
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm:.2f}"
    '0.00293 rad/step at norm 4.93'
    """

    momentum: float = 0.95
    nesterov: bool = True
    adjust_lr_fn: Literal["original", "match_rms_adamw", "spectral_norm", "rms_to_rms", "spectral", "none"] = "original"
    corrected_decay: bool = False
    cautious_decay: bool = field(default=False, repr=False)
    ns_coefficients: str | Iterations = field(default="original", repr=False)
    nesterov_momentum: float | None = field(default=None, repr=False)

    needs: ClassVar[tuple[str, ...]] = ("shape",)
    motion_class: ClassVar[type[Motion]] = StationaryMotion

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adjust_lr_fn not in ADJUSTMENTS:
            options = ", ".join(map(repr, ADJUSTMENTS))
            raise ValueError(f"adjust_lr_fn={self.adjust_lr_fn!r} must be one of {options}")
        given = self.ns_coefficients
        if isinstance(given, str):
            if given not in COEFFICIENTS:
                raise ValueError(
                    f"ns_coefficients={given!r} must be one of {', '.join(map(repr, COEFFICIENTS))}, or a triple for "
                    "each iteration"
                )
        else:  # lists, if a run's configuration was read
            object.__setattr__(self, "ns_coefficients", tuple((a, b, c) for a, b, c in given))

    @property
    def iterations(self) -> Iterations:
        """The coefficients of each iteration."""
        given = self.ns_coefficients
        return COEFFICIENTS[given] if isinstance(given, str) else given

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
        q, share = orthogonalised_noise(rows, columns, self.iterations)
        adjustment = ADJUSTMENTS[self.adjust_lr_fn](rows, columns)
        beta = self.momentum
        look_ahead = beta if self.nesterov_momentum is None else self.nesterov_momentum
        c0, c1 = nesterov_filter(beta, look_ahead) if self.nesterov else (1 - beta, (1 - beta) * beta)
        linear = Correlation.of_filter(c0, c1, beta)
        shares = np.concatenate([[share], (1 - share) * ODD_WEIGHTS])
        return adjustment * (q * min(rows, columns)) ** 0.5, OddCorrelation(linear, ODD_POWERS, shares)
