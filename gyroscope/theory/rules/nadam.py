"""NAdam with decoupled weight decay: AdamW whose step looks one gradient ahead."""

from dataclasses import dataclass
from typing import ClassVar, final

from gyroscope._checks import check_betas, check_decay
from gyroscope._types import Array, Number
from gyroscope.theory.law import Correlation, Equilibrium, Weights
from gyroscope.theory.recursion import Combination, LinearMotion
from gyroscope.theory.rules.base import MomentumStep, UpdateRule
from gyroscope.theory.rules.decoupled import decoupled_adam_motion, decoupled_equilibrium


def nesterov_filter(beta: Number) -> tuple[Number, Number]:
    """c0 and c1 of β·m' + (1-β)·g, m' the average of g with β; from c1 on the coefficients fall by β each step.

    >>> nesterov_filter(0.5)
    (0.75, 0.125)
    """
    return 1 - beta * beta, (1 - beta) * beta * beta


@final
@dataclass(frozen=True)
class NAdam(UpdateRule):
    """NAdam, decoupled: u ∝ β1·m' + (1-β1)·g, a filter with c0 = (1-β)(1+β), c_i = (1-β)β^(i+1).

    torch's slow ramp of β1 (`momentum_decay`) is over after some ten thousand steps and is left out.

    >>> f"{NAdam(lr=1e-3, weight_decay=0.1).equilibrium(fan_in=512).angular_update:.5f}"
    '0.00376'
    """

    lr: float
    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.999)
    corrected_decay: bool = False

    needs: ClassVar[tuple[str, ...]] = ("fan_in",)
    norm_power: ClassVar[float] = 0.5
    is_decoupled: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_decay(self.lr, self.weight_decay)
        check_betas(self.betas)

    @property
    def adam_betas(self) -> tuple[float, float] | None:
        """The betas; with β2 = 0 the update is the sign of the gradient and always bounded."""
        return self.betas if self.betas[1] > 0 else None

    @property
    def momentum_step(self) -> MomentumStep | None:
        """m <- β1·m + (1-β1)·g."""
        return MomentumStep(self.betas[0], 1 - self.betas[0]) if self.betas[0] else None

    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """The one law; E‖u‖² = lr²·C·Σc²."""
        beta1, C = self.betas[0], weights.fan_in
        c0, c1 = nesterov_filter(beta1)
        rms = None if C is None else lr * (C * (c0**2 + c1**2 / (1 - beta1**2))) ** 0.5
        return decoupled_equilibrium(self, lr, Correlation.of_filter(c0, c1, beta1), rms, leading)

    def motion(self, norm2: Array) -> LinearMotion:
        """AdamW's motion with u ∝ β1·m' + (1-β1)·g = β1²·m + (1-β1²)·g."""
        beta1 = self.betas[0]
        update, average = Combination(0.0, beta1**2, 1 - beta1**2), Combination(0.0, beta1, 1 - beta1)
        return decoupled_adam_motion(self, norm2, update=update, momentum=average)
