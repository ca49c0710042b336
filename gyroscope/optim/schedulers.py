"""Schedules that keep equilibrium: rescaling when lr changes, and corrected decay."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence
from math import log
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from gyroscope.model.optimizer_list import Optimizers, OwnedGroup
from gyroscope.model.selection import AnyOptimizer, select
from gyroscope.optim.torch_rules import keeps_norms, rule_of
from gyroscope.optimizers import MOMENTUM_KEYS, SECOND_MOMENT_KEYS, Group

# The power of the weight's scale with which each entry of the optimizer's state must be rescaled.
MOMENTS = dict.fromkeys(MOMENTUM_KEYS, -1) | dict.fromkeys(SECOND_MOMENT_KEYS, -2)


class AfterScheduler(ABC):
    """An LR scheduler that acts on the groups after each of its steps. It replaces the scheduler that it wraps.

    Several optimizers have a list of schedulers. Each steps, then all groups follow. Groups added to an optimizer later
    are left alone, as in torch's schedulers.
    """

    def __init__(self, optimizers: Optimizers, scheduler: "SchedulerOrList", memory: dict[str, list[Any]]) -> None:
        self.optimizers = optimizers
        self.schedulers: list[Scheduler] = list(scheduler) if isinstance(scheduler, Sequence) else [scheduler]
        self._memory = memory

    @property
    def optimizer(self) -> Optimizer | tuple[Optimizer, ...]:
        """The optimizer, as in torch's schedulers. Several are a tuple."""
        members = self.optimizers.members
        return members[0] if len(members) == 1 else members

    def step(self, *metrics: Any) -> None:
        """Take the scheduler's step, and act on all groups. `metrics` are for ReduceLROnPlateau."""
        for scheduler in self.schedulers:
            scheduler.step(*metrics)
        known = min(len(values) for values in self._memory.values())
        for number, group in enumerate(self.optimizers.groups()[:known]):
            self._follow(number, group)

    @abstractmethod
    def _follow(self, number: int, owned: OwnedGroup) -> None:
        """Act on one group after its lr may have changed."""

    def get_last_lr(self) -> list[float | Tensor]:
        """Return the learning rates that the schedulers set last, one per group."""
        return [lr for scheduler in self.schedulers for lr in scheduler.get_last_lr()]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this wrapper and of the scheduler, or of several in a list."""
        states = [scheduler.state_dict() for scheduler in self.schedulers]
        memory = {name: list(values) for name, values in self._memory.items()}
        return {"scheduler": states[0] if len(states) == 1 else states, **memory}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state. Load the optimizer's state as well."""
        saved = state["scheduler"] if isinstance(state["scheduler"], list) else [state["scheduler"]]
        for scheduler, of_one in zip(self.schedulers, saved, strict=True):
            scheduler.load_state_dict(of_one)
        self._memory = {name: list(state[name]) for name in self._memory}


@final
class EquilibriumRescale(AfterScheduler):
    """An LR scheduler that moves rotating weights to the new lr's equilibrium norm after each step (SMD §5.2).

    Equilibrium norms are proportional to (lr/weight_decay)^x, with x = 1/4 for SGD and 1/2 for AdamW. So a new lr
    multiplies weights by s = (new/old)^x. Gradients of a scale-invariant weight then grow by 1/s, and so must their
    moments. Without rescaling, a lower lr means thousands of steps of too slow rotation. Weights keep their distance
    from equilibrium. A warmup rescales nothing. Until lr has reached its peak (`peak_lr`), weights count as settled at
    the peak, as after `to_equilibrium_`.

    Pass the model, unless the groups are made by `gyro.param_groups`. It selects the weights as the tracker and
    `gyro.plan` do. Without it every tensor of two or more dimensions in other groups is rescaled, embeddings too. The
    selection is fixed from then on. Several optimizers, as a list or a container, need a list of their schedulers.

    Norms of SGD and of Adam with L2 also grow with the gradients, and so they are exact only as long as E‖g‖²·‖w‖²
    stays the same. It often grows as lr falls.

    >>> w = torch.nn.Parameter(torch.ones(2, 8))
    >>> adamw = torch.optim.AdamW([w], lr=1e-3, weight_decay=0.1)
    >>> schedule = EquilibriumRescale(adamw, torch.optim.lr_scheduler.ExponentialLR(adamw, gamma=0.25))
    >>> adamw.step()
    >>> schedule.step()  # lr goes from 1e-3 to 0.25e-3, norms to half of what they were
    >>> w.detach().mean().item()
    0.5
    """

    def __init__(
        self,
        optimizer: AnyOptimizer,
        scheduler: "SchedulerOrList",
        *,
        model: nn.Module | None = None,
    ) -> None:
        optimizers = Optimizers.of(optimizer)
        for member in optimizers.members:
            if keeps_norms(member):
                raise ValueError(
                    f"{type(member).__name__} keeps norms fixed and rotates by the new lr's angle at once: nothing to "
                    "rescale, use the scheduler alone"
                )
        owned = optimizers.groups()
        groups = [group for group, _ in owned]
        # Frozen weights too, because they may be unfrozen during the run.
        rotating = {weight.parameter for weight in select(model, optimizers, frozen=True)}
        # Positions in the groups, because a copy of this scheduler must not copy the weights.
        self._places = [{i for i, p in enumerate(group["params"]) if p in rotating} for group in groups]
        for number, (group, owner) in enumerate(owned):
            if _lr_over_decay(group) is not None and self._rotating(number, group):
                rule_of(group, owner)  # an unknown optimizer is an error now, not at the first change of lr
        at_peak = [_lr_over_decay({**group, "lr": peak_lr(group)}) for group in groups]
        # The learning rate of each group during its warmup, then None.
        climbing = [float(group["lr"]) if float(group["lr"]) < peak_lr(group) else None for group in groups]
        super().__init__(optimizers, scheduler, {"lr_over_decay": at_peak, "climbing_lr": climbing})

    def _rotating(self, number: int, group: Group) -> list[nn.Parameter]:
        return [p for i, p in enumerate(group["params"]) if i in self._places[number] and p.requires_grad]

    def _follow(self, number: int, owned: OwnedGroup) -> None:
        group, owner = owned
        settled = self._memory["lr_over_decay"]
        before = settled[number]
        last_lr = self._memory["climbing_lr"][number]
        if last_lr is not None:
            # Until lr falls, because OneCycleLR may skip its peak between two steps.
            is_climbing = last_lr <= float(group["lr"]) < peak_lr(group)
            self._memory["climbing_lr"][number] = float(group["lr"]) if is_climbing else None
            if is_climbing:
                return
        now = _lr_over_decay(group)
        weights = self._rotating(number, group)
        if now is None:  # without an equilibrium the weights are not changed
            return
        if before is not None and weights:
            factor = (now / before) ** rule_of(group, owner).norm_exponent
            # A change below the rounding of the weights' dtype is postponed until it adds up.
            if abs(log(factor)) < max(8 * torch.finfo(w.dtype).eps for w in weights):
                return
            for w in weights:
                rescale_(w, factor, owner.state.get(w, {}))
        settled[number] = now


@final
class CorrectedDecay(AfterScheduler):
    """An LR scheduler that also sets weight_decay = λ·lr/lr_max (AdamC), so that norms stay and rotation follows lr.

        a_t = lr_t·weight_decay_t = λ·lr_t²/lr_max

    For decoupled weight decay. λ is the group's weight decay when this is made, lr_max its `peak_lr`. With λ = lr_max
    it is PaLM's decay, a_t = lr_t². Several optimizers, as a list or a container, need a list of their schedulers.

    >>> adamw = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2, 8))], lr=1e-3, weight_decay=0.1)
    >>> schedule = CorrectedDecay(adamw, torch.optim.lr_scheduler.ExponentialLR(adamw, gamma=0.5))
    >>> adamw.step()
    >>> schedule.step()
    >>> adamw.param_groups[0]["weight_decay"]
    0.05
    """

    def __init__(self, optimizer: AnyOptimizer, scheduler: "SchedulerOrList") -> None:
        optimizers = Optimizers.of(optimizer)
        owned = optimizers.groups()
        for group, owner in owned:
            if not rule_of(group, owner).is_decoupled:
                raise ValueError(
                    f"{type(owner).__name__} puts weight decay into the gradient: corrected decay is for decoupled "
                    "decay, as AdamW's or decoupled_weight_decay=True"
                )
        decays: list[float | None] = [float(group["weight_decay"]) for group, _ in owned]
        peaks: list[float | None] = [peak_lr(group) for group, _ in owned]
        super().__init__(optimizers, scheduler, {"weight_decay": decays, "lr_max": peaks})
        for number, each in enumerate(owned):
            self._follow(number, each)

    def _follow(self, number: int, owned: OwnedGroup) -> None:
        group = owned.options
        decay = self._memory["weight_decay"][number]
        peak = self._memory["lr_max"][number]
        if decay and peak:
            group["weight_decay"] = decay * float(group["lr"]) / peak


def rescale_(weight: Tensor, factor: float, state: MutableMapping[str, Any]) -> None:
    """Multiply a scale-invariant weight, and rescale the moments of its gradients, proportional to 1/‖w‖."""
    with torch.no_grad():
        weight.mul_(factor)
        for name, power in MOMENTS.items():
            if isinstance(state.get(name), Tensor):
                state[name].mul_(factor**power)


def peak_lr(group: Group) -> float:
    """Return the highest of a group's lr, torch's `initial_lr` and OneCycleLR's `max_lr`."""
    return max(float(group[name]) for name in ("lr", "initial_lr", "max_lr") if name in group)


def _lr_over_decay(group: Group) -> float | None:
    """Return lr/weight_decay, which sets equilibrium norms. None if there is no equilibrium."""
    lr = float(group["lr"])
    weight_decay = float(group["weight_decay"])
    return lr / weight_decay if lr > 0 and weight_decay > 0 else None


Scheduler = LRScheduler | AfterScheduler
SchedulerOrList = Scheduler | Sequence[Scheduler]
