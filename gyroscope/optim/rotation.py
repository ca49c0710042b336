"""The rotational step (RE Algorithm 1) and Hyperball's, as descriptions for the loop."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gyroscope.geometry import Split, at_least_float32
from gyroscope.optim._engine.steps import Group, Step, TensorKind, Turn
from gyroscope.optim.formulas import Change, Norms, Number, RotationNumbers, move_, rotate, update_and_sums
from gyroscope.optim.rotation_options import Centring
from gyroscope.optim.update_average import noise_average
from gyroscope.theory.law import AnyCorrelation

# Centring leaves d-2 of d-1 directions to a vector of d entries, so none for d = 2 and half of them for d = 3.
MIN_CENTRED = 4
# Steps after which every momentum is full.
FULL = 10**9
# Between a norm and the limits of its type.
MARGIN = 2.0**10


class RuleFacts(NamedTuple):
    """What a rotation needs to know of its inner rule, beside the rule's own step.

    `formula` is the rule's name in the table of optimizers, `correlation` that of its Δ under noise, if it is known.
    """

    formula: str = ""
    eps: Number = 0.0
    correlation: AnyCorrelation | None = None


def rotation(
    inner: Step,
    facts: RuleFacts,
    angle: Number,
    group: Group,
    t: int,
    kind: TensorKind,
    settled_angle: Number | None = None,
) -> Step:
    """Return a tensor's t-th step, which rotates by the angle along the inner rule's direction.

    A tensor that does not rotate takes the inner rule's own step. `settled_angle` is the angle in equilibrium, if it is
    not the same: a norm that settles needs it.
    """
    if not kind.rotates:
        return inner
    beta = group["beta"]
    square = 1.0
    if group.get("update_average") == "noise":
        beta, square = noise_average(facts.formula, group, t)
    known_angle = angle if isinstance(angle, Tensor) else float(angle)  # torch makes tensors of NumPy's numbers
    corrections = (1 - beta**t, 1 - beta ** (t - 1))
    by = RotationNumbers(known_angle, beta, *corrections, facts.eps, inner.lr, inner.decay, square)
    norms: Norms = group.get("norms", "fixed")
    if norms != "fixed":
        by = by._replace(
            **norm_numbers(inner.lr, facts, angle if settled_angle is None else settled_angle, group, square)
        )
    centre: Centring = group["centre"] if kind.fan_in >= MIN_CENTRED else False
    slack = norm_slack(kind.dtype)
    names = tuple(inner.numbers)
    turn = Turn(
        rows={"radius": -1.0, "update_sq": 0.0},
        numbers=(*by, *inner.numbers.values()),
        key=(inner.direction, names, centre, slack, norms),
        measure=partial(update_and_sums, direction=inner.direction, names=names),
        decide=partial(rotate, centre=centre, slack=slack, norms=norms, norm_range=norm_range(kind)),
        move=move_,
        angle=known_angle,
    )
    return replace(inner, turn=turn)


def norm_numbers(lr: Number, facts: RuleFacts, settled_angle: Number, group: Group, square: float) -> dict[str, Number]:
    """Return the numbers of a norm that is not fixed: τ-1 and the lag of the updates, and what it settles to.

    A rule whose updates have the correlation time τ rotates by η_r in equilibrium if a = ½η_r²τ (the one law), and
    there its plain step lr·Δ⊥ rotates by η_r too, so n_eq = lr·rms‖Δ⊥‖/η_r. While a momentum fills, its updates are
    longer and agree over fewer steps, which makes about the same growth, so rms is that of a full momentum.
    """
    assert facts.correlation is not None
    excess = facts.correlation.time() - 1
    numbers = {"excess": float(excess), "lag": float(facts.correlation.mean_lag)}
    if group["norms"] == "settling":
        full = noise_average(facts.formula, group, FULL).square if group["update_average"] == "noise" else square
        is_known = isinstance(settled_angle, Tensor) or settled_angle
        numbers["settling"] = settled_angle * settled_angle * (1 + excess) / 2
        # At lr = 0 nothing moves, and there is no ratio.
        numbers["norm_ratio"] = lr / settled_angle * (full / square) ** 0.5 if is_known else 0.0
    return numbers


def norm_range(kind: TensorKind) -> tuple[float, float]:
    """Return the least norm over √C and the largest norm that a step moves to, so that squares stay finite numbers."""
    weights = torch.finfo(kind.dtype)
    steps = torch.finfo(kind.precision)
    return max(weights.tiny, MARGIN * steps.tiny**0.5), min(weights.max, steps.max**0.5) / MARGIN


def keeping_average(step: Step) -> Step:
    """Return the step of a Δ that was divided by lr, which at lr = 0 leaves its values per vector unchanged."""
    assert step.turn is not None
    decide = partial(_decide_if_moving, step.turn.decide)
    return replace(step, turn=replace(step.turn, decide=decide, key=(*step.turn.key, _decide_if_moving)))


def _decide_if_moving(
    decide: Callable[..., Change],
    sums: Sequence[Tensor],
    rows: Sequence[Tensor],
    fan_in: Number,
    numbers: Sequence[Number],
) -> Change:
    """Return what `decide` does, with the radius and the corrected average of before if lr = 0.

    The step counts, so the average ν of ν/(1-β^t) grows by (1-β^t)/(1-β^(t-1)). A first step leaves both unset.
    """
    change = decide(sums, rows, fan_in, numbers)
    by = RotationNumbers(*numbers[: len(RotationNumbers._fields)])
    radius, update_sq, *others = rows
    is_moving = torch.zeros_like(radius) + by.lr > 0
    kept = (radius, update_sq * by.correction / (by.prior + (by.prior == 0)), *others)
    return change._replace(rows=tuple(torch.where(is_moving, *pair) for pair in zip(change.rows, kept, strict=False)))


def hyperball(inner: Step, kind: TensorKind) -> Step:
    """Return the step W ← R·n(W - lr·R·n(u)) of the inner rule's Δ = -u. A zero matrix takes the plain step."""
    slack = norm_slack(kind.dtype)
    names = tuple(inner.numbers)
    turn = Turn(
        rows={"radius": -1.0},
        numbers=(inner.lr, inner.decay, *inner.numbers.values()),
        key=(keep_norm, inner.direction, names, slack),
        measure=partial(update_and_sums, direction=inner.direction, names=names, means=False),
        decide=partial(keep_norm, slack=slack),
        move=move_,
        angle=inner.lr,
    )
    return replace(inner, turn=turn)


def norm_slack(dtype: torch.dtype) -> float:
    """Return how far rounding may take a norm from its radius, as a fraction. Larger changes came from outside."""
    # A float32 norm drifts by far less than 1e-3 in a step, and nobody rescales weights by so little. Entries of
    # bfloat16 are rounded by up to eps/2 (4e-3), and a norm by no more.
    return max(1e-3, 2 * torch.finfo(dtype).eps)


def keep_norm(
    sums: Sequence[Tensor], rows: Sequence[Tensor], fan_in: Number, numbers: Sequence[Number], *, slack: float
) -> Change:
    """Return A and B of  W ← A·W + B·Δ  from ⟨W,W⟩, ⟨W,Δ⟩ and ⟨Δ,Δ⟩ of each matrix.

        W ← R·n(W + lr·R·n(Δ)),  n(x) = x/‖x‖     (Hyperball, docs/theory.md)

    `rows` are the radius R, not positive before it is known, and factors of lr if there are any. R is the first norm
    above 0. If a norm differs from it by more than `slack`, something else has changed the weights, and R is read
    again. Until there is a radius, W takes the plain step. Without an update, or at lr = 0, W does not change.
    """
    ww, wu, uu = sums
    lr, decay = numbers[:2]
    radius, *factors = rows
    none = torch.zeros_like(ww)
    length = none + lr
    for factor in factors:
        length = length * factor
    norm = ww.sqrt()
    R = torch.where((norm - radius).abs() > slack * radius, norm, radius)
    rate = length * R * uu.rsqrt()
    size = R * (ww + 2 * rate * wu + rate * rate * uu).rsqrt()
    # Not uu > 0, so that a NaN in the update reaches the weights.
    moves = (length > 0) & (uu != 0)
    has_radius = R > 0
    A = torch.where(moves, size, none + 1)
    B = torch.where(moves, size * rate, none)
    A = torch.where(has_radius, A, none + (1 - decay))
    B = torch.where(has_radius, B, none + lr)
    return Change((A, B), (R,))


class RotationStep(NamedTuple):
    """A rotational step apart from its optimizer. `rows` are names, and with `centred` vectors have mean 0."""

    numbers: RotationNumbers
    rows: tuple[str, ...]
    decide: Callable[..., Change]
    centred: bool


def rotation_step(
    group: Group,
    angle: float,
    t: int,
    *,
    lr: Number,
    facts: RuleFacts,
    fan_in: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> RotationStep:
    """Return the rotation by `angle` radians at a tensor's t-th step, to reconstruct it from a checkpoint."""
    kind = TensorKind(Split(), True, fan_in, torch.Size(shape), dtype, at_least_float32(dtype), torch.device("cpu"))
    # The angle does not depend on what the norm does.
    turn = rotation(Step(None, (), {}, lr), facts, angle, {**group, "norms": "fixed"}, t, kind).turn
    assert turn is not None
    centred = bool(group["centre"]) and fan_in >= MIN_CENTRED
    return RotationStep(RotationNumbers(*turn.numbers), tuple(turn.rows), turn.decide, centred)
