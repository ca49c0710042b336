"""A plan as plain data: what its text and its page show, and what `gyroscope plan --json` prints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, nan
from typing import Any, TypeVar

import numpy as np

from gyroscope._json import dumps
from gyroscope._types import Int64
from gyroscope.advice.findings import Finding, Findings
from gyroscope.advice.layer_facts import LayerFacts
from gyroscope.advice.layer_families import chart_labels, short_labels
from gyroscope.advice.phrases import rule_text
from gyroscope.advice.plan_findings import plan_findings
from gyroscope.advice.thresholds import MAX_AS_PREDICTED_RATIO
from gyroscope.report.layer_table import Column, LayerTable, known, layer_table
from gyroscope.report.plan_facts import Fact, plan_facts
from gyroscope.theory.law import safe_divide
from gyroscope.theory.layer_prediction import LayerPrediction, tried_warmups

# Largest number of points of a curve. A longer run is thinned evenly, and keeps its first and last step.
MOST_POINTS = 500
# Characters of a layer's label, so that a phone shows it on one line.
MAX_LABEL = 24
# Findings that ask for something although they are notes: an input, or attention to what a forecast leaves out.
ASKING = ("missing_input", "assumption")
T = TypeVar("T")


def _step(prediction: LayerPrediction, step: int | None) -> float:
    if prediction.forecast is None:
        return nan
    return inf if step is None else step


def _largest_angle(prediction: LayerPrediction) -> float:
    return nan if prediction.forecast is None else float(prediction.forecast.angular_update.max())


def _warmup(prediction: LayerPrediction, digits: int) -> str:
    steps = _step(prediction, prediction.warmup)
    return known(steps, digits) if steps != inf else f"> {tried_warmups(prediction.schedule.steps)[-1]:,}"


def _number(value: float | None) -> float:
    return nan if value is None else float(value)


COLUMNS = (
    Column(
        "rotation,\nrad",
        lambda layer: _number(layer.equilibrium.angular_update),
        help="angle per step in equilibrium, at the peak learning rate",
    ),
    Column("norm at\nstart", lambda layer: layer.layer.norm, help="root mean square over vectors"),
    Column(
        "norm\nsettles at",
        lambda layer: _number(layer.equilibrium.norm),
        help="in equilibrium, at the peak learning rate",
    ),
    Column("largest\nangle", _largest_angle, help="of one step of the forecast, in radians"),
    Column(
        "warmup\nneeded",
        lambda layer: _step(layer, layer.warmup),
        _warmup,
        help="steps of warmup with which no step rotates faster than 1.1 times equilibrium",
    ),
    Column("run\nlength", lambda layer: layer.total_decay, help="in memories"),
    Column(
        "settles\nat step",
        lambda layer: _step(layer, layer.settled_at),
        infinite="never",
        is_step=True,
        help="first step with a norm within 10 % of equilibrium",
    ),
    Column(
        "falls out\nat step",
        lambda layer: _step(layer, layer.falls_out_at),
        is_step=True,
        help="first step whose norm is too large for its learning rate",
    ),
    Column("state", lambda _: nan, lambda layer, _: LayerFacts.of_plan(layer).state, help="of norm and rotation"),
)
CURVES = ("lr", "angular_update", "norm", "equilibrium_angular_update", "equilibrium_norm")


@dataclass(frozen=True)
class PlanData:
    """All data of a plan. `gyroscope.planner.run_plan.Plan` adds text, page and JSON.

    optimizer        its name, as the user knows it
    predictions      one for each layer with enough inputs, in the order of the model
    missing          layers without a forecast, and why
    notes            what the forecast leaves out, as sentences without a full stop
    steps_per_epoch  None if the batch or the data set is unknown
    """

    optimizer: str
    predictions: tuple[LayerPrediction, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    steps_per_epoch: float | None = None

    # Computed at first use, so that a user who only needs `layers` does not wait for the search for warmups.
    @cached_property
    def findings(self) -> Findings:
        """The findings on the run, worst first."""
        judged = [each for each in self.predictions if not each.layer.is_embedding] or self.predictions
        return plan_findings(judged, self.missing, self.notes)

    @property
    def asking(self) -> list[Finding]:
        """The findings that ask for something beyond the summary. The others are numbers of the table in words."""
        said = " ".join(self.findings.summary)
        asking = [
            each for each in self.findings if each.severity in ("bad", "warn") or each.remedy or each.kind in ASKING
        ]
        return [each for each in asking if each.sentence not in said]

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The numbers of the run if there is one layer. Several layers have a table of their own."""
        return plan_facts(self.predictions[0], self.steps_per_epoch) if len(self.predictions) == 1 else ()

    @property
    def settings(self) -> list[str]:
        """Each rule with its schedule."""
        return list(dict.fromkeys(map(_settings, self.predictions)))

    @property
    def table(self) -> LayerTable:
        """The layers by family."""
        shapes = {each.name: each.layer.weights.shape for each in self.predictions if each.layer.weights.shape}

        def distance(prediction: LayerPrediction) -> float:
            return max(prediction.fastest[0], 1.0)

        return layer_table(self.predictions, COLUMNS, distance, shapes)

    @property
    def title(self) -> str:
        """Title of a page."""
        steps = self.predictions[0].schedule.steps if self.predictions else 0
        count = len(self.predictions)
        return f"Plan: {self.optimizer}, {count} layer{'' if count == 1 else 's'} over {steps:,} steps"

    def fastest_first(self, limit: int) -> list[LayerPrediction]:
        """Return at most `limit` layers with a forecast, evenly from the fastest start to the slowest."""
        return _evenly([group[0] for group in self._alike_groups], limit)

    def drawn_layers(self, limit: int) -> dict[str, LayerPrediction]:
        """Return at most `limit` layers with distinct curves, by label, with the number of similar layers."""
        labels = short_labels([prediction.name for prediction in self.predictions])
        shown = dict(zip(labels, chart_labels(list(labels.values()), MAX_LABEL), strict=True))
        drawn = {}
        for first, *others in _evenly(self._alike_groups, limit):
            alike = f" and {len(others)} alike" if others else ""
            drawn[shown[first.name] + alike] = first
        return drawn

    @cached_property
    def _alike_groups(self) -> list[list[LayerPrediction]]:
        """Layers with a forecast in groups whose rotation and norm are alike, the fastest start first."""
        forecasts = [prediction for prediction in self.predictions if prediction.forecast is not None]
        # NaN (layers without an equilibrium to compare with) would make the order random.
        forecasts.sort(key=lambda prediction: -np.nan_to_num(prediction.fastest[0]))
        groups: list[list[LayerPrediction]] = []
        for prediction in forecasts:
            group = next((group for group in groups if _is_alike(group[0], prediction)), None)
            if group is None:
                groups.append([prediction])
            else:
                group.append(prediction)
        return groups


def _evenly(values: Sequence[T], limit: int) -> list[T]:
    places = np.unique(np.linspace(0, len(values) - 1, min(limit, len(values))).round().astype(int))
    return [values[place] for place in places]


def _is_alike(first: LayerPrediction, second: LayerPrediction) -> bool:
    """Return whether two layers with the same schedule rotate and grow alike at all steps in a picture."""
    if first.forecast is None or second.forecast is None or len(first.forecast.lr) != len(second.forecast.lr):
        return False
    kept = thinned(len(first.forecast.lr))
    for name in ("angular_update", "norm"):
        ratios = safe_divide(getattr(first.forecast, name)[kept], getattr(second.forecast, name)[kept])
        known = ratios[np.isfinite(ratios) & (ratios > 0)]
        if known.size and max(known.max(), 1 / known.min()) > MAX_AS_PREDICTED_RATIO:
            return False
    return first.schedule is second.schedule


def _settings(prediction: LayerPrediction) -> str:
    schedule = prediction.schedule
    warmup = f", warmup {schedule.warmup:,}" if schedule.warmup else ""
    return f"{rule_text(prediction.rule)}, {schedule.name} over {schedule.steps:,} steps{warmup}"


def plan_json(plan: PlanData) -> str:
    """Return settings, predictions per layer, facts and findings. Non-finite numbers become null."""
    first = plan.predictions[0] if plan.predictions else None
    schedule = first.schedule if first is not None else None
    return dumps(
        {
            "optimizer": {"name": plan.optimizer, **(first.rule.settings if first is not None else {})},
            "schedule": None
            if schedule is None
            else {"name": schedule.name, "steps": schedule.steps, "warmup": schedule.warmup},
            "steps_per_epoch": plan.steps_per_epoch,
            "layers": [_layer(prediction) for prediction in plan.predictions],
            "table": list(plan.facts),
            "summary": plan.findings.summary,
            "changes": plan.findings.changes,
            "findings": list(plan.findings),
        }
    )


def _layer(prediction: LayerPrediction) -> dict[str, Any]:
    eq = prediction.equilibrium
    forecast = prediction.forecast
    data = {
        "name": prediction.name,
        "rule": {"name": prediction.rule.name, **prediction.rule.settings},
        "initial_norm": prediction.layer.norm,
        **prediction.layer.known,
        "equilibrium": {**vars(eq), "half_life": eq.half_life},
        "needed_warmup": prediction.warmup,
        "forecast": None,
    }
    if forecast is not None:
        kept = thinned(len(forecast.lr))
        data["forecast"] = {
            "settled_at": prediction.settled_at,
            "falls_out_at": prediction.falls_out_at,
            "over_rotation": forecast.over_rotation,
            "filled_over_rotation": forecast.filled_over_rotation,
            "total_decay": forecast.total_decay,
            "end_norm_ratio": forecast.end_norm_ratio,
            "step": kept,
            # As lists, because arrays are written with the five digits of a picture.
            **{name: getattr(forecast, name)[kept].tolist() for name in CURVES},
        }
    return data


def thinned(steps: int) -> Int64:
    """Return the indices of the steps that a curve keeps."""
    return np.unique(np.linspace(0, steps - 1, min(steps, MOST_POINTS)).round().astype(np.int64))
