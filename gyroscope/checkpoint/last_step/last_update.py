"""How the last step of each optimizer is reconstructed from its state of every parameter."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from numbers import Real
from types import MappingProxyType
from typing import Any, final

import numpy as np
from torch import Tensor

from gyroscope._types import Array
from gyroscope.checkpoint.files.saved_optimizers import inner_name, rule_of_group
from gyroscope.checkpoint.last_step.inverse_step import angles, nadam_direction, nesterov_direction
from gyroscope.checkpoint.last_step.turned_step import transported_angles, turned_angles
from gyroscope.checkpoint.last_step.vector_measurement import VectorMeasurement
from gyroscope.optim import loss_gradient_part
from gyroscope.optim.formulas import adam_numbers
from gyroscope.optimizers import CAUTIOUS_DECAY, Group, OptimizerSpec, spec_by_name
from gyroscope.theory.law import Weights
from gyroscope.theory.stability import kadam_betas

Direction = Callable[[list[Tensor], int], Tensor]
Angles = Callable[[VectorMeasurement, float], Array]
NAN = float("nan")
MOMENTS = ("exp_avg", "exp_avg_sq")
# Options that files of older torch versions, and of other libraries, lack.
DEFAULTS = {"amsgrad": False, "eps": 1e-8, "momentum_decay": 4e-3, "weight_decay": 0.0, "coupled": False}
UNKNOWN = "the step of this optimizer cannot be reconstructed from its state"
LAST_GRADIENT = "NAdam's first thousands of updates are mostly the last gradient, which the file does not contain"
CODE = "its angle is a function or a rule, which the file does not contain"
# By the smaller dimension of a matrix, from docs/theory.md, "The last step of a checkpoint". Rows of a classifier's
# gradient add up to zero, so the update of a head with few rows is shorter than its rule says.
MUON_ERRORS = MappingProxyType({32: 0.05, 16: 0.2, 8: 0.35, 0: 1.2})


@final
@dataclass(frozen=True, eq=False)
class LastUpdate:
    """How the last step of a group's optimizer is reconstructed.

    keys        state tensors that `direction` needs
    direction   u of  w <- (1-a)·w - lr·u  up to a factor per vector, from these tensors and the number of updates. None
                if unknown
    exact       whether the angles are exact, or an estimate
    errors      largest error of a layer's estimated mean (tests/checkpoint/last_step/test_last_step.py), by the least
                smaller dimension of its matrix
    adam_betas  betas if the two moments are Adam's, which separate signal and noise
    decay       λ if the decay is decoupled, a = lr·λ
    rows        state with one value per vector that `angles` needs
    angles      angles of the vectors in the last step, from their measurement and the learning rate
    turns       whether it is a rotational step, which needs sums of entries and the number of such steps
    counted     whether it needs the number of updates
    unknown     reason why the rotation is unknown
    """

    keys: tuple[str, ...] = ()
    direction: Direction | None = None
    exact: bool = False
    errors: Mapping[int, float] = field(default_factory=lambda: {0: NAN})
    adam_betas: tuple[float, float] | None = None
    decay: float = 0.0
    rows: tuple[str, ...] = ()
    angles: Angles | None = None
    turns: bool = False
    counted: bool = True
    unknown: str = UNKNOWN

    def error(self, shape: Sequence[int]) -> float:
        """Return the error of an estimate for a weight of this shape."""
        smaller = min(prod(shape[:1]), prod(shape[1:]))
        return self.errors[max(least for least in self.errors if least <= smaller)]

    def rotations(self, measured: VectorMeasurement, lr: float) -> Array:
        """Return the angle of each vector in the last step at this learning rate, in radians. NaN if unknown."""
        if self.angles is not None:
            return self.angles(measured, lr)
        decay = lr * self.decay
        return angles(measured.sums.before(lr, decay), lr, decay)


def _first(state: list[Tensor], _: int) -> Tensor:
    return state[0]


NOTHING = LastUpdate()
# torch's SGD and RMSprop with momentum.
BUFFER = LastUpdate(("momentum_buffer",), _first, exact=True, counted=False)
LION = LastUpdate(("exp_avg",), lambda x, _: x[0].sign(), errors={0: 0.2}, counted=False)
MUON = LastUpdate(errors=MUON_ERRORS)


def last_update(name: str | None, group: Group, state: Collection[str] = ()) -> LastUpdate:
    """Return how to reconstruct the last step of an optimizer. `state` has the names of what it keeps."""
    spec = spec_by_name(name)
    # These options leave out entries that disagree with the last gradient, which the file does not contain.
    if spec is None or any(group.get(option) for option in ("caution", "cautious", *CAUTIOUS_DECAY)):
        return NOTHING
    if spec.keeps_norms:
        return _rotational(spec, group, state)
    decay = float(group.get("weight_decay") or 0.0) if spec.is_decoupled(group) else 0.0
    return replace(_by_formula(spec, group), decay=decay)


def _by_formula(spec: OptimizerSpec, group: Group) -> LastUpdate:
    formula = LAST_UPDATES.get(spec.formula)
    return NOTHING if formula is None else formula({**DEFAULTS, **group})


# torch's optimizers. To maximise, they negate the gradient before they keep anything of it.


def _adam(group: Group, function: loss_gradient_part.Part = loss_gradient_part.adam) -> LastUpdate:
    keys = ("exp_avg", "max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq")
    # Signal and noise need averages, and amsgrad's is a maximum.
    betas = None if group["amsgrad"] else _betas(group)
    return LastUpdate(keys, _direction(function, keys, group), exact=True, adam_betas=betas)


def _adamax(group: Group) -> LastUpdate:
    keys = ("exp_avg", "exp_inf")
    return LastUpdate(keys, _direction(loss_gradient_part.adamax, keys, group), exact=True)


def _sgd(group: Group) -> LastUpdate:
    if not group.get("nesterov"):
        return BUFFER
    momentum = float(group.get("momentum") or 0.0)
    return replace(BUFFER, direction=lambda x, _: nesterov_direction(x[0], momentum), exact=False, errors={0: 0.35})


def _betas(group: Group) -> tuple[float, float]:
    if group.get("betas") is None:
        raise ValueError("the file does not contain the betas of its optimizer: pass betas=… (--betas …)")
    return float(group["betas"][0]), float(group["betas"][1])


def _direction(function: loss_gradient_part.Part, keys: tuple[str, ...], group: Group) -> Direction:
    """Return u by the function that computes Δ = -u from the moments after a step. It removes an L2 term, here 0."""

    def direction(x: Sequence[Tensor], t: int) -> Tensor:
        numbers = loss_gradient_part.direction_numbers({"weight_decay": 0.0, **group}, {"t": t})
        return -function(loss_gradient_part.CoupledStep(dict(zip(keys, x, strict=True)), x[0], x[0], 0.0, 0.0, numbers))

    return direction


def _nadam(group: Group) -> LastUpdate:
    betas = _betas(group)
    settings = (betas, float(group["momentum_decay"]), float(group["eps"]))
    return LastUpdate(
        MOMENTS,
        lambda x, t: nadam_direction(x[0], x[1], *settings, t),
        errors={0: 0.25},
        adam_betas=betas,
        unknown=LAST_GRADIENT,
    )


# Rotational optimizers


def _rotational(spec: OptimizerSpec, group: Group, state: Collection[str]) -> LastUpdate:
    """Return the inner rule's direction, with the angle of the group's settings (`turned_step.turned_angles`)."""
    base = spec_by_name(inner_name(group, state) if spec.wraps else spec.base)
    inner = NOTHING if base is None else _by_formula(base, group)
    if group.get("mode") == "hyperball" and not group.get("tangent", True):
        return replace(inner, rows=("radius",), angles=_hyperball_angles) if inner.direction is not None else inner
    angle = _angle(spec, group, state)
    if inner.direction is None or angle is None or "beta" not in group:
        return replace(NOTHING, unknown=CODE if angle is None else UNKNOWN)
    settings: dict[str, Any] = dict(group)
    eps = group.get("eps", 0.0)
    known_eps = float(eps) if isinstance(eps, Real) else 0.0
    if group.get("mode") == "hyperball":
        settings |= {"beta": 0.0, "update_average": "plain", "centre": False}
        known_eps = 0.0
    formula = "" if base is None else base.formula
    # With L2 inside, one moment is of the gradient alone, and the other of the squares of both.
    is_mixed = spec.wraps and bool(group.get("weight_decay")) and base is not None and not base.is_decoupled(group)
    return replace(
        inner,
        adam_betas=None if is_mixed else inner.adam_betas,
        rows=("radius", "update_sq", *(("imbalance",) if group.get("imbalance") is not None else ())),
        angles=lambda measured, lr: turned_angles(measured, settings, lr, angle(measured, lr), known_eps, formula),
        turns=True,
    )


def _hyperball_angles(measured: VectorMeasurement, lr: float) -> Array:
    """Return sin η = lr·sin ∠(W', u), because W and W' = s·(W - lr·R·n(u)) have the same norm R (ours)."""
    with np.errstate(all="ignore"):
        cosine2 = measured.sums.wu**2 / (measured.sums.ww * measured.sums.uu)
        turned = np.arcsin(lr * np.sqrt(np.maximum(1 - cosine2, 0.0)))
    return np.where(measured.kept["radius"] > 0, turned, np.nan)


def _angle(
    spec: OptimizerSpec, group: Group, state: Collection[str]
) -> Callable[[VectorMeasurement, float], float] | None:
    """Return η_r at a learning rate. None if code sets it, which a state_dict leaves out."""
    if spec.wraps and group.get("mode") != "hyperball":
        given = group.get("angular_update", CODE)
        if CODE in (given, group.get("angle_schedule", CODE)):
            return None
        if given is not None:
            return lambda measured, lr: float(given) * (lr != 0)

    def of_rule(measured: VectorMeasurement, lr: float) -> float:
        rule = rule_of_group(spec.name, {**group, "lr": lr}, state)
        if rule is None:
            return np.nan
        settled = rule.at(rule.lr, Weights(measured.fan_in, None, measured.shape), leading=True).angular_update
        return np.nan if settled is None else float(settled)

    return of_rule


# Our other optimizers


def _adam_s(group: Group) -> LastUpdate:
    beta1, beta2 = _betas(group)
    eps = float(group["eps"])

    def turned(measured: VectorMeasurement, lr: float) -> Array:
        t = measured.steps
        root_v = np.sqrt(measured.kept["exp_avg_sq"] / (1 - beta2**t))
        sums = measured.sums.scaled(1 / ((1 - beta1**t) * (root_v + eps)))
        return angles(sums.before(lr, 0.0), lr, 0.0)

    return LastUpdate(("exp_avg",), _first, exact=True, rows=("exp_avg_sq",), angles=turned)


def _adam_srt(group: Group) -> LastUpdate:
    """Return the angle of Adam-SRT, where v is rescaled with the norm after the step, so the decay cancels.

    sin η = lr·‖m̂‖/((√v̂ + ε)·‖ω'‖)     (ours, from `transported_angles`, but for a part η² of ε)
    """
    beta1, beta2 = _betas(group)
    eps = float(group["eps"])

    def turned(measured: VectorMeasurement, lr: float) -> Array:
        t = measured.steps
        with np.errstate(all="ignore"):
            root_v = np.sqrt(measured.kept["exp_avg_sq"] / (1 - beta2**t))
            size = np.sqrt(measured.sums.uu / measured.sums.ww) / (1 - beta1**t)
            return np.asarray(np.arcsin(lr * size / (root_v + eps)))

    return LastUpdate(("exp_avg",), _first, exact=True, rows=("exp_avg_sq",), angles=turned)


def _sgd_mrt(group: Group) -> LastUpdate:
    l2 = float(group["weight_decay"])

    def turned(measured: VectorMeasurement, lr: float) -> Array:
        return transported_angles(measured.sums.ww, measured.sums.uu, lr, lr * l2)

    return replace(BUFFER, exact=False, errors={0: 0.005}, angles=turned)


def _spherical_adam(group: Group) -> LastUpdate:
    """Return tan η = s·‖m‖ with the step's rate s, because transport along the geodesic keeps ‖m‖."""
    beta1, beta2 = _betas(group)
    eps = float(group["eps"])

    def turned(measured: VectorMeasurement, lr: float) -> Array:
        t = measured.steps
        v = measured.kept["exp_avg_sq"]
        mm = measured.sums.uu
        with np.errstate(all="ignore"):
            if group["v0"] is None:
                rate = lr * (1 - beta2**t) ** 0.5 / ((1 - beta1**t) * (np.sqrt(v) + eps))
            else:  # AdamG* takes its step before v includes the gradient, which is all of m
                rate = lr / (np.sqrt(np.maximum(v - mm, 0.0) / beta2) + eps)
            return np.where(measured.kept["radius"] > 0, np.arctan(rate * np.sqrt(mm)), np.nan)

    return LastUpdate(("exp_avg",), _first, exact=True, rows=("radius", "exp_avg_sq"), angles=turned)


def _k_adam(group: Group) -> LastUpdate:
    """Return the update of the last stage."""
    betas = group["betas"]
    stages = betas if isinstance(betas[0], Sequence) else kadam_betas(group["strategy"], group["k"], tuple(betas))
    beta1, beta2 = stages[-1]
    eps = float(group["eps"])

    def direction(x: list[Tensor], t: int) -> Tensor:
        m, v = x
        update: Tensor = m / (adam_numbers(beta1, beta2, t, eps)["bias"] * (v.sqrt() + eps))
        return update

    # Only the first stage has averages of the gradient.
    adam_betas = (beta1, beta2) if len(stages) == 1 else None
    return LastUpdate(MOMENTS, direction, exact=True, adam_betas=adam_betas)


# By the formula of the optimizer's record.
LAST_UPDATES: Mapping[str, Callable[[Group], LastUpdate]] = MappingProxyType(
    {
        "adam": _adam,
        "radam": lambda group: _adam(group, loss_gradient_part.radam),
        "nadam": _nadam,
        "adamax": _adamax,
        "sgd": _sgd,
        "rmsprop": lambda _: BUFFER,
        "lion": lambda _: LION,
        "muon": lambda _: MUON,
        "adam_s": _adam_s,
        "adam_srt": _adam_srt,
        "sgd_mrt": _sgd_mrt,
        "spherical_adam": _spherical_adam,
        "k_adam": _k_adam,
    }
)
