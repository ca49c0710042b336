"""The learning rates that a scheduler will set, foretold on a copy: neither it nor its optimizer notices."""

import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from gyroscope._types import Array
from gyroscope.model.gradients import random_state, restore_random_state
from gyroscope.optim.schedulers import EquilibriumRescale
from gyroscope.theory.schedules import Schedule, multipliers

Scheduler = Any
"""Any torch LR scheduler, or a function from the step to a multiplier of the group's lr."""

BY_HAND = "pass a function of the step instead, step -> multiplier of lr"


@final
@dataclass(frozen=True)
class Rates:
    """What one parameter group goes through: lr of each step, and its other options where lr is highest."""

    name: str
    lr: Array
    group: dict[str, Any]
    corrected: bool = False
    """Whether weight decay follows lr, as `CorrectedDecay` has it."""

    @property
    def schedule(self) -> Schedule:
        """The same as a schedule: multipliers of the peak, and the length of the climb to it."""
        peak = float(self.lr.max())
        values = self.lr / peak if peak > 0 else np.zeros_like(self.lr)
        top = int(values.argmax())
        climbs = values[0] < 1 and bool((np.diff(values[: top + 1]) >= 0).all())
        warmup = top + 1 if climbs and peak > 0 else 0

        def body(t: Any) -> Any:
            return values[t] / np.minimum(1.0, (t + 1) / max(warmup, 1))  # the ramp that `Schedule` will multiply by

        return Schedule(self.name, len(values), warmup, body)


def foretell_rates(optimizer: Optimizer, scheduler: Scheduler, steps: int) -> tuple[list[Rates], list[str]]:
    """For each group of the optimizer the rates of the next steps, and what about them cannot be foretold.

    A scheduler is taken to step once after each optimizer step.
    """
    groups = optimizer.param_groups
    if scheduler is None or isinstance(scheduler, ReduceLROnPlateau):
        rates = [Rates("constant", np.full(steps, float(group["lr"])), dict(group)) for group in groups]
        plateau = "ReduceLROnPlateau waits for losses that nobody knows yet: the forecast keeps the present lr"
        return rates, [] if scheduler is None else [plateau]
    if callable(getattr(scheduler, "step", None)):
        return _followed(optimizer, scheduler, steps)
    if not callable(scheduler):
        raise ValueError(f"scheduler={scheduler!r} must be a torch LR scheduler, or a function step -> multiplier")
    name = str(getattr(scheduler, "name", "a function of the step"))
    values = multipliers(scheduler, steps)
    peaks = [float(group["lr"]) * float(values.max()) for group in groups]
    return [Rates(name, float(g["lr"]) * values, {**g, "lr": peak}) for g, peak in zip(groups, peaks, strict=True)], []


def _followed(optimizer: Optimizer, scheduler: Scheduler, steps: int) -> tuple[list[Rates], list[str]]:
    """A torch scheduler, stepped through the run on a copy."""
    name, state = type(scheduler).__name__, random_state()
    stand_in = _stand_in(optimizer)
    memo: dict[int, Any] = {id(part): stand_in for part in _parts(optimizer, "optimizer", "inner")}
    memo |= {id(part.optimizer): stand_in for part in _parts(scheduler, "scheduler") if hasattr(part, "optimizer")}
    try:
        copy = deepcopy(scheduler, memo)
    except Exception as error:
        raise ValueError(f"{name} cannot be copied ({error}), so its course cannot be foretold: {BY_HAND}") from error
    history: list[list[tuple[float, float, Any]]] = [[] for _ in stand_in.param_groups]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that no optimizer step came before
            for t in range(steps):
                for group, seen in zip(stand_in.param_groups, history, strict=True):
                    seen.append((float(group["lr"]), float(group.get("weight_decay", 0.0)), _momentum(group)))
                if t + 1 < steps:
                    copy.step()
    except Exception as error:
        raise ValueError(f"{name} fails at step {t} of {steps} ({error}): plan fewer steps, or {BY_HAND}") from error
    finally:
        restore_random_state(state)
    notes = [f"{name} rescales norms when lr changes, which the forecast leaves out"]
    rates = [_rates(name, group, seen) for group, seen in zip(optimizer.param_groups, history, strict=True)]
    return [rate for rate, _ in rates], [
        *(notes if isinstance(scheduler, EquilibriumRescale) else []),
        *dict.fromkeys(f"{name} {note}" for _, said in rates for note in said),
    ]


def _rates(name: str, group: dict[str, Any], seen: list[tuple[float, float, Any]]) -> tuple[Rates, list[str]]:
    """What a group went through, and what of it a forecast with fixed options must leave out."""
    lr, decay = np.array([values[0] for values in seen]), np.array([values[1] for values in seen])
    top, momenta = int(lr.argmax()), [values[2] for values in seen]
    options: dict[str, Any] = {"lr": float(lr[top])}
    notes = []
    corrected = False
    if (decay != decay[top]).any():
        corrected = bool(np.allclose(decay * lr[top], decay[top] * lr, rtol=1e-6, atol=0))
        if not corrected:
            notes.append("changes weight decay on the way, which the forecast leaves out")
    if "weight_decay" in group:
        options["weight_decay"] = float(decay[top])
    if any(momentum != momenta[top] for momentum in momenta):
        name_of = "betas" if "betas" in group else "momentum"
        options[name_of] = (momenta[top], *group["betas"][1:]) if "betas" in group else momenta[top]
        low, high = min(momenta), max(momenta)
        notes.append(f"moves {name_of} between {low:.3g} and {high:.3g}: the forecast keeps {momenta[top]:.3g}")
    return Rates(name, lr, {**group, **options}, corrected), notes


def _momentum(group: dict[str, Any]) -> float | None:
    betas = group.get("betas")
    if isinstance(betas, tuple | list) and isinstance(betas[0], float | int | Tensor):
        return float(betas[0])
    momentum = group.get("momentum")
    return None if momentum is None else float(momentum)


def _stand_in(optimizer: Optimizer) -> Optimizer:
    """An optimizer with copies of the groups' options, over nothing."""
    nothing = [torch.zeros(()) for _ in optimizer.param_groups]
    stand_in = torch.optim.SGD(nothing, lr=0.0)
    stand_in.param_groups = [
        {"params": [one], **deepcopy({key: value for key, value in group.items() if key != "params"})}
        for group, one in zip(optimizer.param_groups, nothing, strict=True)
    ]
    return stand_in


def _parts(thing: Any, *inside: str) -> Iterator[Any]:
    """A thing, and what it wraps."""
    found: list[Any] = []
    waiting = [thing]
    while waiting:
        part = waiting.pop()
        if part is not None and not any(part is other for other in found):
            found.append(part)
            waiting += [getattr(part, name, None) for name in inside]
    yield from found
