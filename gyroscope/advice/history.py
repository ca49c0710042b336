"""One layer of a run: its series and the numbers derived from them, without gaps and infinities."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from math import nan
from typing import Any

import numpy as np

from gyroscope import theory
from gyroscope._types import Array, Mask
from gyroscope.advice import thresholds as limit
from gyroscope.advice.record import Record, finite_ratio, group_config, positive_ratio
from gyroscope.optimizers import spec_by_name
from gyroscope.theory import UpdateRule
from gyroscope.theory.convergence import MEMORY_PASSED
from gyroscope.theory.forecast import SETTLED
from gyroscope.theory.law import safe_divide


@dataclass(frozen=True, eq=False)
class LayerHistory:
    """One layer of a record: its series and the numbers derived from them. `run_layer` adds what judgements need."""

    record: Record
    name: str
    samples: int | None = None
    """Number of samples that are read, beginning with the first. None means all."""

    def series(self, quantity: str, stat: str = "mean") -> Array:
        """Return a series as finite numbers and NaN. All NaN if the record has no such quantity."""
        values = self._stored(quantity, stat)
        return np.where(np.isfinite(values), values, nan)

    def _stored(self, quantity: str, stat: str = "mean") -> Array:
        if quantity not in self.record.quantities:
            return np.full(len(self.steps), nan)
        return np.asarray(self.record.series(self.name, quantity, stat), dtype=np.float64)[: self.samples]

    @cached_property
    def steps(self) -> Array:
        """Step of each sample."""
        return np.asarray(self.record.steps, dtype=np.float64)[: self.samples]

    @cached_property
    def step_count(self) -> int:
        """Number of steps of the run, or up to the last sample that is read if not all are."""
        sampled = int(self.steps[-1]) + 1 if len(self.steps) else 0
        # A closed run has stored its last step, sampled or not.
        return sampled if self.samples is not None else max(sampled, getattr(self.record, "last_step", -1) + 1)

    @cached_property
    def layer(self) -> Any:
        """Shape, vectors and group."""
        return self.record.layer(self.name)

    @property
    def is_embedding(self) -> bool:
        """Whether its vectors are tokens. The text decides which of them have a gradient and rotate."""
        return getattr(self.layer, "granularity", "") == "token"

    @cached_property
    def angle(self) -> Array:
        """Mean angle per step, in radians."""
        return self.series("angular_update")

    @cached_property
    def rms_angle(self) -> Array:
        """Root mean square over the layer's vectors, which is what the theory predicts."""
        return self.series("angular_update", "rms")

    @cached_property
    def predicted_angle(self) -> Array:
        """The same in equilibrium, at the settings of each step."""
        return self.series("predicted_angular_update")

    @cached_property
    def lr(self) -> Array:
        """Learning rate."""
        return self.series("lr")

    @cached_property
    def decay(self) -> Array:
        """Fraction of the weight that decays per step, a. 0 without decay, NaN if unknown."""
        # Not read through `series`, which would replace an infinite timescale (no decay) by NaN.
        return np.asarray(safe_divide(1.0, self._stored("predicted_timescale")))

    @cached_property
    def distance(self) -> Array:
        """RMS norm over its equilibrium."""
        # Theory predicts the mean of ‖w‖², hence the RMS of the vectors' norms.
        return positive_ratio(self.series("norm", "rms"), self.series("predicted_norm"))

    @cached_property
    def peak(self) -> int:
        """Sample with the highest learning rate that lasts, the first of several. 0 if rates are unknown."""
        known = np.flatnonzero(np.isfinite(self.lr))
        if not known.size:
            return 0
        # A running median ignores a rate that was raised for a moment, because that is no peak of a schedule.
        padded = np.pad(self.lr[known], limit.MIN_RATE_SAMPLES // 2, mode="edge")
        lasting = np.median(np.lib.stride_tricks.sliding_window_view(padded, limit.MIN_RATE_SAMPLES), axis=1)
        return int(known[np.argmax(lasting)])

    @cached_property
    def lost(self) -> Mask:
        """Samples in which no vector of the layer had finite weights, gradients and updates."""
        return np.asarray(self.series("non_finite") >= 1)

    @property
    def diverged(self) -> bool:
        """Whether the last sample of the layer is lost, so that earlier numbers no longer describe it."""
        # A layer without a gradient has no share either, not even 0.
        present = np.flatnonzero(np.isfinite(self.series("non_finite")))
        return bool(present.size and self.lost[present[-1]])

    @cached_property
    def window(self) -> Mask:
        """Samples over which steady values are averaged: the last part of the run at full rate."""
        return self._last_part(limit.MIN_FULL_RATE, limit.JUDGED_SHARE)

    def mean(self, values: Array) -> float:
        """Return the mean over the window, or NaN if there are no numbers."""
        judged = values[self.window & np.isfinite(values)]
        return float(judged.mean()) if judged.size else nan

    def rms(self, values: Array) -> float:
        """Return the root mean square over the window, or NaN if there are no numbers."""
        return float(np.sqrt(self.mean(values**2)))

    @cached_property
    def late(self) -> Mask:
        """Samples of the last part of the run, as long as the learning rate is not next to 0."""
        return self._last_part(limit.MIN_RATE_SHARE, limit.LATE_SHARE)

    def _last_part(self, least_rate: float, share: float) -> Mask:
        """Return the samples in the last share of the run, none once it has diverged.

        Their learning rate is unknown, or at least this share of its peak.
        """
        # A slice, because a record may have no sample.
        peak = self.lr[self.peak : self.peak + 1]
        places = np.flatnonzero(np.isfinite(self.angle) & ~(self.lr < least_rate * peak))
        chosen = np.zeros(len(self.steps), dtype=bool)
        if places.size and not self.diverged:
            last = self.steps[places[-1]]
            duration = last - self.steps[places[0]]
            # By steps and not by samples, which may be spaced unevenly. A mean needs at least three samples.
            part = places[self.steps[places] >= last - share * duration]
            chosen[part if part.size >= limit.MIN_MEAN_SAMPLES else places[-limit.MIN_MEAN_SAMPLES :]] = True
        return chosen

    @cached_property
    def memory(self) -> float:
        """1/a at the peak learning rate, in steps. NaN if unknown."""
        return float(safe_divide(1.0, self.decay[self.peak])) if len(self.decay) else nan

    @cached_property
    def run_length(self) -> float:
        """Σ a_t over the run so far, in memories. Steps between samples have the values of the samples."""
        known = np.isfinite(self.decay)
        if not known.any():
            return nan
        steps = self.steps[known]
        decay = self.decay[known]
        # Trapezoids between samples. Steps before the first and after the last sample have its decay.
        between = np.diff(steps) @ (decay[1:] + decay[:-1]) / 2
        after = decay[-1] * (self.step_count - 1 - self.steps[-1])
        return float(decay[0] * (steps[0] + 1) + between + after)

    @cached_property
    def is_longer_than_memory(self) -> bool:
        """Whether the run is at least one memory long (X ≥ 1), so that the layer is compared with equilibrium.

        In a shorter run the norm is mostly the initial norm, and the prediction is the forecast from there. If the
        optimizer holds norms, run length does not matter. If X is unknown, there is no forecast.
        """
        return self.keeps_norm or not self.run_length < MEMORY_PASSED

    @property
    def reference(self) -> str:
        """What theory predicts for this layer, in a word."""
        return "equilibrium" if self.is_longer_than_memory else "forecast"

    @cached_property
    def reference_angle(self) -> Array:
        """Predicted angle per step: of equilibrium, or of the forecast from the start while X is below 1."""
        return self.predicted_angle if self.is_longer_than_memory else self.series("forecast_angular_update")

    @cached_property
    def norm_ratio(self) -> Array:
        """RMS norm over the predicted one: `distance`, or the norm over that of the forecast while X is below 1."""
        if self.is_longer_than_memory:
            return self.distance
        return positive_ratio(self.series("norm", "rms"), self.series("forecast_norm"))

    @cached_property
    def settled_at(self) -> float:
        """Step of the first of two samples in a row, at the peak rate or later, that are near equilibrium, or NaN.

        NaN in a run shorter than its memory, because a falling target may pass a norm that has not settled.
        """
        if not self.is_longer_than_memory:
            return nan
        # Two samples in a row, because a norm that passes through equilibrium may be near it in one.
        near = np.abs(self.distance - 1) <= SETTLED
        near[: self.peak] = False
        together = np.flatnonzero(near[:-1] & near[1:])
        return float(self.steps[together[0]]) if together.size else nan

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of the layer's parameter group, empty if the record has none."""
        return group_config(self.record.config, self.layer.group)

    def option(self, name: str) -> Any:
        """Return one of them, or None if the record does not have it."""
        return self.options.get(name)

    @cached_property
    def rule(self) -> UpdateRule | None:
        """The rule of the layer's group, at its peak learning rate. None if it is unknown."""
        stored = self.option("rule")
        if not isinstance(stored, Mapping):
            return None
        # JSON has no tuples, so betas come back as a list.
        settings: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()
        }
        cls = getattr(theory, str(settings.pop("name", "")), None)
        if not (isinstance(cls, type) and issubclass(cls, UpdateRule)):
            return None
        # The configuration has the rates of the first step, which a warmup makes small.
        for name, values in (("lr", self.lr), ("weight_decay", self.series("weight_decay"))):
            if name in settings and len(values) and np.isfinite(values[self.peak]):
                settings[name] = float(values[self.peak])
        factor = float(self.option("lr_factor") or 1.0)
        scaled = ["lr"]
        # A `Rule` has no learning rate. Its decay and its updates contain that of the first step as a factor.
        if "lr" not in settings:
            scaled = ["decay", "update_rms"]
            factor = factor * self.lr[self.peak] if len(self.lr) else 1.0
        settings |= {name: settings[name] * factor for name in scaled if settings.get(name)}
        try:
            return cls(**{field.name: settings[field.name] for field in fields(cls) if field.name in settings})  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return None

    @cached_property
    def keeps_norm(self) -> bool:
        """Whether the optimizer keeps the norms fixed and sets the angle, so that nothing has to settle."""
        # By name: the run has no optimizer, only its class name.
        spec = spec_by_name(str(self.option("optimizer")))
        return (spec is not None and spec.keeps_norms) or (self.rule is not None and self.rule.keeps_norm)

    @cached_property
    def rotation_ratio(self) -> float:
        """Measured over predicted rotation in the window, as root mean squares because the theory predicts those.

        The mean is lower if gradients come in bursts. In a network that had learnt its digits the mean was 13 to 19 %
        below the prediction, and the root mean square of the same layers was within 6 %.
        """
        return self.rms(finite_ratio(self.rms_angle, self.reference_angle))

    @cached_property
    def speeds(self) -> Array:
        """Measured over predicted rotation, `reference_angle`, at each sample."""
        return finite_ratio(self.angle, self.reference_angle)

    @property
    def weight_decay(self) -> float:
        """Weight decay at the peak learning rate."""
        values = self.series("weight_decay")
        return float(values[self.peak]) if len(values) else nan

    def quantile_ratio(self) -> Array:
        """Return the 95th over the 5th percentile of the angle over vectors, at each sample."""
        return positive_ratio(self.series("angular_update", "q95"), self.series("angular_update", "q05"))


def layer_histories(record: Record, samples: int | None = None) -> list[LayerHistory]:
    """Return every layer of a record, or of its first samples."""
    return [LayerHistory(record, name, samples) for name in record.layers]
