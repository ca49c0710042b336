"""A layer of a run for judgements: the last part of its history in numbers."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import inf, isfinite, nan, sqrt
from typing import NamedTuple, final

import numpy as np

from gyroscope._types import Array
from gyroscope.advice import thresholds as limit
from gyroscope.advice.history import LayerHistory
from gyroscope.advice.layer_view import Departure, NeuronSpread, NormState, Start, UpdateGrowth
from gyroscope.advice.neuron_spread import noise_ratio
from gyroscope.advice.norm_state import departure, initial_layer, norm_state
from gyroscope.advice.record import finite_ratio
from gyroscope.theory import UpdateRule, sensitivity
from gyroscope.theory.layer_prediction import InitialLayer, needed_warmups


class RadialGradient(NamedTuple):
    """λ_u of a layer's median vector, λ_e/λ, and whether λ_u is surely not 0."""

    lambda_u: float = 0.0
    decay_error: float = 1.0
    is_significant: bool = False

    @property
    def factor(self) -> float:
        """λ_e/λ or its inverse, whichever is above 1. Infinite if the gradient outweighs the decay."""
        return inf if self.decay_error <= 0 else max(self.decay_error, 1 / self.decay_error)


@final
class RunView(LayerHistory):
    """One layer of a run."""

    @cached_property
    def norm_state(self) -> NormState:
        """How the norm compares with its equilibrium."""
        return norm_state(self)

    @property
    def predicted_rotation(self) -> float:
        """Rotation in equilibrium at the peak learning rate, in radians per step."""
        return float(self.predicted_angle[self.peak])

    @cached_property
    def rotation(self) -> float:
        """RMS over vectors and over the judged part of the run, in radians per step."""
        return self.rms(self.rms_angle)

    @property
    def sets_imbalance(self) -> bool:
        """Whether its optimizer was set to rotate neurons at different speeds."""
        return bool(self.option("angle_factors"))

    @cached_property
    def late_rotation_ratio(self) -> float:
        """Measured over predicted rotation at the end of the run, as root mean squares."""
        return sqrt(self._late_mean(finite_ratio(self.rms_angle, self.reference_angle) ** 2))

    def _late_mean(self, values: Array) -> float:
        known = values[self.late & np.isfinite(values)]
        return float(known.mean()) if known.size else nan

    @property
    def is_measured(self) -> bool:
        """Whether any step with a gradient was seen."""
        return bool(np.isfinite(self.angle).any())

    @cached_property
    def non_finite_share(self) -> float:
        """Share of the vectors that are not finite at the end."""
        share = self.series("non_finite")
        known = share[np.isfinite(share)]
        return float(known[-1]) if known.size else 0.0

    @cached_property
    def start(self) -> Start | None:
        """The fastest step of the start. None if nothing is predicted, or if the optimizer sets the angle."""
        if self.norm_state == "unknown" or self.keeps_norm:
            return None
        high = np.isfinite(self.predicted_angle) & (self.lr >= limit.MIN_PEAK_RATE * self.lr[self.peak])
        if not high.any():
            return None
        usual = float(np.median(self.predicted_angle[high]))
        # The start lasts until the layer has settled, but no longer than a tenth of the run after its warmup.
        until = self.steps[self.peak] + limit.START_SHARE * np.ptp(self.steps)
        until = min(until, self.settled_at) if isfinite(self.settled_at) else until
        early = np.isfinite(self.angle) & (self.steps <= until)
        if not early.any() or not usual > 0:
            return None
        first = int(np.flatnonzero(early)[np.argmax(self.angle[early])])
        return Start(float(self.angle[first] / usual), float(self.steps[first]))

    @property
    def departure(self) -> Departure | None:
        """Where the norm fell out of its equilibrium. None if it did not."""
        return departure(self) if self.norm_state == "fell out" else None

    @cached_property
    def vectors(self) -> float:
        """How many vectors were measured: all, or a sample of rows."""
        entries = self.mean(self.series("entries"))
        fan_in = self.layer.fan_in
        return entries / fan_in if isfinite(entries) else float(self.layer.vectors)

    @cached_property
    def dead(self) -> int:
        """Vectors without a gradient in every judged sample."""
        # The smallest count: a vector that had a gradient in any judged sample is alive.
        counts = self.series("dead_vectors")
        counts = counts[self.window & np.isfinite(counts)]
        return int(counts.min()) if counts.size >= limit.MIN_MEAN_SAMPLES else 0

    @property
    def neuron_spread(self) -> NeuronSpread | None:
        """How differently neurons rotate, by averages if the record has every vector, otherwise by single steps."""
        raw = self._raw_angles
        if raw is not None:
            return self._spread_of_averages(raw)
        # The 5th percentile is then that of dead vectors, which have a separate finding.
        if self.mean(self.series("dead_vectors")) / max(self.vectors, 1.0) > limit.OUTER_SHARE / 2:
            return None
        # A geometric mean, so that a ratio and its inverse have the same weight.
        ratio = float(np.exp(self.mean(np.log(self.quantile_ratio()))))
        noise = noise_ratio(self.layer.fan_in, round(self.vectors))
        return NeuronSpread(ratio, noise, limit.MAX_NEURON_RATIO_OF_ONE_STEP)

    @property
    def _raw_angles(self) -> Array | None:
        """(samples, vectors) of the judged part of the run, or None if the record did not keep every vector."""
        raw = getattr(self.record, "raw", None)
        if raw is None or "angular_update" not in self.record.quantities:
            return None
        try:
            chosen = np.asarray(raw(self.name, "angular_update"), dtype=np.float64)[: self.samples][self.window]
        except (ValueError, KeyError):
            return None
        return chosen if np.isfinite(chosen).any() else None

    def _spread_of_averages(self, raw: Array) -> NeuronSpread:
        steps = self.steps[self.window]
        averages = np.array([column[np.isfinite(column)].mean() for column in raw.T if np.isfinite(column).any()])
        spacing = float(np.median(np.diff(steps))) if len(steps) > 1 else 1.0
        momentum = 1 - 1 / self.rule.momentum_memory if self.rule is not None else 0.0
        fan_in = self.layer.fan_in
        noise = noise_ratio(fan_in, len(averages), samples=len(raw), spacing=spacing, momentum=momentum)
        low, high = np.quantile(averages, [limit.OUTER_SHARE, 1 - limit.OUTER_SHARE])
        return NeuronSpread(float(high / low) if low > 0 else nan, noise, limit.MAX_NEURON_RATIO)

    @cached_property
    def update_growth(self) -> UpdateGrowth:
        """The largest update, in units of lr: late over early, and late."""
        values = self.series("max_update", "max")
        values = values[np.isfinite(values) & (values > 0)]
        if values.size < limit.MIN_SAMPLES:
            return UpdateGrowth(1.0, float(values[-1]) if values.size else 0.0)
        # The first quarter against the second half. A quantile and a median, because single extremes are noise.
        part = max(values.size // limit.GROWTH_PARTS, 2)
        late = float(np.quantile(values[-2 * part :], limit.LATE_QUANTILE))
        return UpdateGrowth(late / float(np.median(values[:part])), late)

    @property
    def judged_decay(self) -> float:
        """Weight decay, as a mean over the judged part of the run."""
        return self.mean(self.series("weight_decay"))

    @cached_property
    def radial(self) -> RadialGradient:
        """The gradient along the weights, as a weight decay."""
        # The median vector: a few rows with tiny norms would dominate a mean.
        values = self.series("lambda_u", "q50")
        judged = values[self.window & np.isfinite(values)]
        if judged.size < limit.MIN_MEAN_SAMPLES or not self.judged_decay > 0:
            return RadialGradient()
        mean = float(judged.mean())
        standard_error = float(judged.std(ddof=1)) / judged.size**0.5
        error = float(sensitivity.decay_error(self.judged_decay, mean))
        return RadialGradient(mean, error, abs(mean) > limit.MIN_STANDARD_ERRORS * standard_error)

    @cached_property
    def frozen_share(self) -> float:
        """Share of the entries that have a gradient and did not change in a step."""
        with np.errstate(divide="ignore", invalid="ignore"):
            share = self.mean(self.series("frozen_entries") / self.series("entries"))
        return share if isfinite(share) else 0.0


def speeds_in_groups(views: Sequence[RunView]) -> Iterator[tuple[RunView, float]]:
    """Yield rotation over the median prediction of the layer's group. Differing predictions are imbalance too."""
    for group in {view.layer.group for view in views}:
        members = [view for view in views if view.layer.group == group]
        predicted = np.stack([view.predicted_angle for view in members])
        known = np.isfinite(predicted).any(0)
        # The median over the group: one layer with an odd prediction does not move it.
        usual = np.full(predicted.shape[1], np.nan)
        usual[known] = np.nanmedian(predicted[:, known], axis=0)
        for view in members:
            with np.errstate(divide="ignore", invalid="ignore"):
                yield view, view.rms(np.where(usual > 0, view.rms_angle / usual, np.nan))


def warmups_from_start(views: Sequence[RunView]) -> list[int | None]:
    """Return the warmups that the first layers need, searched as in a plan, from the first measurements."""
    steps = int(views[0].steps[-1]) + 1
    starts: dict[UpdateRule, list[InitialLayer]] = {}
    for view in views[: limit.MAX_WARMUP_SEARCHES]:
        layer = initial_layer(view)
        if view.rule is not None and layer is not None and not layer.missing(view.rule):
            starts.setdefault(view.rule, []).append(layer)
    return [warmup for rule, layers in starts.items() for warmup in needed_warmups(rule, steps, layers)]
