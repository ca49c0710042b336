"""The last step of rotational optimizers, reconstructed: the angle of each vector."""

from collections.abc import Sequence
from numbers import Real

import numpy as np
import torch

from gyroscope._types import Array
from gyroscope.checkpoint.last_step.inverse_step import VectorMeasurement
from gyroscope.geometry import at_least_float32
from gyroscope.optim.rotation import RuleFacts, rotation_step
from gyroscope.optimizers import Group

# Rounds in which a rotational step is reconstructed. Each leaves η_r·cos(ω,Δ) of the error: 10 suffice at 0.2 rad.
ROUNDS = 30
# Relative difference of two rounds at which angles have settled. The coefficients have the precision of float32.
SETTLED = 1e-5


def rotational_angles(group: Group, measured: VectorMeasurement, angle: float, formula: str) -> Array:
    """Return the angle of a rotational optimizer's last step per vector, in radians. NaN if unknown.

        ω' = A·ω + B·Δ + D  rotates by  atan2(‖x - ⟨x,ω⟩ω/‖ω‖²‖·‖ω‖, A‖ω‖² + ⟨x,ω⟩),  x = B·Δ + D     (RE Algorithm 1)

    `formulas.rotate` computes A, B and D from ω, which the file does not contain. The first round uses ω' instead. Each
    next round uses the ω that A, B and D lead back to, until the angle settles. With centring the mean of ω is assumed
    to be 0. That is wrong only in the first step, whose angle is then unknown. `angle` is η_r and `formula` the inner
    rule's.
    """
    d = measured.fan_in
    t = measured.turns
    eps = group.get("eps", 0.0)
    turn = rotation_step(
        dict(group),
        angle,
        t,
        lr=float(group["lr"]),
        facts=RuleFacts(formula, float(eps) if isinstance(eps, Real) else 0.0),
        fan_in=d,
        shape=measured.shape,
        dtype=measured.dtype,
    )
    # The average ν in the state already includes this step.
    numbers = turn.numbers._replace(beta=1.0)
    # In the precision of the step, so that its limits of rounding are the same.
    dtype = at_least_float32(measured.dtype)
    # The optimizers' Δ points downhill, as -u does.
    uu = measured.sums.uu
    ones = measured.ones[0]
    u1 = -measured.ones[1]
    # In low precision a stored mean is only rounding.
    w1 = np.zeros_like(uu) if turn.centred else ones
    mean = ones / d if turn.centred else 0.0
    ww = measured.sums.ww - mean * ones
    wu = -measured.sums.wu - mean * u1
    # The radius is the norm in the file up to rounding errors, which each round would multiply.
    kept = {**measured.kept, "radius": np.sqrt(ww)}
    rows = [torch.tensor(kept[name], dtype=dtype) for name in turn.rows]
    size = torch.full_like(rows[0], d)
    ww0 = ww
    wu0 = wu
    turned = before = np.full_like(ww, np.nan)
    for _ in range(ROUNDS):
        sums = [torch.tensor(each, dtype=dtype) for each in (ww0, wu0, uu, w1, u1)]
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


def hyperball_angles(group: Group, measured: VectorMeasurement) -> Array:
    """Return sin η = lr·sin ∠(W', u), because W and W' = s·(W - lr·R·n(u)) have the same norm R (ours)."""
    cosine2 = measured.sums.wu**2 / (measured.sums.ww * measured.sums.uu)
    turned = np.arcsin(float(group["lr"]) * np.sqrt(np.maximum(1 - cosine2, 0.0)))
    return np.where(measured.kept["radius"] > 0, turned, np.nan)
