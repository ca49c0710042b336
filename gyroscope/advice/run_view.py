"""A layer of a run as judgements see it: the last part of its history in numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite, nan, sqrt
from typing import NamedTuple, final

import numpy as np

from gyroscope._types import Array
from gyroscope.advice import thresholds as limit
from gyroscope.advice.history import LayerHistory, raw_angles
from gyroscope.advice.layer_view import Departure, NeuronSpread, NormState, Start, UpdateGrowth
from gyroscope.advice.neuron_spread import noise_ratio
from gyroscope.advice.norm_state import departure, initial_layer, norm_state
from gyroscope.theory import UpdateRule, sensitivity
from gyroscope.theory.law import safe_divide
from gyroscope.theory.layer_prediction import InitialLayer, needed_warmups


class RadialGradient(NamedTuple):
    """λ_u of a layer's median vector, λ_e/λ, and whether λ_u is surely not 0."""

    lambda_u: float = 0.0
    decay_error: float = 1.0
    is_significant: bool = False

    @property
    def factor(self) -> float:
        """λ_e/λ or its inverse, whichever is above 1; infinite if the gradient outweighs the decay."""
        return inf if self.decay_error <= 0 else max(self.decay_error, 1 / self.decay_error)


@final
@dataclass(frozen=True, eq=False)
class RunView:
    """One layer of a run."""

    history: LayerHistory

    @property
    def name(self) -> str:
        """Name of the parameter."""
        return self.history.name

    @property
    def rule(self) -> UpdateRule | None:
        """Rule of its group, at the peak learning rate."""
        return self.history.rule

    @property
    def keeps_norm(self) -> bool:
        """Whether the optimizer holds the norms and sets the angle."""
        return self.history.keeps_norm

    @cached_property
    def norm_state(self) -> NormState:
        """How the norm compares with its equilibrium."""
        return norm_state(self.history)

    @property
    def predicted_rotation(self) -> float:
        """Rotation in equilibrium at the peak learning rate, in radians per step."""
        return float(self.history.predicted_angle[self.history.peak])

    @cached_property
    def rotation_ratio(self) -> float:
        """Measured over predicted rotation, over the judged part of the run."""
        return self.history.speed

    @cached_property
    def rotation(self) -> float:
        """RMS over vectors and over the judged part of the run, in radians per step."""
        return self.history.rms(self.history.rms_angle)

    @property
    def memory(self) -> float:
        """1/a at the peak learning rate, in steps."""
        return self.history.memory

    @property
    def run_length(self) -> float:
        """Σ a_t over the run so far, in memories."""
        return self.history.run_length

    @property
    def settled_at(self) -> float:
        """Step at which the norm came within 10 % of equilibrium; NaN if it did not."""
        return self.history.settled_at

    @property
    def sets_imbalance(self) -> bool:
        """Whether its optimizer was told to rotate neurons at different speeds."""
        return self.history.option("imbalance") is not None

    @cached_property
    def late_rotation_ratio(self) -> float:
        """Measured over predicted rotation at the end of the run, as root mean squares."""
        ratio = np.asarray(safe_divide(self.history.rms_angle, self.history.reference_angle))
        return sqrt(self._late_mean(ratio**2))

    @cached_property
    def late_norm_ratio(self) -> float:
        """Norm over its prediction at the end of the run."""
        return self._late_mean(self.history.norm_ratio)

    @cached_property
    def update_ratio(self) -> float:
        """Length of Adam's updates at the end of the run over that of noise, sqrt(s); NaN for other optimizers."""
        is_adam = self.rule is not None and self.rule.adam_betas is not None
        return sqrt(max(self._late_mean(self.history.series("alignment")), 0.0)) if is_adam else nan

    def _late_mean(self, values: Array) -> float:
        known = values[self.history.late & np.isfinite(values)]
        return float(known.mean()) if known.size else nan

    @property
    def is_measured(self) -> bool:
        """Whether any step with a gradient was seen."""
        return bool(np.isfinite(self.history.angle).any())

    @cached_property
    def non_finite_share(self) -> float:
        """Share of the vectors that are not finite at the end."""
        share = self.history.series("non_finite")
        known = share[np.isfinite(share)]
        return float(known[-1]) if known.size else 0.0

    @cached_property
    def start(self) -> Start | None:
        """The fastest step of the start; None if nothing is predicted, or if the optimizer sets the angle."""
        history = self.history
        if self.norm_state == "unknown" or history.keeps_norm:
            return None
        high = np.isfinite(history.predicted_angle) & (history.lr >= limit.MIN_PEAK_RATE * history.lr[history.peak])
        if not high.any():
            return None
        usual = float(np.median(history.predicted_angle[high]))
        # The start lasts until the layer has settled, but no longer than a tenth of the run after its warmup.
        until = history.steps[history.peak] + limit.START_SHARE * np.ptp(history.steps)
        until = min(until, history.settled_at) if isfinite(history.settled_at) else until
        early = np.isfinite(history.angle) & (history.steps <= until)
        if not early.any() or not usual > 0:
            return None
        first = int(np.flatnonzero(early)[np.argmax(history.angle[early])])
        return Start(float(history.angle[first] / usual), float(history.steps[first]))

    @property
    def departure(self) -> Departure | None:
        """Where the norm fell out of its equilibrium; None if it did not."""
        return departure(self.history) if self.norm_state == "fell out" else None

    @cached_property
    def vectors(self) -> float:
        """How many vectors were measured: all, or a sample of rows."""
        entries = self.history.mean(self.history.series("entries"))
        fan_in = self.history.layer.fan_in
        return entries / fan_in if isfinite(entries) else float(self.history.layer.vectors)

    @cached_property
    def dead(self) -> int:
        """Vectors without a gradient in every judged sample."""
        # The smallest count: a vector that had a gradient in any judged sample is alive.
        counts = self.history.series("dead_vectors")
        counts = counts[self.history.window & np.isfinite(counts)]
        return int(counts.min()) if counts.size >= limit.MIN_MEAN_SAMPLES else 0

    @property
    def neuron_spread(self) -> NeuronSpread | None:
        """How differently neurons turn: by their averages if the record kept every vector, else by single steps."""
        raw = raw_angles(self.history)
        if raw is not None:
            return self._spread_of_averages(raw)
        # The 5th percentile is then that of dead vectors, which have a finding of their own.
        if self.history.mean(self.history.series("dead_vectors")) / max(self.vectors, 1.0) > limit.OUTER_SHARE / 2:
            return None
        # A geometric mean: a ratio and its inverse weigh alike.
        ratio = float(np.exp(self.history.mean(np.log(self.history.quantile_ratio()))))
        noise = noise_ratio(self.history.layer.fan_in, round(self.vectors))
        return NeuronSpread(ratio, noise, limit.MAX_NEURON_RATIO_OF_ONE_STEP)

    def _spread_of_averages(self, raw: Array) -> NeuronSpread:
        steps = self.history.steps[self.history.window]
        averages = np.array([column[np.isfinite(column)].mean() for column in raw.T if np.isfinite(column).any()])
        spacing = float(np.median(np.diff(steps))) if len(steps) > 1 else 1.0
        momentum = 1 - 1 / self.rule.momentum_memory if self.rule is not None else 0.0
        fan_in = self.history.layer.fan_in
        noise = noise_ratio(fan_in, len(averages), samples=len(raw), spacing=spacing, momentum=momentum)
        low, high = np.quantile(averages, [limit.OUTER_SHARE, 1 - limit.OUTER_SHARE])
        return NeuronSpread(float(high / low) if low > 0 else nan, noise, limit.MAX_NEURON_RATIO)

    @cached_property
    def update_growth(self) -> UpdateGrowth:
        """The largest update, in units of lr: late over early, and late."""
        values = self.history.series("max_update", "max")
        values = values[np.isfinite(values) & (values > 0)]
        if values.size < limit.MIN_SAMPLES:
            return UpdateGrowth(1.0, float(values[-1]) if values.size else 0.0)
        # The first quarter against the second half; a quantile and a median, for single extremes are noise.
        part = max(values.size // limit.GROWTH_PARTS, 2)
        late = float(np.quantile(values[-2 * part :], limit.LATE_QUANTILE))
        return UpdateGrowth(late / float(np.median(values[:part])), late)

    @property
    def weight_decay(self) -> float:
        """Mean over the judged part of the run."""
        return self.history.mean(self.history.series("weight_decay"))

    @cached_property
    def radial(self) -> RadialGradient:
        """The gradient along the weights, as a weight decay."""
        # The median vector: a few rows with tiny norms would dominate a mean.
        values = self.history.series("lambda_u", "q50")
        judged = values[self.history.window & np.isfinite(values)]
        if judged.size < limit.MIN_MEAN_SAMPLES or not self.weight_decay > 0:
            return RadialGradient()
        mean = float(judged.mean())
        standard_error = float(judged.std(ddof=1)) / judged.size**0.5
        error = float(sensitivity.decay_error(self.weight_decay, mean))
        return RadialGradient(mean, error, abs(mean) > limit.MIN_STANDARD_ERRORS * standard_error)

    @cached_property
    def frozen_share(self) -> float:
        """Entries with a gradient that a step left as they were, as a share of all."""
        with np.errstate(divide="ignore", invalid="ignore"):
            share = self.history.mean(self.history.series("frozen_entries") / self.history.series("entries"))
        return share if isfinite(share) else 0.0


def speeds_in_groups(views: Sequence[RunView]) -> Iterator[tuple[RunView, float]]:
    """Yield rotation over the median prediction of the layer's group: if predictions differ, that is imbalance too."""
    for group in {view.history.layer.group for view in views}:
        members = [view for view in views if view.history.layer.group == group]
        predicted = np.stack([view.history.predicted_angle for view in members])
        known = np.isfinite(predicted).any(0)
        # The median over the group: one layer with an odd prediction does not move it.
        usual = np.full(predicted.shape[1], np.nan)
        usual[known] = np.nanmedian(predicted[:, known], axis=0)
        for view in members:
            with np.errstate(divide="ignore", invalid="ignore"):
                yield view, view.history.rms(np.where(usual > 0, view.history.rms_angle / usual, np.nan))


def warmups_from_start(views: Sequence[RunView]) -> list[int | None]:
    """Return the warmups that the first layers need, by the search that a plan makes, from what was measured first."""
    steps = int(views[0].history.steps[-1]) + 1
    starts: dict[UpdateRule, list[InitialLayer]] = {}
    for view in views[: limit.MAX_WARMUP_SEARCHES]:
        layer = initial_layer(view.history)
        if view.rule is not None and layer is not None and not layer.missing(view.rule):
            starts.setdefault(view.rule, []).append(layer)
    return [warmup for rule, layers in starts.items() for warmup in needed_warmups(rule, steps, layers)]
