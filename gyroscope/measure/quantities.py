"""The measured quantities. `quantities.txt` has the unit, formula and paper of each, and this file has the code.

RE is Kosson et al., "Rotational Equilibrium". SP is Roburin et al., "Spherical Perspective on Learning with Batch
Norm". SMD is "Spherical Motion Dynamics" (ICLR 2021 submission). CT is "Continuous-Time Analysis of Adaptive
Optimization and Normalization". "ours" is derived in the documentation of `gyroscope.theory`.

In the formulas w is a weight vector of C entries before the step, d its displacement and w' = w + d. g is the gradient
at w, m the momentum before the step, b = √v̂ + ε Adam's denominator after it, and λ the weight decay.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from gyroscope._types import Array, Float32, Int64
from gyroscope.measure._pipeline.layer_step import ROW
from gyroscope.measure._pipeline.optimizers import StepContext
from gyroscope.store import STATISTICS, LayerSample, Quantity
from gyroscope.theory import sensitivity, signal
from gyroscope.theory.law import safe_divide

NAN = float("nan")


class StepPrediction(NamedTuple):
    """Predictions of the theory for a layer at a step: its equilibrium, and its forecast. NaN if unknown."""

    predicted_angular_update: float = NAN
    predicted_norm: float = NAN
    predicted_timescale: float = NAN
    forecast_angular_update: float = NAN
    forecast_norm: float = NAN


@final
@dataclass
class VectorSums:
    """Sums over each vector of one or more layers in the same context: arrays over vectors.

    `counts` are the vectors of each layer, which follow one another. `predicted_angle` is that of each vector's layer.
    It is known later than the rest.
    """

    at: StepContext
    counts: Int64
    fan_in: Array
    ww: Array
    wd: Array
    tt: Array
    most: Array
    wg: Array
    gg: Array
    gm: Array
    mm: Array
    ws: Array
    ss: Array
    bb: Array
    old_ww: Array
    old_wd: Array
    old_tt: Array
    start_ww: Array
    start_wd: Array
    start_tt: Array
    frozen: Array
    predicted_angle: Array

    @classmethod
    def of(cls, sums: Array, at: StepContext, counts: Int64, fan_in: Array) -> "VectorSums":
        """Make it from the device's sums, with gradients in their true scale and the momentum before the step.

        `fan_in` is that of each layer.
        """
        rows = {name: sums[row] for name, row in ROW.items()}
        with np.errstate(all="ignore"):
            # The step itself may have rescaled the gradient (fused kernels do). Only the later sums include that.
            after = np.where(rows["hh"] > 0, np.sqrt(rows["gg"] / rows["hh"]), 1.0) / at.scale
            wg = rows["wg"] * at.sign / at.scale
            gg = rows["gg"] / at.scale**2
            gm = rows["gm"] * at.sign / at.scale
            gm, mm = _momentum_before(at, rows["ww"], wg, gg, gm, rows["mm"], rows["wm"])
            ws = rows["ws"] * at.sign * after
            ss = rows["ss"] * after**2
        del rows["hh"], rows["wm"]
        rows |= {"wg": wg, "gg": gg, "gm": gm, "mm": mm, "ws": ws, "ss": ss, "predicted_angle": np.full_like(wg, NAN)}
        return cls(at, counts, np.repeat(fan_in, counts), **rows)

    def by_layer(self, values: npt.NDArray[Any]) -> Array:
        """Return the sum over the vectors of each layer."""
        starts = np.cumsum(self.counts) - self.counts
        return np.add.reduceat(values, starts, dtype=np.float64)

    def rms_norms(self) -> tuple[Array, Array]:
        """Return the RMS over each layer's vectors of the norm before the step, and of the gradient at unit norm."""
        with np.errstate(all="ignore"):
            norm2 = self.by_layer(self.ww) / self.counts
            return np.sqrt(norm2), np.sqrt(self.by_layer(self.unit_grad_norm**2) / self.counts)

    def per_vector(self, quantities: slice) -> Float32:
        """Return some of the quantities per vector, a row each, NaN if they are not finite."""
        with np.errstate(all="ignore"):
            return _finite(
                [compute(self) for compute in [VECTOR_FORMULAS[quantity.name] for quantity in PER_VECTOR[quantities]]]
            )

    def per_layer(self, predictions: Sequence[StepPrediction]) -> Float32:
        """Return (layers, quantities per layer), NaN if they are not finite."""
        predicted = dict(zip(StepPrediction._fields, np.array(predictions).T, strict=True))
        self.predicted_angle = np.repeat(predicted["predicted_angular_update"], self.counts)
        # A NaN or infinity in w, d or g reaches the sums that contain it.
        finite = np.isfinite(self.ww) & np.isfinite(self.wd) & np.isfinite(self.gg)
        settings = self.at.settings
        with np.errstate(all="ignore"):
            numbers: dict[str, Any] = {
                "dead_vectors": self.by_layer(self.gg == 0),
                "non_finite": self.by_layer(~finite) / self.counts,
                "frozen_entries": self.by_layer(self.frozen) if settings.lr else 0.0,
                "entries": self.by_layer(self.fan_in),
            }
            numbers |= predicted | settings._asdict() | self._signal()
            table = np.empty((len(self.counts), len(PER_LAYER)))
            for place, quantity in enumerate(PER_LAYER):
                table[:, place] = numbers.get(quantity.name, NAN)
            return _finite(table)

    @property
    def r(self) -> Array:
        """Radial growth, ⟨w,d⟩/‖w‖²."""
        return self.wd / self.ww

    @property
    def norm(self) -> Array:
        """‖w‖ before the step."""
        return np.sqrt(self.ww)

    @property
    def unit_grad_norm(self) -> Array:
        """‖g‖·‖w‖."""
        return np.sqrt(self.gg * self.ww)

    @property
    def angle(self) -> Array:
        """Angle from w to w'."""
        return _angle(self.ww, self.wd, self.tt)

    @property
    def b(self) -> Array | float:
        """RMS of the denominator of SP's generic step, Adam's b·(1-β1^t)/(1-β1). 1 without a denominator."""
        return np.sqrt(self.bb / self.fan_in) if self.at.reading.adam else 1.0

    @cached_property
    def decay(self) -> tuple[Array, Array, Array, Array]:
        """λ_u, λ_e, C_err and D of each vector, as defined in `theory.sensitivity`. NaN if undefined."""
        # All four at once, because they share their terms and each is needed once per sample.
        unknown = np.full_like(self.ww, NAN)
        angle = self.angle
        gradient = self._radial_gradient()
        scaled = self.ss / self.fan_in if self.at.reading.adam else unknown
        radial = safe_divide(gradient, self.ww)
        total = self.at.settings.weight_decay + radial
        return radial, total, scaled, sensitivity.rotation_discrepancy(self.predicted_angle, angle)

    def _radial_gradient(self) -> Array:
        """Return ⟨w,s⟩, where s is the gradient, scaled as the update if decay is decoupled."""
        if self.at.group_rule is None:
            return np.full_like(self.ww, NAN)
        rule = self.at.group_rule.rule
        beta1 = rule.sign_beta
        if beta1 is not None:  # near the mean a sign is linear: sign(c) ≈ c·sqrt(2C/π)/‖c‖
            c2 = beta1**2 * self.mm + 2 * beta1 * (1 - beta1) * self.gm + (1 - beta1) ** 2 * self.gg
            return self.wg * np.sqrt(2 * self.fan_in / np.pi / c2)
        if rule.is_decoupled:
            return self.ws if self.at.reading.adam else np.full_like(self.ww, NAN)
        return self.wg

    def _signal(self) -> dict[str, Array]:
        """Return how much of each layer's motion is signal: Adam's with decoupled decay, or SGD's with momentum."""
        group_rule = self.at.group_rule
        if group_rule is None:
            return {}
        gg, gm, mm = (self.by_layer(x) for x in (self.gg, self.gm, self.mm))
        momentum = group_rule.rule.heavy_ball
        if momentum is not None:
            # h, which drives the norm in SMD (60), over ‖g‖²·‖w‖².
            return {"alignment": (gg + 2 * momentum * gm) / gg}
        recursion = group_rule.recursion
        if recursion is None or recursion.decay or not self.at.reading.adam:
            return {}
        keep, share, _ = recursion
        # ‖m'‖², with m' = keep·m + share·g. `bb` is from the denominator by which SP divides a sum of gradients.
        first = keep**2 * mm + 2 * keep * share * gm + share**2 * gg
        second = share**2 * self.by_layer(self.bb)
        return {
            "signal_ratio": signal.signal_ratio(first, second, keep),
            "alignment": signal.alignment(first, second, keep),
        }


def _momentum_before(
    at: StepContext, ww: Array, wg: Array, gg: Array, gm: Array, mm: Array, wm: Array
) -> tuple[Array, Array]:
    """Return ⟨g,m⟩ and ‖m‖² before the step, from m' = keep·m + share·(g + decay·w) if only that is known."""
    if not at.reading.late:
        return gm, mm
    if not at.reading.had_momentum:
        return np.zeros_like(gm), np.zeros_like(mm)
    if at.group_rule is None or at.group_rule.recursion is None:
        return np.full_like(gm, NAN), np.full_like(mm, NAN)
    keep, share, decay = at.group_rule.recursion
    # With G = g + decay·w, which entered the momentum, m = (m' - share·G)/keep, expanded into known sums.
    GG = gg + 2 * decay * wg + decay**2 * ww
    before_gm = gm - share * (gg + decay * wg)
    before_mm = mm - 2 * share * (gm + decay * wm) + share**2 * GG
    return before_gm / keep, before_mm / keep**2


def _angle(ww: Array, wd: Array, tt: Array) -> Array:
    """Return the angle by which a vector rotates if it moves by d, NaN if it has no direction."""
    # atan2 of both parts, because arccos of the cosine returns 0 below 3e-4 rad in float32, where most angles are.
    along = ww + wd
    alive = (ww > 0) & ((along != 0) | (tt > 0))
    return np.where(alive, np.arctan2(np.sqrt(tt * ww), along), NAN)


def _finite(rows: Any) -> Float32:
    values = np.array(rows, dtype=np.float32)
    values[~np.isfinite(values)] = np.nan
    return values


TABLE = Path(__file__).with_name("quantities.txt").read_text(encoding="utf-8")
VECTOR_FORMULAS: dict[str, Callable[[VectorSums], Any]] = {
    "angular_update": lambda v: v.angle,
    "norm": lambda v: np.sqrt((1 + v.r) ** 2 * v.ww + v.tt),
    "update_norm": lambda v: np.sqrt(v.r**2 * v.ww + v.tt),
    "radial_update": lambda v: v.r * v.norm,
    "tangential_update": lambda v: np.sqrt(v.tt),
    "unit_grad_norm": lambda v: v.unit_grad_norm,
    "grad_weight_cosine": lambda v: v.wg / v.unit_grad_norm,
    "grad_momentum_cosine": lambda v: v.gm / np.sqrt(v.gg * v.mm),
    "lambda_u": lambda v: v.decay[0],
    "lambda_e": lambda v: v.decay[1],
    "scaled_grad_norm": lambda v: np.sqrt(v.decay[2]),
    "effective_lr": lambda v: v.at.settings.lr / (v.ww * v.b * (1 + v.r)),
    "max_update": lambda v: v.most / v.at.settings.lr,
    "accumulated_angle": lambda v: _angle(v.old_ww, v.old_wd, v.old_tt),
    "angle_to_start": lambda v: _angle(v.start_ww, v.start_wd, v.start_tt),
    "rotation_discrepancy": lambda v: v.decay[3],
}
QUANTITIES = tuple(
    Quantity(name, unit, formula, source, per_vector=name in VECTOR_FORMULAS)
    for name, unit, formula, source in (row.split(" :: ") for row in TABLE.splitlines()[1:])
)
"""Every quantity with its unit, formula and source: first quantities per vector, then quantities per layer."""
PER_VECTOR = tuple(quantity for quantity in QUANTITIES if quantity.per_vector)
PER_LAYER = tuple(quantity for quantity in QUANTITIES if not quantity.per_vector)
PLACE = {quantity.name: place for table in (PER_VECTOR, PER_LAYER) for place, quantity in enumerate(table)}
"""Index of a quantity among those of its kind."""


def stored_number(sample: LayerSample, name: str, stat: str = "mean") -> float:
    """Return a statistic of a quantity in a sample, or the number itself of a quantity per layer."""
    if name in VECTOR_FORMULAS:
        return float(sample.statistics[PLACE[name], STATISTICS.index(stat)])
    return float(sample.scalars[PLACE[name]])
