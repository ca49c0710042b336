"""The judgements on a plan, in order. The same ones judge a plan from settings and one from a model."""

from collections.abc import Mapping, Sequence

from gyroscope.advice.findings import Diagnosis
from gyroscope.advice.judged_layers import Layers
from gyroscope.advice.judgements import equilibrium
from gyroscope.advice.judgements.fast import fast_rotation, fast_start
from gyroscope.advice.judgements.imbalance import planned_imbalance
from gyroscope.advice.judgements.optimizer_options import rotational_recipe, unstable_betas
from gyroscope.advice.judgements.slow import falls_out
from gyroscope.advice.judgements.unknown import assumptions, missing_input
from gyroscope.advice.plan_view import PlanView
from gyroscope.advice.summary import summarize
from gyroscope.theory.layer_prediction import LayerPrediction


def plan_findings(
    predictions: Sequence[LayerPrediction], missing: Mapping[str, str], notes: Sequence[str] = ()
) -> Diagnosis:
    """Return the findings on a plan, worst first.

    predictions  of all layers. Those without a forecast are judged by their equilibrium alone
    missing      layers without a forecast, and why
    notes        what the forecast leaves out
    """
    layers = Layers(map(PlanView, predictions))
    forecasts = layers.where(lambda view: view.prediction.forecast is not None)
    findings = [
        *missing_input(missing, layers.among, "forecast: "),
        *equilibrium.keeps_norm(forecasts),
        *equilibrium.without_decay(forecasts),
        *equilibrium.grows(forecasts),
        *equilibrium.shorter_than_memory(forecasts),
        *equilibrium.planned_transient(forecasts),
        *equilibrium.settles(forecasts),
        *rotational_recipe(forecasts),
        *fast_start(forecasts, lambda view: view.prediction.schedule.warmup, _needed_warmups, happened=False),
        *fast_rotation(layers),
        *falls_out(forecasts),
        *planned_imbalance(forecasts),
        *unstable_betas(layers),
        *assumptions(notes),
    ]
    steps = predictions[0].schedule.steps if predictions else 0
    return Diagnosis(findings, summarize(forecasts, findings, steps))


def _needed_warmups(views: Sequence[PlanView]) -> list[int | None]:
    return [view.prediction.warmup for view in views]
