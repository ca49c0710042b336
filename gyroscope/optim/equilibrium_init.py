"""A start at equilibrium: each rotating weight vector of a fresh model at the norm it would settle at."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gyroscope.geometry import Split
from gyroscope.model.groups import rotating
from gyroscope.model.parameters import parameter_names
from gyroscope.optim.torch_rules import rule_of
from gyroscope.theory.rules.base import UpdateRule


@torch.no_grad()
def to_equilibrium_(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    loss: Callable[[nn.Module], Tensor] | None = None,
    unit_grad_norm: float | Mapping[str, float] | None = None,
    batches: int = 4,
) -> None:
    """Bring each rotating weight vector of a fresh model to its equilibrium norm at the group's lr and weight decay.

    No transient then, in which vectors turn too fast or too slowly. The function stays the same where weights are
    scale-invariant. SGD's norms and those of Adam with L2 depend on the gradient: give `unit_grad_norm` of one vector
    (a number, or one per parameter name), or `loss(model)` to measure it on `batches` calls, each with a fresh batch.

    >>> layer = nn.Linear(512, 4, bias=False)
    >>> to_equilibrium_(layer, torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=0.1))
    >>> layer.weight.norm(dim=1).detach()
    tensor([1.5993, 1.5993, 1.5993, 1.5993])
    """
    if optimizer.state:
        raise ValueError("the optimizer has taken steps: call to_equilibrium_ on a fresh one, before the first step")
    names = parameter_names(model)
    plan = [
        (names[parameter], parameter, split, rule_of(group, optimizer))
        for group in optimizer.param_groups
        if float(group["weight_decay"]) > 0
        for parameter, split in rotating(group)
        if parameter in names
    ]
    given: Mapping[str, Any] = {}
    if isinstance(unit_grad_norm, Mapping):
        given = unit_grad_norm
    elif unit_grad_norm is not None:
        given = dict.fromkeys(names.values(), unit_grad_norm)
    elif loss is not None and any("unit_grad_norm" in rule.needs for *_, rule in plan):
        given = _measured(model, loss, batches, {name: (parameter, split) for name, parameter, split, _ in plan})
    for name, parameter, split, rule in plan:
        _bring_(name, parameter, split, rule, given.get(name))


def _bring_(name: str, parameter: Tensor, split: Split, rule: UpdateRule, unit_grad_norm: Any) -> None:
    if rule.lr == 0:
        raise ValueError(f"lr=0 has no equilibrium for {name!r}: call to_equilibrium_ before a warmup is set up")
    if "unit_grad_norm" in rule.needs and unit_grad_norm is None:
        raise ValueError(
            f"{rule.name} needs unit_grad_norm for {name!r}: pass unit_grad_norm=… (a number or a dict by "
            "name), or loss=… to measure it"
        )
    if rule.whole_matrix:  # Muon turns the matrix as a whole
        split = Split("tensor")
    norms = split.norm(parameter)
    grads = torch.ones_like(norms) if unit_grad_norm is None else torch.as_tensor(unit_grad_norm).expand_as(norms)
    alive = (norms > 0) & (grads > 0)  # neither a zero vector nor one without gradient has a norm to go to
    if not alive.any():
        return
    g_unit, fan_in = grads[alive].double().cpu().numpy(), split.fan_in(parameter.shape)
    found = rule.equilibrium(fan_in=fan_in, unit_grad_norm=g_unit, shape=tuple(parameter.shape))
    factors = torch.ones_like(norms)
    factors[alive] = torch.as_tensor(np.asarray(found.norm), dtype=norms.dtype, device=norms.device) / norms[alive]
    parameter.mul_(split.broadcast(factors, parameter.shape))


def _measured(
    model: nn.Module, loss: Callable[[nn.Module], Tensor], batches: int, weights: Mapping[str, tuple[Tensor, Split]]
) -> dict[str, Tensor]:
    """RMS over batches of ‖g‖·‖w‖, per vector. Buffers (running statistics) are left as they were."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    squares: dict[str, Any] = dict.fromkeys(weights, 0.0)
    for _ in range(batches):
        with torch.enable_grad():
            grads = torch.autograd.grad(loss(model), [w for w, _ in weights.values()], allow_unused=True)
        for (name, (w, split)), grad in zip(weights.items(), grads, strict=True):
            squares[name] += split.norm(torch.zeros_like(w) if grad is None else grad).square() / batches
    for buffer, before in buffers:
        buffer.copy_(before)
    return {name: squares[name].sqrt() * split.norm(w) for name, (w, split) in weights.items()}
