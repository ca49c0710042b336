"""The judgements on a plan, in order. The same ones judge a plan from settings and one from a model."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from gyroscope.advice.findings import Diagnosis, Finding
from gyroscope.advice.judgements.fast_rotation import fast_rotation
from gyroscope.advice.judgements.fell_out import falls_out
from gyroscope.advice.judgements.layer_imbalance import planned_imbalance
from gyroscope.advice.judgements.over_rotation import fast_start
from gyroscope.advice.judgements.settles import grows, keeps_norm, settles
from gyroscope.advice.judgements.short_memory import shorter_than_memory, without_decay
from gyroscope.advice.judgements.transient import planned_transient
from gyroscope.advice.judgements.unknown_inputs import assumptions, missing_input
from gyroscope.advice.judgements.unstable_betas import unstable_betas
from gyroscope.advice.layer_view import NormState
from gyroscope.advice.plan_view import PlanView
from gyroscope.theory.layer_prediction import LayerPrediction

SETTLING: dict[NormState, Callable[[Sequence[PlanView]], Iterator[Finding]]] = {
    "keeps norm": keeps_norm,
    "follows base": keeps_norm,
    "no decay": without_decay,
    "grows": grows,
    "short": lambda views: shorter_than_memory(views, views[0].prediction.schedule.steps),
    "far": planned_transient,
    "settled": settles,
}


def plan_findings(
    predictions: Sequence[LayerPrediction], missing: Mapping[str, str], notes: Sequence[str] = ()
) -> Diagnosis:
    """Return the findings on a plan, worst first.

    predictions  of all layers; those without a forecast are judged by their equilibrium alone
    missing      layers without a forecast, and why
    notes        what the forecast leaves out
    """
    views = [PlanView(prediction) for prediction in predictions]
    forecasts = [view for view in views if view.prediction.forecast is not None]
    return Diagnosis(
        [
            *missing_input(missing, "forecast: "),
            *_settling(forecasts),
            *fast_start(forecasts, _has_warmup, _needed_warmups, happened=False),
            *fast_rotation(views),
            *falls_out(forecasts),
            *planned_imbalance(forecasts),
            *unstable_betas(views),
            *assumptions(notes),
        ]
    )


def _settling(views: Sequence[PlanView]) -> Iterator[Finding]:
    """Judge the layers of each state, in the order of the first of each."""
    for state in dict.fromkeys(view.norm_state for view in views):
        yield from SETTLING[state]([view for view in views if view.norm_state == state])


def _has_warmup(view: PlanView) -> int:
    return view.prediction.schedule.warmup


def _needed_warmups(views: Sequence[PlanView]) -> list[int | None]:
    return [view.prediction.warmup for view in views]
