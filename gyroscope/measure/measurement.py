"""The gauge: reads weights, gradients and optimizer state on both sides of a step, and writes to none of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from gyroscope.measure.config import frozen, rule_or_none
from gyroscope.measure.layers import Tracked, keeps_norms_by_name, tracked
from gyroscope.measure.optimizer_state import momentum, second_moment
from gyroscope.measure.optimizers import usable
from gyroscope.measure.sums import Watch
from gyroscope.measure.transfer import Crate, Parcel, ship
from gyroscope.model.selection import Invariance


def rank() -> int:
    """Number of this process; 0 where there is only one."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


@final
@dataclass(frozen=True)
class Reading:
    """How a layer was read in a sample: whether it has a second moment, and what is known of its momentum.

    `late`: a closure made the gradient within the step, so that it met only the momentum after it; `had_momentum` says
    whether there was one before.
    """

    adam: bool
    late: bool
    had_momentum: bool


@final
@dataclass
class UnderWay:
    """A layer between the two sides of a step."""

    watch: Watch
    grad: Tensor | None
    had_momentum: bool


@final
class Gauge:
    """Measures the watched layers of one optimizer around a step."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        layers: re.Pattern[str] | None = None,
        probe: Mapping[str, Invariance] | None = None,
        rows: int | None = None,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self._options = (layers, probe, rows)
        self._watches: dict[nn.Parameter, Watch] = {}
        self._seen: tuple[int, ...] = ()
        self._decoupled: list[bool] = []
        self._under_way: list[UnderWay] = []
        self._amp: Tensor | None = None

    @property
    def sharded(self) -> bool:
        """Whether other processes hold part of what is watched."""
        return any(watch.layer.pieces.sharded for watch in self._watches.values())

    def agreed(self, step: int) -> int:
        """The number of the next step as process 0 knows it, where all must know the same."""
        if not self.sharded:
            return step
        told = [step]
        dist.broadcast_object_list(told, src=0)
        return told[0]

    def refresh(self) -> list[Tracked]:
        """Look for parameters that came or went since the last time; those that are new."""
        present = tuple(id(p) for group in self.optimizer.param_groups for p in group["params"])
        if present == self._seen:
            return []
        old, self._seen = self._watches, present
        found = tracked(self.model, self.optimizer, *self._options)
        # Of what no other process holds a part, process 0 has the same as all others.
        found = [layer for layer in found if layer.pieces.sharded or rank() == 0]
        new = [layer for layer in found if layer.parameter not in old]
        self._watches = {layer.parameter: old.get(layer.parameter, Watch(layer)) for layer in found}
        for layer in found:
            self._watches[layer.parameter].layer = layer  # its group may have another number now
        rules = [rule_or_none(group, self.optimizer) for group in self.optimizer.param_groups]
        norms_kept = keeps_norms_by_name(self.optimizer)
        self._decoupled = [rule is not None and rule.is_decoupled and not norms_kept for rule in rules]
        return new

    @torch.no_grad()
    @np.errstate(all="ignore")
    def before(self, closure: bool) -> None:
        """Before the step: copy weights, and look at gradients unless the closure is yet to make them."""
        self._amp, self._under_way = _amp(self.optimizer), []
        for p, watch in self._watches.items():
            if not closure and not usable(p.grad):
                continue
            m = momentum(self.optimizer.state.get(p, {}), p)
            watch.before(None if closure else p.grad, None if closure else m)
            self._under_way.append(UnderWay(watch, None if closure else p.grad, m is not None))

    @torch.no_grad()
    @np.errstate(all="ignore")
    def after(self) -> tuple[list[Crate], dict[str, Reading]]:
        """After the step: what it did. The sums are sent off; how they were made is known at once."""
        under_way, self._under_way = self._under_way, []
        measured, readings = [], {}
        for one in under_way:
            layer, p = one.watch.layer, one.watch.layer.parameter
            grad, state = p.grad if one.grad is None else one.grad, self.optimizer.state.get(p, {})
            if grad is None or not usable(grad):
                continue
            group = self.optimizer.param_groups[layer.group]
            late, second = one.grad is None, second_moment(state, group, p, layer.vectors)
            one.watch.after(
                grad,
                momentum(state, p) if late else None,
                second,
                _decay(group) if self._decoupled[layer.group] else None,
                late=late,
                rescaled=self._amp is not None,
            )
            measured.append(one.watch)
            readings[layer.name] = Reading(second is not None, late, one.had_momentum)
        return ship(measured), readings

    def amp(self) -> Parcel | None:
        """Whether the step is skipped for infinite gradients, and their scale, where a GradScaler leaves both to it."""
        return None if self._amp is None else Parcel(self._amp)

    def mute(self) -> None:
        """Take part in the gathering that other processes wait for, with nothing to tell."""
        watches = [w for p, w in self._watches.items() if w.layer.pieces.sharded and usable(p.grad)]
        for watch in watches:
            watch.sums = None
        if watches:
            ship(watches)


def _amp(optimizer: Optimizer) -> Tensor | None:
    """found_inf and the gradients' scale, which GradScaler hangs on an optimizer with a fused step while it steps."""
    found_inf, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
    if not isinstance(found_inf, Tensor):
        return None
    scale = scale.detach().reshape(()) if isinstance(scale, Tensor) else torch.ones_like(found_inf).reshape(())
    return torch.stack([found_inf.detach().reshape(()).to(scale), scale]).clone()


def _decay(group: Mapping[str, Any]) -> Any:
    return frozen(group["lr"]) * frozen(group.get("weight_decay", 0.0))
