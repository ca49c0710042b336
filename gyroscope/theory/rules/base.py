"""The base of every update rule: hyper-parameters in, equilibrium and motion out."""

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gyroscope._checks import check_betas, check_decay, check_fraction
from gyroscope._types import Array, Int64, Number
from gyroscope.theory.law import AnyCorrelation, Equilibrium, Weights, plain
from gyroscope.theory.linear_motion import LinearMotion
from gyroscope.theory.recursion import Motion

MEANING = {
    "fan_in": "the number of entries of one weight vector",
    "unit_grad_norm": "the RMS norm of the gradient times the weight norm",
    "shape": "the shape of the whole weight matrix",
    "update_rms": "the RMS norm of one vector's update",
}


class MomentumStep(NamedTuple):
    """How a gradient enters the momentum: m <- keep·m + share·g. If decay is not decoupled, g has the L2 term."""

    keep: float
    share: float


class UpdateRule(ABC):
    """An optimizer's update rule with its hyper-parameters.

    Other packages use the attributes and properties of this class and never test for its type.
    """

    lr: float
    weight_decay: float  # 0 if the rule has no such setting
    # AdamC: decay falls with the square of the schedule. An option of the rules with decoupled decay.
    corrected_decay: bool = False
    # Only entries that the update shrinks decay (`theory.cautious`). An option of AdamW, NAdam, Lion and Muon.
    cautious_decay: bool = False
    counts_steps: bool = (
        False  # whether steps depend on `steps_done`, the number of steps before, beyond the first ones
    )
    sign_beta: float | None = None  # β1 if the update is the sign of β1·m + (1-β1)·g
    heavy_ball: float | None = None  # momentum of SGDM in its plain form, for which SMD's map holds
    alignment_power: float | None = None  # x in: norm ∝ s^x if tangent gradients agree, s as `signal.alignment`
    has_weight_decay: ClassVar[bool] = True  # whether weight_decay is one of the rule's settings
    is_decoupled: ClassVar[bool] = False  # whether weight decay acts on the weight itself, not through the gradient
    keeps_norm: ClassVar[bool] = False  # whether every vector stays at its initial norm
    # Whether such a rule rotates as its `plain` one would at that step, not by the equilibrium angle (`optim.follow`).
    follows_base: bool = False
    transports_momentum: ClassVar[bool] = False  # whether the momentum rotates with the weight, tangent to it (SP's RT)
    # Whether an update is as long as its gradients, which grow as the weight shrinks. Adam's and Lion's are not.
    gradient_scales_update: ClassVar[bool] = False
    angle_formula: ClassVar[str] = (
        "η_r = sqrt(2a/τ) to leading order, exact: 1 - cos η_r = a(2 - a - aτ(a))/(2(1-a)τ(a)), "
        "a: decay per step, τ: correlation time of the updates"
    )
    needs: ClassVar[tuple[str, ...]]  # the inputs that this rule's norm depends on
    norm_power: ClassVar[float] = 0.5  # x in: equilibrium norm ∝ lr^x, without corrected decay
    motion_class: ClassVar[type[Motion]] = LinearMotion  # asks the rule for the coefficients of its steps

    @abstractmethod
    def at(self, lr: Number, weights: Weights, *, leading: bool = False) -> Equilibrium:
        """Return the equilibrium at a learning rate. Nothing is validated, so that arrays are accepted."""

    def correlation(self, weights: Weights) -> AnyCorrelation | None:
        """Return the autocorrelation of updates under white noise, without the part of L2. None if it is unknown."""
        return None

    def motion(self, norm2: Array) -> Motion:
        """Return the averaged motion that starts at these squared norms."""
        return self.motion_class(self, norm2)

    def equilibrium(
        self,
        *,
        fan_in: npt.ArrayLike | None = None,
        unit_grad_norm: npt.ArrayLike | None = None,
        shape: tuple[int, ...] | None = None,
        leading_order: bool = False,
    ) -> Equilibrium:
        """Return where a scale-invariant weight vector settles under this rule, exactly or to leading order.

        `fan_in` is the number of entries of one vector, `unit_grad_norm` the RMS gradient norm at unit weight norm,
        `shape` that of the whole tensor (for Muon). The leading order in lr·weight_decay is RE Table 1 for SGDM and
        AdamW.
        """
        eq = self.at(self.lr, Weights.checked(fan_in, unit_grad_norm, shape), leading=leading_order)
        values = (eq.angular_update, eq.norm, eq.update_rms, eq.timescale)
        return Equilibrium(*(None if value is None else plain(value) for value in values))

    @property
    def name(self) -> str:
        """The rule's name: AdamW, SGDM, …"""
        return type(self).__name__

    @property
    def settings(self) -> dict[str, Any]:
        """The hyper-parameters by name, in the order of the constructor.

        >>> from gyroscope.theory import Rule
        >>> Rule(decay=1e-4, correlation_time=19.0).settings
        {'decay': 0.0001, 'correlation_time': 19.0, 'update_rms': None}
        """
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]  # a dataclass

    def replace(self, **changes: Any) -> Self:
        """Return the rule with some settings changed, and validated again."""
        # Every rule is a dataclass, which an abstract base class cannot declare.
        return replace(self, **changes)  # type: ignore[type-var]

    def during(self, **settings: Array) -> Self:
        """Return the rule with settings that have a value for each step, unvalidated, for `at` and a motion."""
        rule = copy(self)
        for name, values in settings.items():
            object.__setattr__(rule, name, values)  # bypasses the frozen dataclass, whose checks are for numbers
        return rule

    @property
    def betas_may_change(self) -> bool:
        """Whether a forecast can follow betas that change during the run."""
        # Other rules have a momentum that is not in the gradient's units, or a τ without a form for arrays (Lion).
        return self.is_decoupled and self.adam_betas is not None and not self.cautious_decay

    @property
    def plain(self) -> "UpdateRule":
        """The rule without a fixed norm, which is itself for most."""
        return self

    @property
    def whole_matrix(self) -> bool:
        """Whether the vector that rotates is the whole matrix, as under Muon."""
        return "shape" in self.needs

    @property
    def adam_betas(self) -> tuple[float, float] | None:
        """Adam's (β1, β2) if its averages per entry can be unstable (CT), else None."""
        return None

    @property
    def momentum_step(self) -> MomentumStep | None:
        """How a gradient enters the momentum, or None if there is no momentum, or it is transported or unknown."""
        return None

    @property
    def momentum_factor(self) -> float:
        """β1 or momentum, the factor by which a gradient's part in the update falls each step. 0 without momentum."""
        return 0.0

    @property
    def momentum_memory(self) -> float:
        """Steps over which the momentum averages, 1/(1-β1)."""
        return 1 / (1 - self.momentum_factor)

    @property
    def norm_exponent(self) -> float:
        """x in: equilibrium norm ∝ lr^x."""
        return 0.0 if self.corrected_decay else self.norm_power

    @property
    def angle_exponent(self) -> float:
        """x in: equilibrium angle ∝ lr^x under a schedule. It is 1/2 for most rules, and 1 at a constant norm."""
        # An angle is lr·‖u‖/‖ω‖, and ‖u‖ ∝ 1/‖ω‖ if updates are as long as gradients.
        return 1 - (2 if self.gradient_scales_update else 1) * self.norm_exponent

    @property
    def timescale(self) -> Number | None:
        """Steps until a direction is forgotten, or None if that depends on the gradient."""
        return self.equilibrium().timescale

    @property
    def half_life(self) -> Number | None:
        """Steps until the cosine with an earlier direction has halved, or None if that depends on the gradient."""
        return self.equilibrium().half_life

    @property
    def falls_out_ratio(self) -> float:
        """Norm over equilibrium norm above which a vector has fallen out of equilibrium."""
        # SGD's norms follow lr^(1/4), not lr^(1/2), and so fall half as far.
        return 1.2 if self.norm_exponent == 0.25 else 1.3


def _filled(beta: Number, t: Int64) -> Number:
    """Return 1-β^t, which is 1 to the last digit once β^t is below 1e-17. Such powers would take most of the time."""
    return 1.0 if np.max(beta) ** float(t[0]) < 1e-17 else 1 - beta**t


def require(weights: Weights, rule: UpdateRule, inputs: tuple[str, ...]) -> None:
    """Raise a ValueError that names the first input that `rule` needs and `weights` lacks."""
    for name in inputs:
        if getattr(weights, name, None) is None:  # update_rms is a setting of the rule
            raise ValueError(f"{rule.name} needs {name} for this: pass {name}=… ({MEANING[name]})")


@dataclass(frozen=True)
class MomentumRule(UpdateRule):
    """The base of rules with SGD's settings."""

    lr: float
    weight_decay: float
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_decay(self.lr, self.weight_decay)
        check_fraction("momentum", self.momentum)

    @property
    def momentum_factor(self) -> float:
        """α."""
        return self.momentum


@dataclass(frozen=True)
class BetaRule(UpdateRule):
    """The base of rules with Adam's settings."""

    lr: float
    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.999)

    # Whether each entry is divided by its own √v, so that CT's bounds on an entry's update hold.
    second_moment_per_entry: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_decay(self.lr, self.weight_decay)
        check_betas(self.betas)

    def adam_scale(self, lr: Array, done: int) -> Array:
        """Return lr with bias corrections, for a D that sums what v averages.

        lr/(1-β1^t)·sqrt((1-β2^t)/(1-β2)),  t > done
        """
        t = np.arange(done + 1, done + len(lr) + 1)
        beta1, beta2 = self.betas
        return np.asarray(lr / _filled(beta1, t) * (_filled(beta2, t) / (1 - beta2)) ** 0.5)

    @property
    def adam_betas(self) -> tuple[float, float] | None:
        """The betas. With β2 = 0 the update is the sign of the gradient and always bounded."""
        return self.betas if self.second_moment_per_entry and self.betas[1] > 0 else None

    @property
    def momentum_factor(self) -> float:
        """β1."""
        return self.betas[0]

    @property
    def momentum_step(self) -> MomentumStep | None:
        """m <- β1·m + (1-β1)·g, unless it is transported."""
        beta1 = self.betas[0]
        return MomentumStep(beta1, 1 - beta1) if beta1 and not self.transports_momentum else None
