"""The plan of a model: what its run will do, before the first step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import nn

from gyroscope._checks import check_run_length
from gyroscope.advice.layer_facts import begin_sentence
from gyroscope.advice.layer_families import describe_layers
from gyroscope.geometry import gathered
from gyroscope.model.gradients import Loss, unit_grad_norms
from gyroscope.model.invariance_probe import probe
from gyroscope.model.optimizer_list import Optimizers, OwnedGroup
from gyroscope.model.selection import AnyOptimizer, Decision, Invariance, select
from gyroscope.optim.torch_rules import follows_base, keeps_norms, rule_of
from gyroscope.optimizers import Rules
from gyroscope.planner.rates import GroupRates, Scheduler, kept, predict_rates
from gyroscope.planner.run_plan import Plan
from gyroscope.theory import FixedNorm, UpdateRule
from gyroscope.theory.law import Weights
from gyroscope.theory.layer_prediction import InitialLayer, LayerPrediction, predict_layers
from gyroscope.theory.rules.base import MEANING

# Granularities, the finest first.
FINENESS = ("neuron", "group", "tensor", "none")
# Batches on which gradients are measured. A few are enough, because the RMS is over all vectors of a layer.
BATCHES = 8


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

    The inputs are shapes, initial norms, parameter groups and learning rates. Model, optimizer, scheduler and random
    state are not changed.

    model      the run starts from its current weights
    optimizer  a torch optimizer or one of ours, over weights of the model, or a list or a container of several
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
    groups = optimizers.groups()
    chosen = select(model, optimizers, probe=invariances, embeddings=True)
    weights = [_weight(each, rates[each.group], groups[each.group], optimizers.rules) for each in chosen]
    # Only the norms of these rules depend on the gradient, and batches for the others would be wasted.
    unmeasured = [weight.selected for weight in weights if weight.rule and "unit_grad_norm" in weight.rule.needs]
    grads = _layer_grad_norms(model, loss, unmeasured) if loss is not None and unmeasured else {}
    layers = {weight.name: weight.layer(grads.get(weight.name)) for weight in weights}
    problems = {weight.name: weight.problem(layers[weight.name], loss is not None) for weight in weights}
    predictions = _predictions(weights, layers)
    left_out = dict.fromkeys(note for weight in weights for note in weight.left_out())
    begun = "The optimizer has already taken steps, but the forecast starts with an empty momentum"
    has_begun = any(member.state for member in optimizers.members)
    return Plan(
        optimizers.name,
        tuple(predictions[name] for name in layers if name in predictions),
        {name: problem for name, problem in problems.items() if problem},
        (*notes, *left_out, *_sensitive(weights, invariances), *([begun] if has_begun else [])),
    )


@final
@dataclass(frozen=True)
class Weight:
    """One weight that rotates: its vectors, the rates of its group, and its rule, or why there is none."""

    selected: Decision
    rates: GroupRates
    rule: UpdateRule | None
    unknown: str = ""

    @property
    def name(self) -> str:
        """The parameter's."""
        return self.selected.name

    def layer(self, unit_grad_norm: float | None) -> InitialLayer:
        """Return the inputs of the theory for a weight. The norm is the RMS without vectors at zero."""
        shape = tuple(self.selected.parameter.shape)
        norms = gathered(self.selected.split.norm(self.selected.parameter.detach())).double()
        alive = norms[norms > 0]
        norm = float(alive.square().mean().sqrt()) if alive.numel() else 0.0
        weights = Weights(float(self.selected.split.fan_in(shape)), unit_grad_norm, shape)
        return InitialLayer(self.name, weights, norm, self.selected.is_embedding)

    @property
    def changes(self) -> dict[str, Any]:
        """Settings of the rule that change during the run, in the form of `forecast`."""
        changes: dict[str, Any] = {}
        betas = self.rates.betas
        if self.rates.weight_decay is not None and self.rule is not None and self.rule.has_weight_decay:
            changes["weight_decay_schedule"] = self.rates.weight_decay.tolist()
        if betas is not None and self.rule is not None and self.rule.betas_may_change:
            changes["betas_schedule"] = lambda t: (float(betas[t, 0]), float(betas[t, 1]))
        return changes

    def left_out(self) -> Iterator[str]:
        """Return the changes of a scheduler that the forecast of this rule does not follow."""
        rates = self.rates
        if rates.weight_decay is not None and "weight_decay_schedule" not in self.changes:
            yield f"{rates.name} changes weight decay during the run, which the forecast ignores"
        if rates.betas is not None and "betas_schedule" not in self.changes:
            yield f"{rates.name} {kept('betas', rates.betas[:, 0], rates.lr)}"

    def problem(self, layer: InitialLayer, measured: bool) -> str:
        """Return why there can be no forecast, or an empty string."""
        if self.rule is None:
            return self.unknown
        if not layer.norm > 0:
            return "all its vectors start at zero and have no direction"
        if not self.rates.lr.max() > 0:
            return "its learning rate is 0 at every step"
        missing = layer.missing(self.rule)
        if not missing:
            return ""
        needs = f"{self.rule.name} needs {missing[0]}, {MEANING[missing[0]]}"
        if "update_rms" in missing:
            return f"{needs}. Pass it to the rule"
        return "no gradient reaches it" if measured else f"{needs}. Pass loss= to measure it"


def _weight(selected: Decision, rates: GroupRates, group: OwnedGroup, rules: Rules | None) -> Weight:
    try:
        rule = rule_of(rates.group, group.owner, rules)
    except ValueError as error:
        return Weight(selected, rates, None, str(error))
    if keeps_norms(group.owner):
        rule = rule if rule.keeps_norm else FixedNorm(rule, follows_base(group.owner))
    elif rates.corrected and "corrected_decay" in rule.settings:
        rule = rule.replace(corrected_decay=True)
    return Weight(selected, rates, rule)


def _layer_grad_norms(model: nn.Module, loss: Loss, weights: Sequence[Decision]) -> dict[str, float]:
    """Return the RMS over batches and vectors of ‖g‖·‖w‖, without weights that no gradient reaches."""
    norms = unit_grad_norms(model, loss, weights, BATCHES)
    layers = {name: float(per_vector.square().mean().sqrt()) for name, per_vector in norms.items()}
    return {name: norm for name, norm in layers.items() if 0 < norm < float("inf")}


def _predictions(weights: Sequence[Weight], layers: Mapping[str, InitialLayer]) -> dict[str, LayerPrediction]:
    """Return predictions by name. Weights with the same rule and rates are forecast together."""
    alike: dict[Any, list[Weight]] = {}
    for weight in weights:
        # Without a rule, a direction to rotate or a learning rate there is nothing to predict.
        if weight.rule is not None and layers[weight.name].norm > 0 and weight.rates.lr.max() > 0:
            alike.setdefault((weight.rule, weight.rates.course), []).append(weight)
    predictions = {}
    for (rule, _), members in alike.items():
        of_members = [layers[member.name] for member in members]
        for prediction in predict_layers(rule, members[0].rates.schedule, of_members, **members[0].changes):
            predictions[prediction.name] = prediction
    return predictions


def _sensitive(weights: Sequence[Weight], invariances: Mapping[str, Invariance]) -> Iterator[str]:
    """Yield what the probe has found against scale invariance, which every forecast assumes."""
    names: dict[str, list[str]] = {}
    for weight in weights:
        known = invariances.get(weight.name)
        if known is None or known.undecided:
            continue
        if FINENESS.index(known.granularity) > FINENESS.index(weight.selected.split.granularity):
            why = "" if known.granularity == "none" else f" (only each {known.granularity} as a whole is)"
            names.setdefault(f"scale-invariant{why}, so the forecast is rough", []).append(weight.name)
    among = [weight.name for weight in weights]
    for why, members in names.items():
        layers = begin_sentence(describe_layers(members, among, worst=False), "is" if len(members) == 1 else "are")
        yield f"{layers} not {why}"
