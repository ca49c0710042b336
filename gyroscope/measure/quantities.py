"""What is measured: one table with the unit, the formula and the paper of each quantity, and its code beside it.

RE is Kosson et al., "Rotational Equilibrium"; SP Roburin et al., "Spherical Perspective on Learning with Batch Norm";
SMD "Spherical Motion Dynamics" (ICLR 2021 submission); CT "Continuous-Time Analysis of Adaptive Optimization and
Normalization". "ours" is derived in the documentation of `gyroscope.theory`.

In the formulas w is a weight vector of C entries before the step, d its displacement and w' = w + d; g is the gradient
at w, m the momentum before the step, b = √v̂ + ε Adam's denominator after it, and λ the weight decay.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from gyroscope._types import Array, Float32
from gyroscope.measure._pipeline.batches import ROW
from gyroscope.measure._pipeline.optimizers import StepContext
from gyroscope.store import Quantity
from gyroscope.theory import sensitivity, signal

NAN = float("nan")


@final
@dataclass(frozen=True)
class StepPrediction:
    """What theory says of a layer at a step: where it would settle, and where it should be by now; NaN: nothing."""

    angular_update: float = NAN
    norm: float = NAN
    timescale: float = NAN
    forecast_angular_update: float = NAN
    forecast_norm: float = NAN


@final
@dataclass(frozen=True)
class LayerNumbers:
    """What the quantities that are one number per layer are made of."""

    at: StepContext
    predicted: StepPrediction
    dead: float
    non_finite: float
    frozen: float
    entries: float
    signal: "LayerSignal"


@final
@dataclass(frozen=True)
class LayerSignal:
    """How much of a layer's motion is signal, as `theory.signal` defines it; NaN where its optimizer does not tell."""

    ratio: float = NAN
    noise_scale: float = NAN
    alignment: float = NAN


@final
@dataclass
class VectorSums:
    """Sums over each vector of one or more layers in the same context: arrays over vectors.

    `predicted_angle` is that of each vector's layer, known later than the rest.
    """

    at: StepContext
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
    frozen: Array
    predicted_angle: Array

    @classmethod
    def of(cls, sums: Array, at: StepContext, fan_in: Array) -> "VectorSums":
        """Make it from the device's sums: gradients in their true scale, and the momentum before the step."""
        rows = {name: sums[row] for name, row in ROW.items()}
        with np.errstate(all="ignore"):
            # The step itself may have rescaled the gradient (fused kernels do), which only the later sums have seen.
            after = np.where(rows["hh"] > 0, np.sqrt(rows["gg"] / rows["hh"]), 1.0) / at.scale
            wg = rows["wg"] * at.sign / at.scale
            gg = rows["gg"] / at.scale**2
            gm = rows["gm"] * at.sign / at.scale
            gm, mm = _momentum_before(at, rows["ww"], wg, gg, gm, rows["mm"], rows["wm"])
            ws = rows["ws"] * at.sign * after
            ss = rows["ss"] * after**2
        del rows["hh"], rows["wm"]
        rows |= {"wg": wg, "gg": gg, "gm": gm, "mm": mm, "ws": ws, "ss": ss, "predicted_angle": np.full_like(wg, NAN)}
        return cls(at, fan_in, **rows)

    def rms_norms(self, part: slice) -> tuple[float, float]:
        """Return the RMS over a layer's vectors of the norm before the step, and of the gradient at unit norm."""
        with np.errstate(all="ignore"):
            ww = self.ww[part]
            gradient = np.sqrt(self.gg[part] * ww)
            return float(np.sqrt(np.mean(ww))), float(np.sqrt(np.mean(gradient**2)))

    def per_vector(self, start: int, stop: int) -> Float32:
        """Return the quantities from `start` to `stop`, a row each, NaN if they are not finite."""
        with np.errstate(all="ignore"):
            values = np.array([row.of(self) for row in PER_VECTOR[start:stop]], dtype=np.float32)
        values[~np.isfinite(values)] = np.nan
        return values

    def per_layer(self, part: slice, predicted: StepPrediction) -> Float32:
        """Return the quantities per layer of the layer that has these vectors, NaN if they are not finite."""
        self.predicted_angle[part] = predicted.angular_update
        dead = float(np.sum(self.gg[part] == 0))
        # A NaN or infinity in w, d or g reaches the sums in which it stands.
        finite = np.isfinite(self.ww[part]) & np.isfinite(self.wd[part]) & np.isfinite(self.gg[part])
        non_finite = np.count_nonzero(~finite) / max(1, len(finite))
        frozen = float(self.frozen[part].sum())
        entries = float(self.fan_in[part].sum())
        with np.errstate(all="ignore"):
            numbers = LayerNumbers(self.at, predicted, dead, non_finite, frozen, entries, self._signal(part))
            values = np.array([row.of(numbers) for row in PER_LAYER], dtype=np.float32)
        values[~np.isfinite(values)] = np.nan
        return values

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
        """RMS of the denominator of SP's generic step, Adam's b·(1-β1^t)/(1-β1); 1 where there is none."""
        return np.sqrt(self.bb / self.fan_in) if self.at.reading.adam else 1.0

    @cached_property
    def decay(self) -> tuple[Array, Array, Array, Array]:
        """λ_u, λ_e, C_err and D of each vector, as `theory.sensitivity` defines them; NaN where they are undefined."""
        # All four at once, since they share their terms and each is asked for once per sample.
        unknown = np.full_like(self.ww, NAN)
        angle = self.angle
        gradient = self._radial_gradient()
        scaled = sensitivity.scaled_gradient_error(self.ss, self.fan_in) if self.at.reading.adam else unknown
        radial = sensitivity.radial_decay(gradient, self.ww)
        total = np.asarray(sensitivity.effective_decay(self.at.settings.weight_decay, radial))
        return radial, total, scaled, sensitivity.rotation_discrepancy(self.predicted_angle, angle)

    def _radial_gradient(self) -> Array:
        """Return ⟨w,s⟩, s being the gradient as weight decay meets it: scaled as the update if decay is decoupled."""
        group_rule = self.at.group_rule
        if group_rule is None:
            return np.full_like(self.ww, NAN)
        beta1 = group_rule.sign_beta
        if beta1 is not None:  # near the mean a sign is linear: sign(c) ≈ c·sqrt(2C/π)/‖c‖
            c2 = beta1**2 * self.mm + 2 * beta1 * (1 - beta1) * self.gm + (1 - beta1) ** 2 * self.gg
            return self.wg * np.sqrt(2 * self.fan_in / np.pi / c2)
        if group_rule.rule.is_decoupled:
            return self.ws if self.at.reading.adam else np.full_like(self.ww, NAN)
        return self.wg

    def _signal(self, part: slice) -> LayerSignal:
        """Return the signal of a layer from its sums: Adam's with decoupled decay, or SGD's with momentum."""
        rule = self.at.group_rule
        if rule is None:
            return LayerSignal()
        gg, gm, mm = (float(x[part].sum()) for x in (self.gg, self.gm, self.mm))
        if rule.heavy_ball is not None:
            # SMD's h over ‖g‖² is the alignment itself.
            return LayerSignal(alignment=float(np.divide(gg + 2 * rule.heavy_ball * gm, gg)))
        if rule.recursion is None or rule.recursion.decay or not self.at.reading.adam:
            return LayerSignal()
        keep, share, _ = rule.recursion
        # ‖m'‖², with m' = keep·m + share·g; `bb` is of the denominator that SP divides a sum of gradients by.
        first = np.float64(keep**2 * mm + 2 * keep * share * gm + share**2 * gg)
        second = share**2 * self.bb[part].sum()
        ratio = float(signal.signal_ratio(first, second, keep))
        alignment = float(signal.alignment(first, second, keep))
        return LayerSignal(ratio, float(signal.noise_scale(ratio, 1.0)) if ratio > 0 else NAN, alignment)

    @property
    def smd_h(self) -> Array:
        """What drives the norm under SGD with momentum; not Nesterov's."""
        momentum = None if self.at.group_rule is None else self.at.group_rule.heavy_ball
        if momentum is None:
            return np.full_like(self.ww, NAN)
        return (self.gg + 2 * momentum * self.gm) * self.ww


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
    # With G = g + decay·w, what entered the momentum: m = (m' - share·G)/keep, multiplied out into known sums.
    GG = gg + 2 * decay * wg + decay**2 * ww
    before_gm = gm - share * (gg + decay * wg)
    before_mm = mm - 2 * share * (gm + decay * wm) + share**2 * GG
    return before_gm / keep, before_mm / keep**2


def _angle(ww: Array, wd: Array, tt: Array) -> Array:
    """Return the angle by which a vector rotates that moves by d, NaN if it has no direction."""
    # atan2 of both parts: an arccos of the cosine returns 0 below 3e-4 rad in float32, where training lives.
    along = ww + wd
    alive = (ww > 0) & ((along != 0) | (tt > 0))
    return np.where(alive, np.arctan2(np.sqrt(tt * ww), along), NAN)


class MeasuredQuantity(NamedTuple):
    """A quantity, and the code that takes it from the sums, or where it is one number per layer from `LayerNumbers`."""

    quantity: Quantity
    of: Callable[[Any], Any]


def _vector(name: str, unit: str, formula: str, source: str, of: Callable[[VectorSums], Any]) -> MeasuredQuantity:
    return MeasuredQuantity(Quantity(name, unit, formula, source), of)


def _layer(name: str, unit: str, formula: str, source: str, of: Callable[[LayerNumbers], float]) -> MeasuredQuantity:
    return MeasuredQuantity(Quantity(name, unit, formula, source, per_vector=False), of)


PER_VECTOR = (
    _vector(
        "angular_update", "rad", "∠(w, w') = atan2(‖d - r·w‖, (1+r)·‖w‖), r = ⟨w,d⟩/‖w‖²", "RE (5)", lambda v: v.angle
    ),
    _vector("norm", "weight", "‖w'‖, after the step", "RE Table 1", lambda v: np.sqrt((1 + v.r) ** 2 * v.ww + v.tt)),
    _vector("update_norm", "weight", "‖d‖", "RE (3)", lambda v: np.sqrt(v.r**2 * v.ww + v.tt)),
    _vector("radial_update", "weight", "⟨w,d⟩/‖w‖; negative inwards", "RE Figure 2", lambda v: v.r * v.norm),
    _vector("tangential_update", "weight", "‖d - r·w‖", "RE Figure 2", lambda v: np.sqrt(v.tt)),
    _vector("unit_grad_norm", "loss", "‖g‖·‖w‖", "SMD Definition 1, RE (2)", lambda v: v.unit_grad_norm),
    _vector("grad_weight_cosine", "", "⟨g,w⟩/(‖g‖·‖w‖)", "RE (1)", lambda v: v.wg / v.unit_grad_norm),
    _vector(
        "grad_momentum_cosine",
        "",
        "⟨g,m⟩/(‖g‖·‖m‖), m before the step; NaN where there is none, or it cannot be told after a closure",
        "SMD (60)",
        lambda v: v.gm / np.sqrt(v.gg * v.mm),
    ),
    _vector(
        "lambda_u",
        "weight decay",
        "⟨w,s⟩/‖w‖²; s = g where the decay passes through the gradient; decoupled: s = g/b for AdamW and NAdam, "
        "g·sqrt(2C/π)/‖β1·m + (1-β1)·g‖ for Lion",
        "RE (94)",
        lambda v: v.decay[0],
    ),
    _vector("lambda_e", "weight decay", "λ + λ_u", "RE Appendix L", lambda v: v.decay[1]),
    _vector("scaled_grad_norm", "", "‖g/b‖/√C; NaN without a second moment", "RE (91)", lambda v: np.sqrt(v.decay[2])),
    _vector(
        "smd_h", "loss²", "(‖g‖² + 2α⟨m,g⟩)·‖w‖², SGD with momentum α, not Nesterov's", "SMD (60)", lambda v: v.smd_h
    ),
    _vector(
        "effective_lr",
        "",
        "η_e = lr/(‖w‖²·B·(1+r)), B the RMS of b·(1-β1^t)/(1-β1) for Adam, else 1",
        "SP Theorem 2 (11)",
        lambda v: v.at.settings.lr / (v.ww * v.b * (1 + v.r)),
    ),
    _vector(
        "perpendicular_update",
        "",
        "‖c⊥‖ = ‖w‖·B·‖d - r·w‖/lr, so that tan(angular_update) = effective_lr·perpendicular_update",
        "SP Theorem 2 (12)",
        lambda v: v.norm * v.b * np.sqrt(v.tt) / v.at.settings.lr,
    ),
    _vector(
        "max_update",
        "",
        "‖u‖_∞ = max|d + a·w|/lr, a = lr·λ where the decay is decoupled, else 0",
        "CT (5)",
        lambda v: v.most / v.at.settings.lr,
    ),
    _vector(
        "accumulated_angle",
        "rad",
        "∠(w at the previous sample, w), both before their step",
        "ours: in equilibrium its cosine is e^(-steps/timescale)",
        lambda v: _angle(v.old_ww, v.old_wd, v.old_tt),
    ),
    _vector(
        "rotation_discrepancy",
        "",
        "(predicted_angular_update/angular_update)²",
        "ours; theory.sensitivity",
        lambda v: v.decay[3],
    ),
)
PER_LAYER = (
    _layer(
        "predicted_angular_update",
        "rad",
        "angle per step in equilibrium, at the lr and decay of this step",
        "RE Table 1; theory.Rule.at",
        lambda layer: layer.predicted.angular_update,
    ),
    _layer(
        "predicted_norm",
        "weight",
        "RMS norm in equilibrium, at the lr and decay of this step; the norm held, where the optimizer holds it",
        "RE Table 1; theory.Rule.at",
        lambda layer: layer.predicted.norm,
    ),
    _layer(
        "predicted_timescale",
        "steps",
        "1/a, after which a direction is forgotten in equilibrium",
        "ours; theory.Rule.at",
        lambda layer: layer.predicted.timescale,
    ),
    _layer(
        "forecast_angular_update",
        "rad",
        "angle of this step by the averaged motion from the first measured norm, with the lr of every step since",
        "ours; theory.forecast",
        lambda layer: layer.predicted.forecast_angular_update,
    ),
    _layer(
        "forecast_norm",
        "weight",
        "RMS norm after this step by the same motion",
        "ours; theory.forecast",
        lambda layer: layer.predicted.forecast_norm,
    ),
    _layer("lr", "", "learning rate of the layer's group in this step", "torch", lambda layer: layer.at.settings.lr),
    _layer(
        "weight_decay",
        "",
        "weight decay of the layer's group in this step",
        "torch",
        lambda layer: layer.at.settings.weight_decay,
    ),
    _layer(
        "highest_lr",
        "",
        "highest learning rate of the layer's group since the previous sample, this step included",
        "torch",
        lambda layer: layer.at.settings.highest_lr,
    ),
    _layer(
        "beta1",
        "",
        "β1 of Adam or Lion, or the momentum, of the layer's group in this step",
        "torch",
        lambda layer: layer.at.settings.beta1,
    ),
    _layer("beta2", "", "β2 of the layer's group in this step", "torch", lambda layer: layer.at.settings.beta2),
    _layer(
        "skipped_steps",
        "steps",
        "steps of the run that a GradScaler skipped since the previous sample, of optimizers with a fused step: others "
        "are not called in such a step, and nothing is known of it",
        "torch",
        lambda layer: float(layer.at.settings.skipped_steps),
    ),
    _layer(
        "lr_jump_step",
        "step",
        "first step since the previous sample whose learning rate is more than 1.5 times that of the step before; NaN "
        "without one",
        "ours",
        lambda layer: layer.at.settings.lr_jump_step,
    ),
    _layer(
        "lr_before_jump",
        "",
        "learning rate of the step before it",
        "ours",
        lambda layer: layer.at.settings.lr_before_jump,
    ),
    _layer(
        "setting_jump_step",
        "step",
        "the same for the weight decay, 1-β1 and 1-β2, up or down",
        "ours",
        lambda layer: layer.at.settings.setting_jump_step,
    ),
    _layer(
        "signal_ratio",
        "",
        "κ² = |signal|²/E|noise|² of a batch's gradient = (M - qV)/(V - M), M = Σm̂², V = Σv̂, q = (1-β1)/(1+β1); "
        "Adam with decoupled decay, after some memories of the momentum",
        "ours; theory.signal",
        lambda layer: layer.signal.ratio,
    ),
    _layer(
        "noise_scale",
        "batches",
        "1/κ²: so many of this run's batches make one in which signal and noise are equal",
        "McCandlish et al. 2018, 2.9; theory.signal",
        lambda layer: layer.signal.noise_scale,
    ),
    _layer(
        "alignment",
        "",
        "s = (M/V)/q for Adam, 1 + 2α⟨g,m⟩/‖g‖² for SGD with momentum α, not Nesterov's: 1 is pure noise, "
        "(1+β1)/(1-β1) gradients that all agree; norms settle at s^(1/2), with SGD s^(1/4), of noise's",
        "ours; theory.signal",
        lambda layer: layer.signal.alignment,
    ),
    _layer("dead_vectors", "vectors", "measured vectors with g = 0", "ours", lambda layer: layer.dead),
    _layer(
        "non_finite",
        "",
        "share of the measured vectors with a NaN or infinity in w, g or d, or a norm beyond 1e19",
        "ours",
        lambda layer: layer.non_finite,
    ),
    _layer(
        "frozen_entries",
        "entries",
        "measured entries with g ≠ 0 whose weight did not change; 0 at lr = 0",
        "ours",
        lambda layer: layer.frozen if layer.at.settings.lr else 0.0,
    ),
    _layer("entries", "entries", "measured entries", "ours", lambda layer: layer.entries),
)
QUANTITIES = (*PER_VECTOR, *PER_LAYER)
PLACE = {row.quantity.name: place for table in (PER_VECTOR, PER_LAYER) for place, row in enumerate(table)}
"""Index of a quantity among those of its kind."""
