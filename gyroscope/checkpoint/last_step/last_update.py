"""How the last step of each optimizer is reconstructed from its state."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any, final

import numpy as np
from torch import Tensor

from gyroscope._types import Array
from gyroscope.checkpoint.files.saved_optimizers import inner_name, rule_of_group
from gyroscope.checkpoint.last_step.inverse_step import VectorMeasurement, angles, nesterov_direction
from gyroscope.checkpoint.last_step.rotational_step import hyperball_angles, rotational_angles
from gyroscope.optimizers import CAUTIOUS_DECAY, Group, OptimizerSpec, spec_by_name
from gyroscope.theory import UpdateRule
from gyroscope.theory.law import Weights

Direction = Callable[[list[Tensor], int], Tensor]
Angles = Callable[[VectorMeasurement], Array]
NAN = float("nan")
# Options that are missing from files of older torch versions and of other libraries.
DEFAULTS = {"amsgrad": False, "eps": 1e-8}
UNKNOWN = "the step of this optimizer cannot be reconstructed from its state"
CODE = "its angle is a function or a rule, which the file does not contain"
FOLLOWS = "gyro.optim.follow set its angles, which the file does not contain"
# By the smaller dimension of a matrix, from docs/theory.md, "The last step of a checkpoint". Rows of a classifier's
# gradient add up to zero, so the update of a head with few rows is shorter than its rule predicts.
MUON_ERRORS = MappingProxyType({32: 0.05, 16: 0.2, 8: 0.35, 0: 1.2})


@final
@dataclass(frozen=True, eq=False)
class LastUpdate:
    """How the last step of a group's optimizer is reconstructed: w <- (1-a)·w - lr·u."""

    keys: tuple[str, ...] = ()  # state tensors that `direction` needs
    direction: Direction | None = None  # u up to a factor per vector, from these tensors and the number of updates
    exact: bool = False  # whether the angles are exact, or an estimate
    # Largest error of a layer's estimated mean (tests/checkpoint/last_step/test_last_step.py), by the smaller dimension
    # of its matrix.
    errors: Mapping[int, float] = field(default_factory=lambda: {0: NAN})
    adam_betas: tuple[float, float] | None = None  # if the two moments are Adam's, which separate signal and noise
    lr: float = 0.0  # of the step
    decay: float = 0.0  # λ if the decay is decoupled, a = lr·λ
    rows: tuple[str, ...] = ()  # state with one value per vector that `angles` needs
    angles: Angles | None = None  # angles of the vectors in the last step, from their measurement
    turns: bool = False  # whether it is a rotational step, which needs sums of entries and the number of such steps
    counted: bool = True  # whether it needs the number of updates
    unknown: str = UNKNOWN  # reason why the rotation is unknown

    def error(self, shape: Sequence[int]) -> float:
        """Return the error of an estimate for a weight of this shape."""
        smaller = min(prod(shape[:1]), prod(shape[1:]))
        return self.errors[max(least for least in self.errors if least <= smaller)]

    def rotations(self, measured: VectorMeasurement) -> Array:
        """Return the angle of each vector in the last step, in radians. NaN if unknown."""
        decay = self.lr * self.decay
        with np.errstate(all="ignore"):
            if self.angles is not None:
                return self.angles(measured)
            return angles(measured.sums.before(self.lr, decay), self.lr, decay)


def _first(state: list[Tensor], _: int) -> Tensor:
    return state[0]


Formula = Callable[[Group], LastUpdate]
NOTHING = LastUpdate()
BUFFER = LastUpdate(("momentum_buffer",), _first, exact=True, counted=False)
LION = LastUpdate(("exp_avg",), lambda x, _: x[0].sign(), errors={0: 0.2}, counted=False)
MUON = LastUpdate(errors=MUON_ERRORS)


def last_update(name: str | None, group: Group, state: Collection[str] = ()) -> LastUpdate:
    """Return how to reconstruct the last step of an optimizer. `state` has the names of its state values."""
    spec = spec_by_name(name)
    # These options leave out entries that disagree with the last gradient, which the file does not contain.
    if spec is None or any(group.get(option) for option in ("caution", "cautious", *CAUTIOUS_DECAY)):
        return NOTHING
    if spec.keeps_norms:
        return _rotational(spec, group, state)
    decay = float(group.get("weight_decay") or 0.0) if spec.is_decoupled(group) else 0.0
    return replace(_by_formula(spec, group), lr=float(group.get("lr") or 0.0), decay=decay)


def _by_formula(spec: OptimizerSpec, group: Group) -> LastUpdate:
    formula = LAST_UPDATES.get(spec.formula)
    if formula is None:
        return LastUpdate(
            unknown=f"an autopsy does not reconstruct steps of {spec.name}. Measure them with gyro.Tracker"
        )
    return formula({**DEFAULTS, **group})


# torch's optimizers. To maximise, they negate the gradient before they use it.


def _adam(group: Group) -> LastUpdate:
    beta1, beta2 = betas_of(group)
    eps = float(group["eps"])

    def direction(x: list[Tensor], t: int) -> Tensor:
        """Return m̂/(√v̂ + ε)."""
        m, v = x
        return (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + eps)

    keys = ("exp_avg", "max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq")
    # Signal and noise need averages, and amsgrad's is a maximum.
    betas = None if group["amsgrad"] else (beta1, beta2)
    return LastUpdate(keys, direction, exact=True, adam_betas=betas)


def betas_of(group: Group) -> tuple[float, float]:
    """Return the betas of a group, or raise ValueError."""
    if group.get("betas") is None:
        raise ValueError("the file does not contain the betas of its optimizer: pass betas=… (--betas …)")
    return float(group["betas"][0]), float(group["betas"][1])


def _sgd(group: Group) -> LastUpdate:
    if not group.get("nesterov"):
        return BUFFER
    momentum = float(group.get("momentum") or 0.0)
    return replace(BUFFER, direction=lambda x, _: nesterov_direction(x[0], momentum), exact=False, errors={0: 0.35})


# Rotational optimizers


def _rotational(spec: OptimizerSpec, group: Group, state: Collection[str]) -> LastUpdate:
    """Return the inner rule's direction, with the angle of the group's settings (`rotational_step`)."""
    base = spec_by_name(inner_name(group, state) if spec.wraps else spec.base)
    inner = NOTHING if base is None else _by_formula(base, group)
    is_hyperball = group.get("mode") == "hyperball"
    if is_hyperball and not group.get("tangent", True) and inner.direction is not None:
        return replace(inner, rows=("radius",), angles=partial(hyperball_angles, group))
    # A state_dict does not contain code.
    by_code = CODE in (group.get("angular_update", CODE), group.get("angle_schedule", CODE))
    if spec.wraps and not is_hyperball and by_code:
        return replace(NOTHING, unknown=CODE)
    if group.get("follows_base"):
        return replace(NOTHING, unknown=FOLLOWS)
    if base is None or inner.direction is None or "beta" not in group:
        return replace(NOTHING, unknown=inner.unknown)
    settings: dict[str, Any] = dict(group)
    if is_hyperball:
        settings |= {"beta": 0.0, "update_average": "plain", "centre": False, "eps": 0.0, "angular_update": None}
    rule = rule_of_group(spec.name, group, state)
    # With L2 in the gradient, one moment is of the gradient alone, and the other of the squares of both.
    is_mixed = spec.wraps and bool(group.get("weight_decay")) and not base.is_decoupled(group)
    return replace(
        inner,
        adam_betas=None if is_mixed else inner.adam_betas,
        rows=("radius", "update_sq"),
        angles=lambda measured: rotational_angles(settings, measured, _angle(settings, rule, measured), base.formula),
        turns=True,
    )


def _angle(group: Group, rule: UpdateRule | None, measured: VectorMeasurement) -> float:
    """Return η_r as given, or by the rule."""
    given = group.get("angular_update")
    if given is not None or rule is None:
        return NAN if given is None else float(given) * (group["lr"] != 0)
    settled = rule.at(rule.lr, Weights(measured.fan_in, None, measured.shape), leading=True).angular_update
    return NAN if settled is None else float(settled)


# By the formula of the optimizer's record.
LAST_UPDATES: Mapping[str, Formula] = MappingProxyType(
    {"adam": _adam, "sgd": _sgd, "lion": lambda _: LION, "muon": lambda _: MUON}
)
