"""The plan of a model: what this very run will do, before its first step."""

from collections.abc import Iterator, Mapping, Sequence

from torch import nn

from gyroscope._checks import check_run_length
from gyroscope.advice.judged_layers import begin_sentence
from gyroscope.advice.layer_families import describe_layers
from gyroscope.model.gradients import Loss
from gyroscope.model.invariance_probe import probe
from gyroscope.model.optimizer_list import Optimizers
from gyroscope.model.selection import AnyOptimizer, Invariance
from gyroscope.optimizers import Rules
from gyroscope.planner.model import Weight, layer_grad_norms, weights_of
from gyroscope.planner.rates import Scheduler, predict_rates
from gyroscope.planner.run_plan import Plan
from gyroscope.theory.layer_prediction import InitialLayer, LayerPrediction, predict_layers

# Granularities from the finest on.
FINENESS = ("neuron", "group", "tensor", "none")


def plan(
    model: nn.Module,
    optimizer: AnyOptimizer,
    scheduler: Scheduler = None,
    *,
    steps: int,
    loss: Loss | None = None,
    rules: Rules | None = None,
) -> Plan:
    """Predict the run of this model: norm and rotation of every weight at every step, and what would improve them.

    From shapes, initial norms, parameter groups and learning rates alone. Model, optimizer, scheduler and random state
    are left as they were.

    model      its weights as they are now are the start of the run
    optimizer  a torch optimizer or one of ours, over weights of the model; a list or a container of several
    scheduler  a torch scheduler that steps once after each optimizer step, a list of several, or a function
               step -> multiplier of every lr
    steps      length of the run
    loss       loss(model), a scalar on a fresh batch at each call: finds scale-invariant weights and measures the
               gradients that SGD and Adam with L2 need
    rules      theory rules for optimizer classes of your own, each a function of the group (docs/own-optimizer.md)

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(256, 64, bias=False), nn.BatchNorm1d(64), nn.Linear(64, 10))
    >>> adamw = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    >>> course = plan(model, adamw, steps=2000).layers["0.weight"]
    >>> f"{course.equilibrium_angular_update[-1]:.3f} rad per step, {course.over_rotation:.0f} times that at the first"
    '0.023 rad per step, 12 times that at the first'
    """
    check_run_length(steps)
    optimizers = Optimizers.of(optimizer, rules)
    rates, notes = predict_rates(optimizers, scheduler, steps)
    invariances = probe(model, loss) if loss is not None else {}
    weights = list(weights_of(model, optimizers, rates, invariances))
    # Only these rules' norms depend on the gradient; for the others its batches would be wasted.
    unmeasured = [weight for weight in weights if weight.rule is not None and "unit_grad_norm" in weight.rule.needs]
    grads = layer_grad_norms(model, loss, unmeasured) if loss is not None and unmeasured else {}
    layers = {weight.name: weight.layer(grads.get(weight.name)) for weight in weights}
    problems = {weight.name: weight.problem(layers[weight.name], loss is not None) for weight in weights}
    predictions = _predictions(weights, layers)
    left_out = dict.fromkeys(note for weight in weights for note in weight.left_out())
    return Plan(
        optimizers.name,
        tuple(predictions[name] for name in layers if name in predictions),
        {name: problem for name, problem in problems.items() if problem},
        (*notes, *left_out, *_sensitive(weights, invariances), *_begun(optimizers)),
    )


def _predictions(weights: Sequence[Weight], layers: Mapping[str, InitialLayer]) -> dict[str, LayerPrediction]:
    """Predictions by name; weights with the same rule and rates are followed together."""
    alike: dict[object, list[Weight]] = {}
    for weight in weights:
        # Without a rule, a direction to rotate or a learning rate there is nothing to predict.
        if weight.rule is not None and layers[weight.name].norm > 0 and weight.rates.lr.max() > 0:
            alike.setdefault((weight.rule, weight.rates.course), []).append(weight)
    predictions = {}
    for members in alike.values():
        rule = members[0].rule
        assert rule is not None
        of_members = [layers[member.name] for member in members]
        for prediction in predict_layers(rule, members[0].rates.schedule, of_members, **members[0].changes):
            predictions[prediction.name] = prediction
    return predictions


def _sensitive(weights: Sequence[Weight], invariances: Mapping[str, Invariance]) -> Iterator[str]:
    """Return what the probe says against the assumption of every forecast, that the loss ignores a vector's scale."""
    names: dict[str, list[str]] = {}
    for weight in weights:
        known = invariances.get(weight.name)
        if known is None or known.undecided:
            continue
        if FINENESS.index(known.granularity) > FINENESS.index(weight.split.granularity):
            why = known.evidence if known.granularity == "none" else f"only each {known.granularity} as a whole is"
            names.setdefault(f"scale-invariant ({why}), so the forecast is rough", []).append(weight.name)
    among = [weight.name for weight in weights]
    for why, members in names.items():
        layers = begin_sentence(describe_layers(members, among, worst=False), "is" if len(members) == 1 else "are")
        yield f"{layers} not {why}"


def _begun(optimizers: Optimizers) -> Iterator[str]:
    if any(member.state for member in optimizers.members):
        yield "The optimizer has taken steps already, but the forecast starts with an empty momentum"
