"""The judgements on a plan, in order. The same ones judge a plan from settings and one from a model."""

from collections.abc import Mapping, Sequence

from gyroscope.advice.findings import Findings
from gyroscope.advice.judgements.imbalance import planned_imbalance
from gyroscope.advice.judgements.optimizer_options import small_norms, unstable_betas
from gyroscope.advice.judgements.rotation_speed import fast_rotation, fast_start
from gyroscope.advice.judgements.unknown import assumptions, missing_input
from gyroscope.advice.layer_facts import LayerFacts, Layers
from gyroscope.advice.summary import summarize
from gyroscope.theory.layer_prediction import LayerPrediction, tried_warmups


def plan_findings(
    predictions: Sequence[LayerPrediction], missing: Mapping[str, str], notes: Sequence[str] = ()
) -> Findings:
    """Return the findings on a plan, worst first.

    predictions  of all layers. Those without a forecast are judged by their equilibrium alone
    missing      layers without a forecast, and why
    notes        what the forecast leaves out
    """
    layers = Layers(map(LayerFacts.of_plan, predictions))
    forecasts = [each for each in predictions if each.forecast is not None]
    steps = predictions[0].schedule.steps if predictions else 0
    longest = tried_warmups(steps)[-1]
    warmups = {each.name: longest if each.warmup is None else each.warmup for each in forecasts}
    planned = layers.where(lambda layer: layer.name in warmups)
    findings = Findings(
        [
            *missing_input(missing, layers.among, "forecast: "),
            *small_norms(planned),
            *(list(fast_rotation(layers)) or fast_start(planned, lambda names: [warmups[name] for name in names])),
            *planned_imbalance(forecasts, planned),
            *unstable_betas(layers),
            *assumptions(notes),
        ]
    )
    return Findings(findings, summarize(planned, findings, steps))
