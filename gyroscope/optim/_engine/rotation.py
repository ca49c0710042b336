"""The rotational step (RE Algorithm 1): its options and its description for the loop."""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gyroscope._checks import check_fraction
from gyroscope.geometry import Split
from gyroscope.optim import formulas
from gyroscope.optim._engine.compiled import check_compile
from gyroscope.optim._engine.steps import FirstValue, Group, InnerRule, Vectors, VectorStep, fused_with
from gyroscope.optim.formulas import Number, RotationNumbers
from gyroscope.optim.update_average import UPDATE_AVERAGES, noise_average

# A share of the vectors, the factor of its angle, and a seed. Or as many shares as factors.
Imbalance = tuple[float | Sequence[float], float | Sequence[float], int]
# True centres updates, "weights" centres the weights after each step.
Centring = bool | Literal["weights"]
# RE's average of squared update lengths, or the one of `gyroscope.optim.update_average`.
UpdateAverage = Literal["plain", "noise"]
# Centring leaves d-2 of d-1 directions to a vector of d entries: none for d = 2, and half of them for d = 3.
MIN_CENTRED = 4
ROTATION_ROWS = ("radius", "update_sq", "imbalance")


def rotation(inner: InnerRule, angle: Number, group: Group, t: int, vectors: Vectors) -> VectorStep:
    """Return the step that rotates by the angle along the inner rule's direction, at a tensor's t-th step."""
    beta = group["beta"]
    square = 1.0
    if group.get("update_average") == "noise":
        beta, square = noise_average(inner.formula, group, t)
    known_angle = angle if isinstance(angle, Tensor) else float(angle)  # torch makes tensors of NumPy's numbers
    corrections = (1 - beta**t, 1 - beta ** (t - 1))
    by = RotationNumbers(known_angle, beta, *corrections, inner.eps, inner.lr, inner.decay, square)
    centre: Centring = group["centre"] if vectors.fan_in >= MIN_CENTRED else False
    slack = norm_slack(vectors.dtype)
    names = tuple(inner.numbers)
    rows: dict[str, FirstValue] = {"radius": -1.0, "update_sq": 0.0, **imbalance_row(group)}
    return VectorStep(
        moments=inner.moments,
        rows=rows,
        numbers=(*by, *inner.numbers.values()),
        key=(inner.direction, names, centre, slack, inner.cheap),
        measure=partial(formulas.update_and_sums, direction=inner.direction, names=names),
        decide=partial(formulas.rotate, centre=centre, slack=slack),
        move=formulas.move_,
        fused=fused_with(inner, inner.numbers),
        makes_update=inner.direction is not None,
        keeps_update=inner.direction is not None and not inner.cheap,
        angle=known_angle,
    )


def norm_slack(dtype: torch.dtype) -> float:
    """Return how far rounding may take a norm from its radius, as a fraction. Larger changes came from outside."""
    # A float32 norm drifts far less than 1e-3 in a step, and nobody rescales weights by less. Entries of bfloat16 are
    # rounded by up to eps/2 (4e-3), and a norm by no more.
    return max(1e-3, 2 * torch.finfo(dtype).eps)


def check_rotational(group: Group) -> None:
    """Raise for options of a rotational optimizer that make no sense together."""
    check_rotation_options(group)
    split = Split.of(group)
    if group["weight_decay"] == 0 and any(split.rotates(p.shape) for p in group["params"]):
        raise ValueError(
            "weight_decay=0 in a group that rotates: its angular update would be 0; give it a weight decay, "
            "for example 0.1, or granularity='none'"
        )


def check_rotation_options(group: Group) -> None:
    """Raise for an option of the rotation itself that makes no sense."""
    check_fraction("beta", group["beta"])
    check_compile(group["compile"])
    average = group["update_average"]
    if average not in UPDATE_AVERAGES:
        raise ValueError(f"update_average={average!r} is unknown: choose 'plain' (RE's) or 'noise'")
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
    # The sum of shares may exceed 1 by rounding.
    fits = shares.shape == factors.shape and shares.min() >= 0 and shares.sum() <= 1 + 1e-9
    if not (fits and factors.min() > 0 and isinstance(seed, int)):
        raise ValueError(
            f"imbalance={imbalance!r} must be (share in [0, 1], factor above 0, integer seed), or as many shares as "
            "factors: ((0.25, 0.25), (10.0, 0.1), 0)"
        )


def imbalance_factors(
    vectors: int, share: float | Sequence[float], factor: float | Sequence[float], seed: int
) -> Tensor:
    """Return `factor` for a share of the vectors, chosen by seed, and 1 for the others (RE Fig. 12).

    Each of several shares has its own factor, and no vector is in two shares.

    >>> imbalance_factors(4, share=0.5, factor=10.0, seed=0).sort().values
    tensor([ 1.,  1., 10., 10.])
    >>> imbalance_factors(4, share=(0.25, 0.5), factor=(10.0, 0.1), seed=0).sort().values
    tensor([ 0.1000,  0.1000,  1.0000, 10.0000])
    """
    order = torch.randperm(vectors, generator=torch.Generator().manual_seed(seed))
    factors = torch.ones(vectors)
    first = 0
    # Cumulative shares: if each were rounded alone, three thirds of 4 vectors would be 3.
    for last, value in zip(np.cumsum(share), np.atleast_1d(factor), strict=True):
        end = round(float(last) * vectors)
        factors[(order >= first) & (order < end)] = float(value)
        first = end
    return factors


def imbalance_row(group: Group) -> dict[str, FirstValue]:
    """Return the row with the factors of the angles, if the group has any."""
    imbalance = group.get("imbalance")
    return {} if imbalance is None else {"imbalance": partial(_imbalance_rows, imbalance)}


def _imbalance_rows(imbalance: Imbalance, num_vectors: int, place: int) -> Tensor:
    """Return the factors of a tensor. The place in the seed lets equal shapes draw different vectors."""
    share, factor, seed = imbalance
    return imbalance_factors(num_vectors, share, factor, seed + place)
