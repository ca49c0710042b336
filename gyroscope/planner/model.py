"""Where a run starts: each weight of a model, its vectors and their norms, its rule and, measured, its gradient."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import nn

from gyroscope.geometry import Split, gathered
from gyroscope.model.gradients import Loss, unit_grad_norms
from gyroscope.model.optimizer_list import Optimizers, OwnedGroup
from gyroscope.model.selection import Decision, Invariance, select
from gyroscope.optim.torch_rules import follows_base, keeps_norms, rule_of
from gyroscope.optimizers import Rules
from gyroscope.planner.rates import GroupRates, kept
from gyroscope.theory import FixedNorm, UpdateRule
from gyroscope.theory.law import Weights
from gyroscope.theory.layer_prediction import InitialLayer
from gyroscope.theory.rules.base import MEANING

# Batches over which gradients are measured: an RMS over the vectors of a layer, so that few are enough.
BATCHES = 8


@final
@dataclass(frozen=True)
class Weight:
    """One weight that rotates: its vectors, the rule they move by and the rates of its group."""

    selected: Decision
    rates: GroupRates
    rule: UpdateRule | None
    unknown: str
    """Why there is no rule, if there is none."""

    @property
    def name(self) -> str:
        """The parameter's."""
        return self.selected.name

    @property
    def split(self) -> Split:
        """How the parameter splits into vectors."""
        return self.selected.split

    def layer(self, unit_grad_norm: float | None) -> InitialLayer:
        """Return what the theory needs to know of the weight."""
        shape = tuple(self.selected.parameter.shape)
        weights = Weights(float(self.split.fan_in(shape)), unit_grad_norm, shape)
        return InitialLayer(self.name, weights, self.norm, self.selected.is_embedding)

    @property
    def changes(self) -> dict[str, Any]:
        """What of the rule changes during the run, as `forecast` takes it."""
        changes: dict[str, Any] = {}
        if self.rates.weight_decay is not None and self.rule is not None and self.rule.has_weight_decay:
            changes["weight_decay_schedule"] = self.rates.weight_decay.tolist()
        if self.rates.betas is not None and self.rule is not None and self.rule.betas_may_change:
            betas = self.rates.betas
            changes["betas_schedule"] = lambda t: (float(betas[t, 0]), float(betas[t, 1]))
        return changes

    def left_out(self) -> Iterator[str]:
        """Return what a scheduler changes and the forecast of this rule does not follow."""
        rates = self.rates
        if rates.weight_decay is not None and "weight_decay_schedule" not in self.changes:
            yield f"{rates.name} changes weight decay on the way, which the forecast leaves out"
        if rates.betas is not None and "betas_schedule" not in self.changes:
            first = rates.betas[:, 0]
            yield f"{rates.name} {kept('betas', first.min(), first.max(), first[rates.lr.argmax()])}"

    @property
    def norm(self) -> float:
        """RMS norm of the vectors, those at zero left out; 0 if all are."""
        norms = gathered(self.split.norm(self.selected.parameter.detach())).double()
        alive = norms[norms > 0]
        return float(alive.square().mean().sqrt()) if alive.numel() else 0.0

    def problem(self, layer: InitialLayer, measured: bool) -> str:
        """Return why there can be no forecast, or an empty string."""
        if self.rule is None:
            return self.unknown
        if not layer.norm > 0:
            return "all its vectors start at zero, without a direction to rotate"
        if not self.rates.lr.max() > 0:
            return "its learning rate is 0 at every step"
        missing = layer.missing(self.rule)
        if missing and measured:
            return "no gradient reaches it"
        needs = [f"{self.rule.name} needs {name}, {MEANING[name]}; pass loss= to measure it" for name in missing]
        return needs[0] if needs else ""


def weights_of(
    model: nn.Module, optimizers: Optimizers, rates: Sequence[GroupRates], probe: Mapping[str, Invariance]
) -> Iterator[Weight]:
    """Yield every weight that the optimizers rotate and every embedding that they decay, in the model's order."""
    groups = optimizers.groups()
    for selected in select(model, optimizers, probe=probe, embeddings=True):
        its_rates = rates[selected.group]
        rule, unknown = _rule(its_rates, groups[selected.group], optimizers.rules)
        yield Weight(selected, its_rates, rule, unknown)


def _rule(rates: GroupRates, group: OwnedGroup, rules: Rules | None) -> tuple[UpdateRule | None, str]:
    try:
        rule = rule_of(rates.group, group.owner, rules)
    except ValueError as error:
        return None, str(error)
    if keeps_norms(group.owner):
        return rule if rule.keeps_norm else FixedNorm(rule, follows_base(group.owner)), ""
    if rates.corrected and "corrected_decay" in rule.settings:
        rule = rule.replace(corrected_decay=True)
    return rule, ""


def layer_grad_norms(model: nn.Module, loss: Loss, weights: Sequence[Weight]) -> dict[str, float]:
    """RMS over batches and vectors of ‖g‖·‖w‖, by name; weights that no gradient reaches are left out."""
    norms = unit_grad_norms(model, loss, [weight.selected for weight in weights], BATCHES)
    layers = {name: float(per_vector.square().mean().sqrt()) for name, per_vector in norms.items()}
    return {name: norm for name, norm in layers.items() if 0 < norm < float("inf")}
