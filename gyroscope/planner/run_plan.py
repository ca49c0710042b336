"""A plan: the predictions for every layer of a run, what they mean, and how they are shown."""

from dataclasses import dataclass
from typing import final

import numpy as np

from gyroscope._types import Array
from gyroscope.advice.judgements.imbalance import imbalance
from gyroscope.render.plan_document import plan_document
from gyroscope.render.rendered import Document, Rendered
from gyroscope.report.plan_data import PlanData, plan_json
from gyroscope.theory import Forecast


@final
@dataclass(frozen=True)
class Plan(PlanData, Rendered):
    """A predicted run, made from settings (`plan_settings`) or for a model (`gyro.plan`). Prints as text."""

    @property
    def layers(self) -> dict[str, Forecast]:
        """The forecast of every layer that has one, by name, in the model's order."""
        return {prediction.name: prediction.forecast for prediction in self.predictions if prediction.forecast}

    @property
    def warmup(self) -> dict[str, int | None]:
        """Steps of warmup that keep every step from rotating faster than in equilibrium, or None if no warmup helps."""
        return {prediction.name: prediction.warmup for prediction in self.predictions if prediction.forecast}

    @property
    def imbalance(self) -> Array:
        """Rotation of the fastest layer over that of the slowest, step by step."""
        return imbalance(list(self.layers.values())) if self.layers else np.ones(0)

    def document(self) -> Document:
        """Return the plan for people: judgement, curves and table."""
        return plan_document(self)

    def json(self) -> str:
        """Return the plan as JSON, for programs."""
        return plan_json(self)
