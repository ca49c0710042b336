"""A layer of a checkpoint: the numbers that findings, text and page share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan
from typing import final

import numpy as np

from gyroscope._types import Array
from gyroscope.advice import thresholds as limit
from gyroscope.advice.layer_view import NeuronSpread, NormState
from gyroscope.advice.neuron_spread import noise_ratio
from gyroscope.theory import UpdateRule
from gyroscope.theory.forecast import SETTLED
from gyroscope.theory.law import over

NAN = float("nan")


@final
@dataclass(frozen=True, eq=False)
class CheckpointLayer:
    """A layer in the last step of a checkpoint, a `CheckpointView`. Angles in radians, NaN if the file does not tell.

    name, shape, group     as in the model and its optimizer
    vector                 what counts as one vector: neuron, token, tensor, group
    vectors, fan_in        how many there are, and how many entries each has
    rule                   the theory's, at the rates of the last step; None where it is unknown
    exact                  whether the last step is exact, or estimated
    error                  of an estimate: the most that a layer's mean rotation was off on trial
    rotations              angle of the last step, vector by vector
    rotation_range         mean angle at the least and the most learning rate that the last step can have had
    norm                   RMS over vectors
    predicted_rotation     in equilibrium, per step
    predicted_norm         in equilibrium under noise
    timescale              steps after which a direction is forgotten in equilibrium
    signal_ratio           |signal|²/E|noise|² of a batch's gradient
    alignment              s: mean square of updates over that of noise
    lambda_u, lambda_u_error   weight decay that a radial gradient amounts to, and its standard error
    decay, growth, turned_back, explained   forces on ‖w‖² in the step, as shares of it (checkpoint.last_step.Forces)
    dead                   vectors without any gradient so far, as far as the state remembers
    non_finite             vectors of which a weight, or what the optimizer keeps of it, is not finite
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
    predicted_norm: float = NAN
    timescale: float = NAN
    signal_ratio: float = NAN
    alignment: float = NAN
    lambda_u: float = NAN
    lambda_u_error: float = NAN
    decay: float = NAN
    growth: float = NAN
    turned_back: float = NAN
    explained: float = NAN
    dead: int = 0
    non_finite: int = 0

    @property
    def rotation(self) -> float:
        """Mean angle of the last step over vectors."""
        known = self.rotations[np.isfinite(self.rotations)]
        return float(known.mean()) if known.size else NAN

    @property
    def rotation_ratio(self) -> float:
        """Rotation over that of equilibrium, as root mean square, of which the law speaks: above 1 it over-rotates."""
        known = self.rotations[np.isfinite(self.rotations)]
        rms = float(np.sqrt(np.mean(known**2))) if known.size else NAN
        return float(over(rms, self.predicted_rotation))

    @property
    def norm_ratio(self) -> float:
        """Norm over that of equilibrium under noise."""
        return float(over(self.norm, self.predicted_norm))

    @property
    def explained_share(self) -> float:
        """Part of the push along the weight that gradients orthogonal to it explain."""
        return float(over(self.explained, self.turned_back))

    @property
    def spread(self) -> float:
        """95th over 5th percentile of the vectors' angles, over that of pure noise."""
        known = self.rotations[np.isfinite(self.rotations)]
        if known.size < 2:
            return NAN
        low, high = np.quantile(known, [limit.OUTER_SHARE, 1 - limit.OUTER_SHARE])
        return float(over(high, low)) / noise_ratio(self.fan_in, known.size)

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
        """How the norm compares with its equilibrium at the rate of the last step."""
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
    def total_decay(self) -> float:
        """NaN: a file does not hold the learning rates of earlier steps."""
        return NAN

    @property
    def start(self) -> None:
        """None: a file does not hold the start."""

    @property
    def departure(self) -> None:
        """None: a file does not hold earlier norms."""

    @property
    def update_growth(self) -> None:
        """None: a file does not hold earlier updates."""
