"""A start at equilibrium: each rotating weight vector of a fresh model at the norm at which it would settle."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gyroscope.geometry import gathered
from gyroscope.model.gradients import Loss, unit_grad_norms
from gyroscope.model.selection import Decision, select
from gyroscope.optim._engine.shards import placed_like
from gyroscope.optim.torch_rules import rule_of
from gyroscope.theory.rules.base import UpdateRule


@torch.no_grad()
def to_equilibrium_(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    loss: Loss | None = None,
    unit_grad_norm: float | Mapping[str, float] | None = None,
    batches: int = 4,
) -> None:
    """Bring each rotating weight vector of a fresh model to its equilibrium norm at the group's lr and weight decay.

    There is then no transient in which vectors turn too fast or too slowly. The function stays the same where weights
    are scale-invariant. Which vectors these are is the selection that the tracker and `gyro.plan` use as well: weights
    by the type of their layer or as their group says, never embeddings or biases, unless the optimizer turns them.

    Args:
        model: the model, before training; its weights are changed in place.
        optimizer: the optimizer of its parameters, before the first step. Groups without weight decay are left alone.
        loss: loss(model) -> scalar, on a fresh batch at each call. Measures the gradient where the norm depends on it,
            as with SGD and Adam with L2.
        unit_grad_norm: what `loss` would measure, ‖g‖·‖w‖ of one vector: a number, or one per parameter name.
        batches: how many batches `loss` is called for.

    >>> layer = nn.Linear(512, 4, bias=False)
    >>> to_equilibrium_(layer, torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=0.1))
    >>> layer.weight.norm(dim=1).detach()
    tensor([1.5993, 1.5993, 1.5993, 1.5993])
    """
    if optimizer.state:
        raise ValueError("the optimizer has taken steps: call to_equilibrium_ on a fresh one, before the first step")
    groups = optimizer.param_groups
    weights = [weight for weight in select(model, optimizer) if float(groups[weight.group]["weight_decay"]) > 0]
    rules = [rule_of(groups[weight.group], optimizer) for weight in weights]
    given: Mapping[str, float | Tensor] = {}
    if isinstance(unit_grad_norm, Mapping):
        given = unit_grad_norm
    elif unit_grad_norm is not None:
        given = dict.fromkeys((weight.name for weight in weights), unit_grad_norm)
    elif loss is not None:
        given = _measured(model, loss, weights, rules, batches)
    for weight, rule in zip(weights, rules, strict=True):
        _bring_(weight, rule, given.get(weight.name))


def _measured(
    model: nn.Module, loss: Loss, weights: Sequence[Decision], rules: Sequence[UpdateRule], batches: int
) -> dict[str, Tensor]:
    """The gradients of the weights whose rules need them; no batch is drawn where none does."""
    needed = [weight for weight, rule in zip(weights, rules, strict=True) if "unit_grad_norm" in rule.needs]
    return unit_grad_norms(model, loss, needed, batches) if needed else {}


def _bring_(weight: Decision, rule: UpdateRule, unit_grad_norm: float | Tensor | None) -> None:
    if rule.lr == 0:
        raise ValueError(f"lr=0 has no equilibrium for {weight.name!r}: call to_equilibrium_ before a warmup is set up")
    if "unit_grad_norm" in rule.needs and unit_grad_norm is None:
        raise ValueError(
            f"{rule.name} needs unit_grad_norm for {weight.name!r}: pass unit_grad_norm=… (a number or a "
            "dict by name), or loss=… to measure it"
        )
    parameter = weight.parameter
    # Every process needs the norms of all vectors of a DTensor: the rule is applied to them as an array.
    norms = gathered(weight.split.norm(parameter))
    grads = torch.ones_like(norms)
    if unit_grad_norm is not None:
        grads = torch.as_tensor(unit_grad_norm, device=norms.device).expand_as(norms)
    alive = (norms > 0) & (grads > 0)  # neither a zero vector nor one without gradient has a norm to go to
    if not alive.any():
        return
    equilibrium = rule.equilibrium(
        fan_in=weight.split.fan_in(parameter.shape),
        unit_grad_norm=grads[alive].double().cpu().numpy(),
        shape=tuple(parameter.shape),
    )
    factors = torch.ones_like(norms)
    target = torch.as_tensor(np.asarray(equilibrium.norm), dtype=norms.dtype, device=norms.device)
    factors[alive] = target / norms[alive]
    factors = weight.split.broadcast(factors, parameter.shape)
    parameter.mul_(placed_like(factors.expand(parameter.shape), parameter))
