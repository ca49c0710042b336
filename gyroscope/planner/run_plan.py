"""A plan: the predictions for every layer of a run, what they mean, and how they are shown."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import numpy as np

from gyroscope._types import Array
from gyroscope.advice import Diagnosis
from gyroscope.advice.findings import Finding
from gyroscope.advice.judgements.layer_imbalance import imbalance
from gyroscope.advice.plan_facts import plan_facts
from gyroscope.advice.plan_findings import plan_findings
from gyroscope.render.plan_page import plan_page
from gyroscope.render.plan_text import PlanText, chart_lines
from gyroscope.render.rendered import Rendered
from gyroscope.report.plan_data import PlanData, plan_json
from gyroscope.theory import Forecast, Match
from gyroscope.theory.layer_prediction import LayerPrediction


@final
@dataclass(frozen=True)
class Plan(Rendered):
    """A predicted run, made from settings (`plan_settings`) or for a model (`gyro.plan`). Prints as text.

    optimizer        its name, as the user knows it
    predictions      one for each layer of which enough is known, in the model's order
    missing          layers without a forecast, and why
    notes            what the forecast leaves out, as sentences without a full stop
    steps_per_epoch  None where the batch and the data set are unknown
    equivalents      other optimizers by name: settings with which they train alike, or why there are none
    """

    optimizer: str
    predictions: tuple[LayerPrediction, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    steps_per_epoch: float | None = None
    equivalents: Mapping[str, Match | str] = field(default_factory=dict)

    @property
    def layers(self) -> dict[str, Forecast]:
        """The forecast of every layer that has one, by name, in the model's order."""
        return {prediction.name: prediction.forecast for prediction in self.predictions if prediction.forecast}

    @property
    def warmup(self) -> dict[str, int | None]:
        """Steps of warmup with which no step turns faster than settled; None where no warmup helps."""
        return {prediction.name: prediction.warmup for prediction in self.predictions if prediction.forecast}

    @property
    def never_settle(self) -> list[str]:
        """Layers whose norm does not come within 10 % of its equilibrium."""
        return [p.name for p in self.predictions if p.forecast is not None and p.settled_at is None]

    @property
    def imbalance(self) -> Array:
        """Rotation of the fastest layer over that of the slowest, step by step."""
        return imbalance(list(self.layers.values())) if self.layers else np.ones(0)

    # Worked out when first asked for: a user of `layers` alone does not wait for the warmups in remedies.
    @cached_property
    def findings(self) -> Diagnosis:
        """What to think of the run, worst first."""
        judged = [each for each in self.predictions if not each.layer.is_embedding] or self.predictions
        return plan_findings(judged, self.missing, self.notes)

    @cached_property
    def facts(self) -> tuple[Finding, ...]:
        """The numbers of the run, in sentences that judge nothing."""
        return plan_facts(self.predictions, self.steps_per_epoch, self.equivalents)

    def chart(self, layer: str | None = None) -> str:
        """Rotation over the run as a chart for the terminal; of the layer with the fastest start if none is named."""
        if not self.layers:
            raise ValueError("no layer has a forecast: " + "; ".join({*self.missing.values(), "no weight rotates"}))
        if layer is None:
            return "\n".join(chart_lines(self._data.fastest_first(1)[0]))
        if layer not in self.layers:
            raise ValueError(f"{layer!r} has no forecast; those that have are {', '.join(self.layers)}")
        return "\n".join(chart_lines(next(p for p in self.predictions if p.name == layer)))

    def text(self, explain: bool = False) -> PlanText:
        """The plan for a rich console; `explain` adds the formula behind every sentence."""
        return PlanText(self._data, explain)

    def page(self) -> str:
        """The plan as the HTML of one page that opens from disk: judgement, curves and table."""
        return plan_page(self._data)

    def json(self) -> str:
        """The plan as JSON, for programs."""
        return plan_json(self._data)

    @property
    def _data(self) -> PlanData:
        return PlanData(
            self.optimizer, self.predictions, self.facts, self.findings, self.steps_per_epoch, self.equivalents
        )
