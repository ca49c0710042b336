"""A layer of a plan for judgements: its equilibrium and its forecast."""

from dataclasses import dataclass
from math import isnan, nan
from typing import final

import numpy as np

from gyroscope.advice import thresholds as limit
from gyroscope.advice.layer_view import Departure, NeuronSpread, NormState, Start, UpdateGrowth
from gyroscope.theory import Forecast, UpdateRule
from gyroscope.theory.law import safe_divide
from gyroscope.theory.layer_prediction import LayerPrediction


@final
@dataclass(frozen=True, eq=False)
class PlanView:
    """One layer of a plan."""

    prediction: LayerPrediction
    # Nothing was measured yet.
    sets_imbalance: bool = False
    rotation_ratio: float = nan
    vectors: float = nan
    dead: int = 0
    neuron_spread: NeuronSpread | None = None
    update_growth: UpdateGrowth | None = None

    @property
    def name(self) -> str:
        """Name of the parameter."""
        return self.prediction.name

    @property
    def rule(self) -> UpdateRule:
        """Rule at the peak learning rate."""
        return self.prediction.rule

    @property
    def keeps_norm(self) -> bool:
        """Whether the optimizer keeps the norms fixed and sets the angle."""
        return self.rule.keeps_norm

    @property
    def forecast(self) -> Forecast:
        """The forecast of the run. Only for layers that have one."""
        assert self.prediction.forecast is not None
        return self.prediction.forecast

    @property
    def norm_state(self) -> NormState:
        """How the norm will compare with its equilibrium."""
        if self.keeps_norm:
            return "follows base" if self.rule.follows_base else "keeps norm"
        if isnan(self.run_length):
            return "unknown"
        if self.run_length == 0:
            return "no decay"
        if self.prediction.grows_without_end:
            return "grows"
        if not self.prediction.is_longer_than_memory:
            return "short"
        return "far" if self.prediction.settled_at is None else "settled"

    @property
    def predicted_rotation(self) -> float:
        """Rotation in equilibrium at the peak learning rate, in radians per step."""
        angle = self.prediction.equilibrium.angular_update
        return nan if angle is None else float(angle)

    @property
    def rotation(self) -> float:
        """Rotation in the middle of the run, in radians per step."""
        course = self.prediction.forecast
        return nan if course is None else float(course.angular_update[len(course.angular_update) // 2])

    @property
    def memory(self) -> float:
        """1/a at the peak learning rate, in steps."""
        timescale = self.prediction.equilibrium.timescale
        return nan if timescale is None else float(timescale)

    @property
    def run_length(self) -> float:
        """Σ a_t over the run, in memories. NaN without forecast."""
        return self.prediction.total_decay

    @property
    def settled_at(self) -> float:
        """First step within 10 % of equilibrium, not before the peak learning rate. NaN if there is none."""
        step = self.prediction.settled_at
        # During a warmup the equilibrium norm moves, and may pass the norm.
        return nan if step is None else float(max(step, int(np.argmax(self.forecast.lr))))

    @property
    def start(self) -> Start | None:
        """The fastest step. None without decay, because there is then no equilibrium to compare with."""
        return Start(*self.prediction.fastest) if self.rule.weight_decay > 0 else None

    @property
    def departure(self) -> Departure | None:
        """Where the norm cannot follow the end of the schedule. None if it can."""
        if self.prediction.falls_out_at is None:
            return None
        course = self.forecast
        # Near a learning rate of 0 the equilibrium norm is almost 0, so a ratio to it is huge and meaningless.
        last = int(np.flatnonzero(course.lr >= limit.MIN_RATE_SHARE * course.lr.max())[-1])
        return Departure(
            self.prediction.falls_out_at, float(safe_divide(course.norm[last], course.equilibrium_norm[last]))
        )
