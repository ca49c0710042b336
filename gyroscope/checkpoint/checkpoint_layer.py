"""A layer of a checkpoint: the numbers of findings, text and page."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan
from typing import ClassVar, final

import numpy as np

from gyroscope._types import Array
from gyroscope.advice import thresholds as limit
from gyroscope.advice.layer_view import NeuronSpread, NormState
from gyroscope.advice.neuron_spread import noise_ratio
from gyroscope.theory import UpdateRule
from gyroscope.theory.forecast import SETTLED
from gyroscope.theory.law import safe_divide

NAN = float("nan")


def mean_known(values: Array) -> float:
    """Return the mean over the vectors that have a value, or NaN if none has."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else NAN


@final
@dataclass(frozen=True, eq=False)
class CheckpointLayer:
    """A layer in the last step of a checkpoint, a `CheckpointView`. Angles are in radians. NaN means unknown.

    name, shape, group     as in the model and its optimizer
    vector                 kind of its vectors: neuron, token, tensor or group
    vectors, fan_in        number of vectors, and number of entries of each
    rule                   update rule at the learning rate of the last step, None if unknown
    exact                  whether the last step is exact, or estimated
    error                  largest error of an estimated mean rotation on trial
    rotations              angle of the last step, by vector
    rotation_range         mean angle at the least and the most learning rate that the last step can have had
    norm                   RMS over vectors
    predicted_rotation     in equilibrium at the learning rate of the last step, per step
    peak_lr                largest learning rate of the run
    predicted_norm         in equilibrium under noise at the peak learning rate
    timescale              one memory: steps after which a direction is forgotten, in equilibrium at the peak
    run_length             Σ lr·weight decay over the run so far, in memories
    run_length_known       whether that follows the file's schedule. Otherwise a linear or cosine schedule is assumed
    signal_ratio           |signal|²/E|noise|² of a batch's gradient
    alignment              s: mean square of updates over that of noise
    lambda_u, lambda_u_error   weight decay that a radial gradient amounts to, and its standard error
    explained_share        share of the momentum's push along the weight that gradients orthogonal to it explain
    dead                   vectors without any gradient so far, according to the state
    non_finite             vectors with a weight or an optimizer state that is not finite
    sets_imbalance         whether the optimizer was told to rotate neurons at different speeds
    """

    name: str
    shape: Sequence[int]
    group: int
    vector: str
    vectors: int
    fan_in: int
    rule: UpdateRule | None = None
    exact: bool = False
    error: float = NAN
    rotations: Array = field(default_factory=lambda: np.full(1, NAN), repr=False)
    rotation_range: tuple[float, float] = (NAN, NAN)
    norm: float = NAN
    predicted_rotation: float = NAN
    peak_lr: float = NAN
    predicted_norm: float = NAN
    timescale: float = NAN
    run_length: float = NAN
    run_length_known: bool = False
    signal_ratio: float = NAN
    alignment: float = NAN
    lambda_u: float = NAN
    lambda_u_error: float = NAN
    explained_share: float = NAN
    dead: int = 0
    non_finite: int = 0
    sets_imbalance: bool = False

    @property
    def rotation(self) -> float:
        """Mean angle of the last step over vectors."""
        return mean_known(self.rotations)

    @property
    def rotation_ratio(self) -> float:
        """Root mean square of the angles over the predicted rotation at the rate of the last step."""
        return float(safe_divide(mean_known(self.rotations**2) ** 0.5, self.predicted_rotation))

    @property
    def norm_ratio(self) -> float:
        """Norm over that of equilibrium under noise at the peak learning rate."""
        return float(safe_divide(self.norm, self.predicted_norm))

    @property
    def spread(self) -> float:
        """95th over 5th percentile of the vectors' angles, over that of pure noise."""
        known = self.rotations[np.isfinite(self.rotations)]
        if known.size < 2:
            return NAN
        low, high = np.quantile(known, [limit.OUTER_SHARE, 1 - limit.OUTER_SHARE])
        return float(safe_divide(high, low)) / noise_ratio(self.fan_in, known.size)

    @property
    def keeps_norm(self) -> bool:
        """Whether its optimizer holds the norms and sets the angle."""
        return self.rule is not None and self.rule.keeps_norm

    @property
    def is_embedding(self) -> bool:
        """Whether its vectors are tokens, which are shown and not judged."""
        return self.vector == "token"

    @property
    def norm_state(self) -> NormState:
        """How the norm compares with its equilibrium at the peak learning rate."""
        if self.keeps_norm:
            return "keeps norm"
        if self.rule is not None and self.rule.weight_decay == 0:
            return "no decay"
        if not isfinite(self.timescale) or isnan(self.norm_ratio):
            return "unknown"
        return "far" if abs(self.norm_ratio - 1) > SETTLED else "settled"

    @property
    def neuron_spread(self) -> NeuronSpread:
        """The same percentiles, of all vectors in one step."""
        noise = noise_ratio(self.fan_in, self.vectors)
        return NeuronSpread(self.spread * noise, noise, limit.MAX_NEURON_RATIO_OF_ONE_STEP)

    @property
    def memory(self) -> float:
        """1/a in steps, at the peak learning rate."""
        return self.timescale

    # A file has only the last step, so these are unknown.
    start: ClassVar[None] = None
    departure: ClassVar[None] = None
    update_growth: ClassVar[None] = None
    settled_at: ClassVar[float] = NAN
