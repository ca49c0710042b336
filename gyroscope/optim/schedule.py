"""Schedules that keep equilibrium: rescaling when lr changes, corrected decay, and a start at the equilibrium norms."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import fields
from math import log
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from gyroscope.geometry import Split
from gyroscope.nn.layers import parameter_names
from gyroscope.optim.groups import rotating
from gyroscope.optim.rules import Group, keeps_norms, rule_of
from gyroscope.theory.rule import UpdateRule
from gyroscope.theory.sphere import lr_without_decay
from gyroscope.theory.validate import positive_array

MOMENTS = {"exp_avg": -1, "momentum_buffer": -1, "exp_avg_sq": -2}
"""By which power of the weight's size the optimizer's memory of gradients shrinks or grows."""


class AfterScheduler(ABC):
    """An LR scheduler with something to do after each of its steps; used and saved in its place.

    Groups added to the optimizer later are left alone, as torch's schedulers leave them.
    """

    def __init__(self, optimizer: Optimizer, scheduler: "Scheduler", memory: dict[str, list[float | None]]) -> None:
        self.optimizer, self.scheduler, self._memory = optimizer, scheduler, memory

    def step(self, *metrics: Any) -> None:
        """The scheduler's step, and what follows from it; `metrics` for ReduceLROnPlateau."""
        self.scheduler.step(*metrics)
        known = min(len(values) for values in self._memory.values())
        for number, group in enumerate(self.optimizer.param_groups[:known]):
            self._follow(number, group)

    @abstractmethod
    def _follow(self, number: int, group: dict[str, Any]) -> None:
        """Act on one group, whose lr may be new."""

    def get_last_lr(self) -> list[float | Tensor]:
        """The scheduler's."""
        return self.scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's state, and ours."""
        return {"scheduler": self.scheduler.state_dict(), **{name: list(v) for name, v in self._memory.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the saved one was; load the optimizer's state as well."""
        self.scheduler.load_state_dict(state["scheduler"])
        self._memory = {name: list(state[name]) for name in self._memory}


@final
class EquilibriumRescale(AfterScheduler):
    """An LR scheduler after whose steps the rotating weights stand at the new lr's equilibrium norm at once (SMD §5.2).

    Equilibrium norms follow (lr/weight_decay)^x, x = 1/4 for SGD, 1/2 for AdamW: a new lr multiplies weights by
    s = (new/old)^x. Gradients of a scale-invariant weight then grow by 1/s, and so do the moments that remember them.
    Without it, a lower lr means thousands of steps of too slow rotation. Weights far from equilibrium stay as far.

    >>> w = torch.nn.Parameter(torch.ones(2, 8))
    >>> adamw = torch.optim.AdamW([w], lr=1e-3, weight_decay=0.1)
    >>> schedule = EquilibriumRescale(adamw, torch.optim.lr_scheduler.ConstantLR(adamw, factor=0.25, total_iters=1))
    >>> adamw.step()
    >>> schedule.step()  # lr goes from 0.25e-3 to 1e-3, norms to twice what they were
    >>> w.detach().mean().item()
    2.0
    """

    def __init__(self, optimizer: Optimizer, scheduler: "Scheduler") -> None:
        if keeps_norms(optimizer):
            raise ValueError(
                f"{type(optimizer).__name__} keeps norms fixed and turns by the new lr's angle at once: nothing to "
                "rescale, use the scheduler alone"
            )
        for group in optimizer.param_groups:
            if _lr_over_decay(group) is not None and any(True for _ in rotating(group)):
                rule_of(group, optimizer)  # an unknown optimizer is an error now, not at the first change of lr
        super().__init__(optimizer, scheduler, {"lr_over_decay": [_lr_over_decay(g) for g in optimizer.param_groups]})

    def _follow(self, number: int, group: dict[str, Any]) -> None:
        settled, now = self._memory["lr_over_decay"], _lr_over_decay(group)
        before, weights = settled[number], [parameter for parameter, _ in rotating(group)]
        if now is None:  # no equilibrium to go to: stay, and remember the last one
            return
        if before is not None and weights:
            factor = (now / before) ** rule_of(group, self.optimizer).norm_exponent
            # A change that the weights' dtype would round away or badly waits until it has added up.
            if abs(log(factor)) < max(8 * torch.finfo(w.dtype).eps for w in weights):
                return
            for w in weights:
                rescale_(w, factor, self.optimizer.state.get(w, {}))
        settled[number] = now


@final
class CorrectedDecay(AfterScheduler):
    """An LR scheduler that also keeps weight_decay = λ·lr/lr_max (AdamC): norms stay, and rotation follows lr.

        a_t = lr_t·weight_decay_t = λ·lr_t²/lr_max

    For decoupled weight decay. λ is the group's weight decay when this is made, lr_max its `max_lr` (OneCycleLR) or
    `initial_lr`, which torch's schedulers write.

    >>> adamw = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2, 8))], lr=1e-3, weight_decay=0.1)
    >>> schedule = CorrectedDecay(adamw, torch.optim.lr_scheduler.ExponentialLR(adamw, gamma=0.5))
    >>> adamw.step()
    >>> schedule.step()
    >>> adamw.param_groups[0]["weight_decay"]
    0.05
    """

    def __init__(self, optimizer: Optimizer, scheduler: "Scheduler") -> None:
        groups = optimizer.param_groups
        for group in groups:
            rule = rule_of(group, optimizer)
            if "corrected_decay" not in {field.name for field in fields(rule)}:  # type: ignore[arg-type]
                raise ValueError(
                    f"{type(optimizer).__name__} puts weight decay into the gradient: corrected decay is for decoupled "
                    "decay, as AdamW's or decoupled_weight_decay=True"
                )
        decays: list[float | None] = [float(group["weight_decay"]) for group in groups]
        peaks: list[float | None] = [float(g.get("max_lr", g.get("initial_lr", g["lr"]))) for g in groups]
        super().__init__(optimizer, scheduler, {"weight_decay": decays, "lr_max": peaks})
        for number, group in enumerate(groups):
            self._follow(number, group)

    def _follow(self, number: int, group: dict[str, Any]) -> None:
        decay, peak = self._memory["weight_decay"][number], self._memory["lr_max"][number]
        if decay and peak:
            group["weight_decay"] = decay * float(group["lr"]) / peak


def rescale_(weight: Tensor, factor: float, state: MutableMapping[str, Any]) -> None:
    """Multiply a scale-invariant weight, and divide the optimizer's memory of its gradients, which go with 1/‖w‖."""
    with torch.no_grad():
        weight.mul_(factor)
        for name, power in MOMENTS.items():
            if isinstance(state.get(name), Tensor):
                state[name].mul_(factor**power)


def _lr_over_decay(group: Group) -> float | None:
    """What equilibrium norms depend on; None where nothing settles."""
    lr, weight_decay = float(group["lr"]), float(group["weight_decay"])
    return lr / weight_decay if lr > 0 and weight_decay > 0 else None


Scheduler = LRScheduler | AfterScheduler


def instead_of_decay(lr: float, weight_decay: float) -> Callable[[int], float]:
    """The exponential schedule with which SGD without decay turns weights as SGD(lr, weight_decay) does.

        multiplier(k) = (1 - lr·λ)^(-2k-1)     (SP 44)

    For LambdaLR, over an SGD with weight_decay=0. Exact for scale-invariant weights and no momentum.

    >>> multiplier = instead_of_decay(lr=0.1, weight_decay=0.01)
    >>> f"{multiplier(0):.4f} {multiplier(1000):.4f}"
    '1.0010 7.4039'
    """
    positive_array("lr", lr)
    return lambda step: float(lr_without_decay(lr, weight_decay, step)) / lr


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
            f"{type(rule).__name__} needs unit_grad_norm for {name!r}: pass unit_grad_norm=… (a number or a dict by "
            "name), or loss=… to measure it"
        )
    if "shape" in rule.needs:  # Muon turns the matrix as a whole
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
