"""A start at equilibrium: each rotating weight vector of a fresh model at its equilibrium norm."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from rich.table import Table
from torch import Tensor, nn

from gyroscope._dtensor import placed_like
from gyroscope._text import to_text
from gyroscope.geometry import gathered
from gyroscope.model.gradients import Loss, preserved, unit_grad_norms
from gyroscope.model.optimizer_list import Optimizers, OwnedGroup
from gyroscope.model.selection import AnyOptimizer, Decision, decide, select
from gyroscope.optim.schedulers import peak_lr
from gyroscope.optim.torch_rules import rule_of
from gyroscope.optimizers import Rules
from gyroscope.theory.rules.base import UpdateRule


@final
@dataclass(frozen=True)
class StartingNorm:
    """The RMS norm of a weight's vectors before and after."""

    name: str
    before: float
    after: float

    @property
    def factor(self) -> float:
        """The ratio of both norms. 1 for vectors of zeros."""
        return self.after / self.before if self.before > 0 else 1.0


@final
@dataclass(frozen=True)
class EquilibriumStart:
    """The changes of `to_equilibrium_`, printed as a table. The losses are None unless a loss was given."""

    layers: tuple[StartingNorm, ...]
    loss_before: float | None = None
    loss_after: float | None = None

    def __repr__(self) -> str:
        table = Table(box=None, pad_edge=False, header_style="")
        table.add_column("weight", overflow="fold")
        for column in ("norm before", "after", "factor"):
            table.add_column(column, justify="right")
        for layer in self.layers:
            table.add_row(layer.name, f"{layer.before:.4g}", f"{layer.after:.4g}", f"{layer.factor:.3g}")
        lines = [to_text(table, width=100)]
        if self.loss_before is not None and self.loss_after is not None:
            lines.append(f"loss {self.loss_before:.4g} before, {self.loss_after:.4g} after")
        return "\n".join(lines)


@torch.no_grad()
def to_equilibrium_(
    model: nn.Module,
    optimizer: AnyOptimizer,
    *,
    embeddings: bool = False,
    loss: Loss | None = None,
    unit_grad_norm: float | Mapping[str, float] | None = None,
    batches: int = 4,
    rules: Rules | None = None,
) -> EquilibriumStart:
    """Bring each rotating weight vector of a fresh model to its equilibrium norm at the peak learning rate.

    Norms then have no transient in which vectors rotate too fast or too slowly. If weights are scale-invariant, the
    model computes the same function. Otherwise the loss before the first step may change. results/advice.md shows where
    this start helped training, and where not.

    - Weights that rotate in groups with weight decay get the norm of their fan-in, for any initial norm: also
      scaled-down residual projections (GPT-2's 1/√(2·layers)) and output layers.
    - Embeddings, and output layers tied to them, need `embeddings=True` and weight decay, which `gyro.param_groups`
      gives them only by overrides={"wte": {"weight_decay": 0.1}}. One vector per token.
    - Vectors of zeros stay because they have no direction. Biases, gains and norm layers stay too.

    A warning is issued if nothing was changed, or if embeddings were not changed.

    The peak learning rate is the highest of the group's `lr`, the `initial_lr` that torch's schedulers write, and the
    `max_lr` of OneCycleLR, whether the scheduler is made before or after. CyclicLR does not store its peak: call this
    before it is made, with lr at the peak.

    Args:
        model: the model, before training. Its weights are changed in place.
        optimizer: the optimizer of its parameters, or a list or container of several, before the first step. Groups
            without weight decay are left alone.
        embeddings: whether embeddings that decay get their norm as well.
        loss: loss(model) -> scalar, on a fresh batch at each call. It measures the gradient if the norm depends on it,
            as with SGD and Adam with L2, and is reported before and after.
        unit_grad_norm: the value that `loss` would measure, ‖g‖·‖w‖ of one vector: a number, or one per parameter name.
        batches: how many batches `loss` is called for.
        rules: theory rules for your own optimizer classes, each a function of the group (docs/own-optimizer.md).

    >>> layer = nn.Linear(512, 4, bias=False)
    >>> _ = torch.nn.init.orthogonal_(layer.weight)
    >>> to_equilibrium_(layer, torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=0.1))
    weight  norm before  after  factor
    weight            1  1.599     1.6
    """
    optimizers = Optimizers.of(optimizer, rules)
    if any(member.state for member in optimizers.members):
        raise ValueError("the optimizer has taken steps: call to_equilibrium_ on a fresh one, before the first step")
    groups = optimizers.groups()
    chosen = select(model, optimizers, embeddings=embeddings)
    weights = [weight for weight in chosen if _decays(groups[weight.group])]
    _warn_of_unchanged(model, optimizers, weights, embeddings)
    weight_rules = [_rule_at_peak(groups[weight.group], optimizers.rules) for weight in weights]
    given: Mapping[str, float | Tensor] = {}
    if isinstance(unit_grad_norm, Mapping):
        given = unit_grad_norm
    elif unit_grad_norm is not None:
        given = dict.fromkeys((weight.name for weight in weights), unit_grad_norm)
    elif loss is not None:
        given = _measured(model, loss, weights, weight_rules, batches)
    loss_before = _mean_loss(model, loss, batches)
    layers = tuple(
        _bring_(weight, rule, given.get(weight.name)) for weight, rule in zip(weights, weight_rules, strict=True)
    )
    return EquilibriumStart(layers, loss_before, _mean_loss(model, loss, batches))


def _warn_of_unchanged(model: nn.Module, optimizers: Optimizers, weights: Sequence[Decision], embeddings: bool) -> None:
    """Warn if no weight was changed, or if a requested embedding was not changed."""
    changed = {weight.parameter for weight in weights}
    left_out = [each.name for each in decide(model, optimizers) if each.is_embedding and each.parameter not in changed]
    if embeddings and left_out:
        remedy = f"overrides={{{left_out[0]!r}: {{'weight_decay': 0.1}}}}"
        warnings.warn(
            f"embeddings=True did not change {', '.join(left_out)}, which has no weight decay and thus no equilibrium: "
            f"pass {remedy} to gyro.param_groups",
            stacklevel=4,
        )
    elif not changed:
        warnings.warn(
            "to_equilibrium_ changed nothing, because no weight of the model both rotates and decays: give the "
            "optimizer a weight decay, for example by gyro.param_groups(model, weight_decay=0.1)",
            stacklevel=4,
        )


def _decays(owned: OwnedGroup) -> bool:
    """Return whether the weights of a group decay. If the group has no such option, its rule decides."""
    return float(owned.options.get("weight_decay", 1.0)) > 0


def _rule_at_peak(owned: OwnedGroup, rules: Rules | None) -> UpdateRule:
    group, owner = owned
    return rule_of({**group, "lr": peak_lr(group)}, owner, rules)


def _mean_loss(model: nn.Module, loss: Loss | None, batches: int) -> float | None:
    """Return the loss over some batches. Random states are restored, so that it draws the same ones again."""
    if loss is None:
        return None
    with preserved(model):
        return sum(float(loss(model)) for _ in range(batches)) / batches


def _measured(
    model: nn.Module, loss: Loss, weights: Sequence[Decision], rules: Sequence[UpdateRule], batches: int
) -> dict[str, Tensor]:
    """Return the gradients of the weights whose rules need them."""
    needed = [weight for weight, rule in zip(weights, rules, strict=True) if "unit_grad_norm" in rule.needs]
    return unit_grad_norms(model, loss, needed, batches) if needed else {}


def _bring_(weight: Decision, rule: UpdateRule, unit_grad_norm: float | Tensor | None) -> StartingNorm:
    if rule.lr == 0:
        raise ValueError(f"lr=0 has no equilibrium for {weight.name!r}: give its group a learning rate")
    if "unit_grad_norm" in rule.needs and unit_grad_norm is None:
        raise ValueError(
            f"{rule.name} needs unit_grad_norm for {weight.name!r}: pass unit_grad_norm=… (a number or a "
            "dict by name), or loss=… to measure it"
        )
    parameter = weight.parameter
    # Every process needs the norms of all vectors of a DTensor, because the rule takes them as an array.
    norms = gathered(weight.split.norm(parameter))
    grads = torch.ones_like(norms)
    if unit_grad_norm is not None:
        grads = torch.as_tensor(unit_grad_norm, device=norms.device).expand_as(norms)
    alive = (norms > 0) & (grads > 0)  # a zero vector and a vector without a gradient have no equilibrium norm
    before = _rms(norms)
    if not alive.any():
        return StartingNorm(weight.name, before, before)
    equilibrium = rule.equilibrium(
        fan_in=weight.split.fan_in(parameter.shape),
        unit_grad_norm=grads[alive].double().cpu().numpy(),
        shape=tuple(parameter.shape),
    )
    if equilibrium.norm is None or not np.isfinite(equilibrium.norm).all():
        raise ValueError(f"{rule.name} with these settings has no equilibrium norm for {weight.name!r}")
    factors = torch.ones_like(norms)
    target = torch.as_tensor(np.asarray(equilibrium.norm), dtype=norms.dtype, device=norms.device)
    factors[alive] = target / norms[alive]
    after = _rms(norms * factors)
    factors = weight.split.broadcast(factors, parameter.shape)
    parameter.mul_(placed_like(factors.expand(parameter.shape), parameter))
    return StartingNorm(weight.name, before, after)


def _rms(norms: Tensor) -> float:
    return float(norms.double().square().mean().sqrt())
