"""The last step of optimizers that rotate vectors or transport their momentum, reconstructed: angles per vector."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gyroscope._types import Array, Number
from gyroscope.checkpoint.last_step.vector_measurement import VectorMeasurement
from gyroscope.geometry import at_least_float32
from gyroscope.optim.rotation import rotation_step

# Rounds in which a rotational step is reconstructed. Each leaves η_r·cos(ω,Δ) of the error: 10 suffice at 0.2 rad.
ROUNDS = 30
# Relative difference of settled angles of two rounds. The coefficients have the digits of float32.
SETTLED = 1e-5


def turned_angles(
    measured: VectorMeasurement, group: dict[str, Any], lr: float, angle: float, eps: float, formula: str
) -> Array:
    """Return the angle of a rotational optimizer's last step per vector, in radians. NaN if unknown.

        ω' = A·ω + B·Δ + D  turns by  atan2(‖x - ⟨x,ω⟩ω/‖ω‖²‖·‖ω‖, A‖ω‖² + ⟨x,ω⟩),  x = B·Δ + D     (RE Algorithm 1)

    `formulas.rotate` computes A, B and D from ω, which the file does not contain. The first round uses ω' instead. Each
    next round uses the ω that A, B and D lead back to, until the angle settles. With centring the mean of ω is taken to
    be 0. That is wrong only in the first step, which is unknown. `angle` is η_r, `eps` the optimizer's and
    `formula` the inner rule's.
    """
    d = measured.fan_in
    t = measured.turns
    sizes: dict[str, Any] = {"fan_in": d, "shape": measured.shape, "dtype": measured.dtype}
    turn = rotation_step(group, angle * measured.angle_factor, t, **sizes, lr=lr, eps=eps, formula=formula)
    # The average ν in the state already includes this step.
    numbers = turn.numbers._replace(beta=1.0)
    # In the precision of the step, so that its limits of rounding are the same.
    dtype = at_least_float32(measured.dtype)
    # The optimizers' Δ points downhill, as -u does.
    uu = measured.sums.uu
    u1 = -measured.ones[1]
    # In low precision a stored mean is rounding.
    w1 = np.zeros_like(uu) if turn.centred else measured.ones[0]
    mean = measured.ones[0] / d if turn.centred else 0.0
    ww = measured.sums.ww - mean * measured.ones[0]
    wu = -measured.sums.wu - mean * u1
    # The radius is the norm in the file but for rounding, which each round would multiply.
    kept = {**measured.kept, "radius": np.sqrt(ww)}
    rows = [_tensor(kept[name], dtype) for name in turn.rows]
    size = torch.full_like(rows[0], d)
    ww0 = ww
    wu0 = wu
    turned = np.full_like(ww, np.nan)
    before = turned
    with np.errstate(all="ignore"):
        for _ in range(ROUNDS):
            sums = [_tensor(each, dtype) for each in (ww0, wu0, uu, w1, u1)]
            coefficients = [each.double().numpy() for each in turn.decide(sums, rows, size, numbers).coefficients]
            before = turned
            ww0, wu0, turned = _led_back((ww, wu, uu, w1, u1), coefficients, d)
        settled = np.isclose(turned, before, rtol=SETTLED, atol=0.0) & (measured.kept["radius"] > 0)
    return np.where(settled & (t > 1 or not turn.centred), turned, np.nan)


def _led_back(after: Sequence[Array], coefficients: Sequence[Array], d: int) -> tuple[Array, Array, Array]:
    """Return ⟨ω,ω⟩ and ⟨ω,Δ⟩ of ω = (ω' - B·Δ - D)/A, from `formulas.sums` with ω', and the angle from ω to ω'."""
    ww, wu, uu, w1, u1 = after
    A, B, D = coefficients
    ww0 = (ww + B**2 * uu + D**2 * d - 2 * (B * wu + D * w1 - B * D * u1)) / A**2
    wu0 = (wu - B * uu - D * u1) / A
    along = B * wu0 + D * w1
    across2 = np.maximum((B**2 * uu + D**2 * d + 2 * B * D * u1) * ww0 - along**2, 0.0)
    return ww0, wu0, np.arctan2(np.sqrt(across2), A * ww0 + along)


def _tensor(values: Array, dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def transported_angles(ww: Array, mm: Array, rate: Number, decay: Number) -> Array:
    """Return the angle of a step after which the momentum was rescaled and transported, ‖m‖² = mm. NaN if none.

        RT(y) of ω' = ω - rate·y is the part of ω across ω', over the rate (SP 18), so that
        sin 2η = 2(1-a)·rate·‖m‖/‖ω'‖     (ours)

    a is the share of ω that the step removed along ω: rate·λ times the gradient's share in y, if the gradient is
    orthogonal to ω. A radial gradient changes 1-a by as much.

    >>> float(transported_angles(np.array([2.0]), np.array([0.5]), rate=1.0, decay=0.0)[0])
    0.7853981633974483
    """
    with np.errstate(all="ignore"):
        return np.asarray(np.arcsin(2 * (1 - decay) * rate * np.sqrt(mm / ww)) / 2)
