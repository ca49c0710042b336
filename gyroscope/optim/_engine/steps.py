"""How a class describes its update to the loop: a step entry by entry, or a step of whole vectors in three parts."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gyroscope._checks import check_fraction
from gyroscope.geometry import Split, at_least_float32
from gyroscope.optim import formulas
from gyroscope.optim._engine.memory import Scratch
from gyroscope.optim.formulas import Change, Number, TurnNumbers

Group = dict[str, Any]
# A share of the vectors, the factor of its angle, and a seed; or as many shares as factors.
Imbalance = tuple[float | Sequence[float], float | Sequence[float], int]
# Of what means are taken away: of the updates, of nothing, or of the weights after each step.
Centring = bool | Literal["weights"]
# Of a value per vector before the first step: a number, or a function of (number of vectors, place of the tensor).
FirstValue = Number | Callable[[int, int], Tensor]
# Entries of the shortest vectors that are centred: of d entries centring leaves d-2 directions to turn in, not d-1.
# With d = 2 none is left, so that a vector stays at ±(1, -1) for good, and with d = 3 a circle: half of what there
# was.
MIN_CENTRED = 4
ROTATION_ROWS = ("radius", "update_sq", "imbalance")


class Vectors(NamedTuple):
    """What a step depends on beside a group's options: how a tensor splits into vectors, and what it is."""

    split: Split
    rotate: bool
    fan_in: int
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class PlainStep:
    """A step that goes entry by entry: `step` changes weight and moments of [weight, gradient, *moments].

    Steps with equal keys are the same function. `fused` takes it for many tensors, given their weights, their gradients
    and so on: a kernel for tensors as they are, where torch has one. `stacked` counts how many moments of each name
    lie in one tensor, along a new first dimension; 0 is one moment without that dimension.
    """

    moments: tuple[str, ...]
    step: Callable[[list[Tensor], Scratch], None]
    key: Hashable
    fused: Callable[..., None] | None = None
    stacked: int = 0


@dataclass(frozen=True)
class VectorStep:
    """A step of whole weight vectors, in rows: read a few sums, decide for each vector, move its entries.

    key         what the functions depend on beside their arguments; with equal numbers vectors are decided together
    measure     (entries, rows, update, product, numbers) -> values per vector of [weight, gradient, *moments], the
                first of them 0 or above. With `makes_update` it writes Δ into `update`, else the gradient's place
    decide      (values, rows, fan_in, numbers) -> coefficients and new rows
    move        (entries, update, coefficients, noise): takes the step
    finish      (entries, coefficients): runs after it, outside of a compiled program
    keeps_update    a compiled program writes Δ into memory and reads it there, rather than make it twice
    angle       radians of a rotation, by which low precision is judged; None on the sphere
    """

    moments: tuple[str, ...]
    rows: Mapping[str, FirstValue]
    numbers: tuple[Number, ...]
    key: tuple[object, ...]
    measure: Callable[..., tuple[Tensor, ...]]
    decide: Callable[..., Change]
    move: Callable[..., None]
    finish: Callable[[Sequence[Tensor], Sequence[Any]], None] | None = None
    makes_update: bool = False
    keeps_update: bool = False
    angle: Number | None = None


Step = PlainStep | VectorStep


@dataclass(frozen=True)
class InnerRule:
    """The rule whose direction is turned: a function of `formulas` with its moments and numbers, and the rule's lr.

    `direction` is None where another optimizer has made Δ. `decay` is decoupled; L2, if the rule has it, is the number
    "l2". `fused` is the rule's own step of many tensors at once, where torch has a kernel for it; `cheap` says that a
    program makes Δ twice in less time than it takes to keep it.
    """

    direction: Callable[..., None] | None
    moments: tuple[str, ...]
    numbers: Mapping[str, Number]
    lr: Number
    decay: Number = 0.0
    eps: Number = 0.0
    fused: Callable[..., None] | None = None
    cheap: bool = False


def plain(inner: InnerRule) -> PlainStep:
    """The inner rule's own step."""
    numbers = {**inner.numbers, "lr": inner.lr, "decay": inner.decay}
    # The kernel takes floats; a tensor may be on a device that one would have to wait for.
    is_known = not any(isinstance(number, Tensor) for number in numbers.values())
    fused = partial(inner.fused, **numbers) if inner.fused is not None and is_known else None
    # By value: tensors of several shapes or groups with the same numbers go into one batch.
    key = (inner.direction, *numbers.values())
    return PlainStep(inner.moments, partial(_take_plain_step, inner), key, fused)


def _take_plain_step(inner: InnerRule, tensors: list[Tensor], scratch: Scratch) -> None:
    w = tensors[0]
    u = scratch.like(w, at_least_float32(w.dtype))
    assert inner.direction is not None
    inner.direction(tensors, u, **inner.numbers)
    formulas.plain_(w, u, inner.lr, inner.decay)


def rotation(inner: InnerRule, angle: Number, group: Group, t: int, vectors: Vectors) -> VectorStep:
    """The inner rule's direction, turned by the angle, at a tensor's t-th step (RE Algorithm 1)."""
    beta = group["beta"]
    known_angle = angle if isinstance(angle, Tensor) else float(angle)  # of NumPy's numbers torch makes tensors
    by = TurnNumbers(known_angle, beta, 1 - beta**t, 1 - beta ** (t - 1), inner.eps, inner.lr, inner.decay)
    centre: Centring = group["centre"] if vectors.fan_in >= MIN_CENTRED else False
    slack = norm_slack(vectors.dtype)
    names = tuple(inner.numbers)
    rows: dict[str, FirstValue] = {"radius": -1.0, "update_sq": 0.0}
    if group.get("imbalance") is not None:
        rows["imbalance"] = partial(_imbalance_rows, group["imbalance"])
    return VectorStep(
        moments=inner.moments,
        rows=rows,
        numbers=(*by, *inner.numbers.values()),
        key=(inner.direction, names, centre, slack, inner.cheap),
        measure=partial(formulas.update_and_sums, direction=inner.direction, names=names),
        decide=partial(formulas.turn, centre=centre, slack=slack),
        move=formulas.move_,
        makes_update=inner.direction is not None,
        keeps_update=inner.direction is not None and not inner.cheap,
        angle=known_angle,
    )


def norm_slack(dtype: torch.dtype) -> float:
    """How far rounding may take a norm from its radius, relative; what is further was set from outside."""
    # A float32 norm drifts far less than 1e-3 in a step, and nobody rescales weights by less. Entries of bfloat16 are
    # rounded by up to eps/2 (4e-3), and a norm by no more.
    return max(1e-3, 2 * torch.finfo(dtype).eps)


def check_rotational(group: Group) -> None:
    """Raise unless the options that all rotational optimizers share make sense together."""
    split = Split.of(group)
    check_turn(group)
    if group["weight_decay"] == 0 and any(split.rotates(p.shape) for p in group["params"]):
        raise ValueError(
            "weight_decay=0 in a group that rotates: its angular update would be 0; give it a weight decay, "
            "for example 0.1, or granularity='none'"
        )


def check_turn(group: Group) -> None:
    """Raise unless the options of how a given direction is turned make sense."""
    check_fraction("beta", group["beta"])
    centre = group["centre"]
    if centre not in (True, False, "weights"):
        raise ValueError(
            f"centre={centre!r} is unknown: choose True (centred updates), 'weights' (weights are centred after each "
            "step) or False"
        )
    imbalance = group["imbalance"]
    if imbalance is None:
        return
    share, factor, seed = imbalance
    shares = np.atleast_1d(share)
    factors = np.atleast_1d(factor)
    # Shares that are meant to add up to 1 may miss it by rounding.
    fits = shares.shape == factors.shape and shares.min() >= 0 and shares.sum() <= 1 + 1e-9
    if not (fits and factors.min() > 0 and isinstance(seed, int)):
        raise ValueError(
            f"imbalance={imbalance!r} must be (share in [0, 1], factor above 0, integer seed), or as many shares as "
            "factors: ((0.25, 0.25), (10.0, 0.1), 0)"
        )


def imbalance_factors(
    vectors: int, share: float | Sequence[float], factor: float | Sequence[float], seed: int
) -> Tensor:
    """`factor` for a share of the vectors, chosen by seed, and 1 for the others: the imbalance experiment (RE Fig. 12).

    Several shares have a factor each, no vector has two.

    >>> imbalance_factors(4, share=0.5, factor=10.0, seed=0).sort().values
    tensor([ 1.,  1., 10., 10.])
    >>> imbalance_factors(4, share=(0.25, 0.5), factor=(10.0, 0.1), seed=0).sort().values
    tensor([ 0.1000,  0.1000,  1.0000, 10.0000])
    """
    order = torch.randperm(vectors, generator=torch.Generator().manual_seed(seed))
    factors = torch.ones(vectors)
    first = 0
    # By what the shares add up to: each rounded alone, three thirds of 4 vectors would be 3.
    for last, value in zip(np.cumsum(share), np.atleast_1d(factor), strict=True):
        end = round(float(last) * vectors)
        factors[(order >= first) & (order < end)] = float(value)
        first = end
    return factors


def _imbalance_rows(imbalance: Imbalance, num_vectors: int, place: int) -> Tensor:
    """Tensors draw by their place among those of the step: equal shapes draw different vectors."""
    share, factor, seed = imbalance
    return imbalance_factors(num_vectors, share, factor, seed + place)
