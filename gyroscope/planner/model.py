"""Where a run starts: each weight of a model, its vectors and their norms, its rule and, measured, its gradient."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gyroscope.geometry import Split
from gyroscope.model.parameters import Entry, entries
from gyroscope.model.preserve import untouched
from gyroscope.model.probe import Invariance, Loss
from gyroscope.optim.torch_rules import keeps_norms, rule_of
from gyroscope.planner.rates import Rates
from gyroscope.theory import FixedNorm, UpdateRule
from gyroscope.theory.law import Weights
from gyroscope.theory.layers import Layer
from gyroscope.theory.rules.base import MEANING

BATCHES = 8
"""Batches over which gradients are measured: an RMS over the vectors of a layer, so that few are enough."""


@final
@dataclass(frozen=True)
class Weight:
    """One weight that turns: its vectors, the rule they move by and the rates of its group."""

    name: str
    parameter: Tensor
    split: Split
    rates: Rates
    rule: UpdateRule | None
    unknown: str
    """Why there is no rule, if there is none."""

    def layer(self, unit_grad_norm: float | None) -> Layer:
        """What the planner knows of it."""
        shape = tuple(self.parameter.shape)
        weights = Weights(float(self.split.fan_in(shape)), unit_grad_norm, shape)
        return Layer(self.name, weights, self.norm)

    @property
    def norm(self) -> float:
        """RMS norm of the vectors, those at zero left out; 0 if all are."""
        norms = self.split.norm(self.parameter.detach()).double()
        alive = norms[norms > 0]
        return float(alive.square().mean().sqrt()) if alive.numel() else 0.0

    def problem(self, layer: Layer, measured: bool) -> str:
        """Why there can be no forecast; empty if there can."""
        if self.rule is None:
            return self.unknown
        if not layer.norm > 0:
            return "all its vectors start at zero, without a direction to turn"
        if not self.rates.lr.max() > 0:
            return "its learning rate is 0 at every step"
        missing = layer.missing(self.rule)
        if missing and measured:
            return "no gradient reaches it"
        return "".join(
            f"{self.rule.name} needs {name}, {MEANING[name]}; pass loss= to measure it" for name in missing[:1]
        )


def weights_of(
    model: nn.Module, optimizer: Optimizer, rates: Sequence[Rates], found: Mapping[str, Invariance]
) -> Iterator[Weight]:
    """Every weight that the optimizer turns, in the model's order."""
    number = {p: n for n, group in enumerate(optimizer.param_groups) for p in group["params"]}
    for entry in entries(model):
        p = entry.parameter
        if p not in number or not p.requires_grad:
            continue
        its_rates = rates[number[p]]
        rule, unknown = _rule(its_rates, optimizer)
        split = _split(entry, its_rates.group, found.get(entry.name))
        if rule is not None and rule.whole_matrix:  # Muon turns the matrix as a whole
            split = Split("tensor") if split.rotates(p.shape) else split
        if split.rotates(p.shape):
            yield Weight(entry.name, p, split, its_rates, rule, unknown)


def _split(entry: Entry, group: Mapping[str, Any], found: Invariance | None) -> Split:
    """What the group says; else what the probe found; else what the type of the layer suggests."""
    if "granularity" in group:
        return Split.of(group)
    return entry.split if found is None or found.granularity == "none" else found.split


def _rule(rates: Rates, optimizer: Optimizer) -> tuple[UpdateRule | None, str]:
    try:
        rule = rule_of(rates.group, optimizer)
    except ValueError as error:
        return None, str(error)
    if keeps_norms(optimizer):
        return rule if rule.keeps_norm else FixedNorm(rule), ""
    if rates.corrected and rule.is_decoupled:
        rule = rule.replace(corrected_decay=True)
    return rule, ""


def unit_grad_norms(model: nn.Module, loss: Loss, weights: Sequence[Weight]) -> dict[str, float]:
    """RMS over batches and vectors of ‖g‖·‖w‖; weights that no gradient reaches are left out."""
    squares = dict.fromkeys((weight.name for weight in weights), 0.0)
    with untouched(model):
        for _ in range(BATCHES):
            with torch.enable_grad():
                grads = torch.autograd.grad(loss(model), [weight.parameter for weight in weights], allow_unused=True)
            for weight, grad in zip(weights, grads, strict=True):
                if grad is not None:
                    products = weight.split.norm(grad) * weight.split.norm(weight.parameter.detach())
                    squares[weight.name] += float(products.double().square().mean()) / BATCHES
    return {name: square**0.5 for name, square in squares.items() if 0 < square < float("inf")}
