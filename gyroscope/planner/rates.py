"""Future learning rates, weight decay and betas, predicted by stepping copies of the schedulers."""

import warnings
from collections.abc import Iterator, Mapping
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
from gyroscope.model.optimizer_list import Optimizers, unwrapped
from gyroscope.optim.schedulers import EquilibriumRescale
from gyroscope.theory.schedules import Schedule, multipliers

# Any torch LR scheduler or a list of several, or a function from the step to a multiplier of the group's lr.
Scheduler = Any

BY_HAND = "pass a function of the step instead, step -> multiplier of lr"


@final
@dataclass(frozen=True)
class GroupRates:
    """The course of one parameter group: lr of each step, and its other options at the highest lr."""

    name: str
    lr: Array
    group: dict[str, Any]
    corrected: bool = False
    """Whether weight decay follows lr, as with `CorrectedDecay`."""
    weight_decay: Array | None = None
    """Multiplier of the group's weight decay at each step, if it changes in another way."""
    betas: Array | None = None
    """(β1, β2) of each step, if they change."""

    @property
    def course(self) -> tuple[bytes | None, ...]:
        """Key that distinguishes it from those of other groups, because arrays cannot be keys."""
        arrays = (self.lr, self.weight_decay, self.betas)
        return tuple(None if values is None else values.tobytes() for values in arrays)

    @property
    def schedule(self) -> Schedule:
        """The same as a schedule: multipliers of the peak, and the length of the climb to it."""
        peak = float(self.lr.max())
        values = self.lr / peak if peak > 0 else np.zeros_like(self.lr)
        top = int(values.argmax())
        # A warmup only if the rate never falls on the way up, because restarts are not a warmup.
        climbs = values[0] < 1 and bool((np.diff(values[: top + 1]) >= 0).all())
        warmup = top + 1 if climbs and peak > 0 else 0

        def body(t: Any) -> Any:
            # `Schedule` multiplies by this ramp again.
            return values[t] / np.minimum(1.0, (t + 1) / max(warmup, 1))

        return Schedule(self.name, len(values), warmup, body)


def predict_rates(optimizers: Optimizers, scheduler: Scheduler, steps: int) -> tuple[list[GroupRates], list[str]]:
    """Return the rates of the next steps for each group, and what cannot be predicted.

    Schedulers are assumed to step once after each optimizer step.
    """
    groups = [group for group, _ in optimizers.groups()]
    if scheduler is None or isinstance(scheduler, ReduceLROnPlateau):
        rates = [GroupRates("constant", np.full(steps, float(group["lr"])), dict(group)) for group in groups]
        plateau = "ReduceLROnPlateau depends on the losses of the run, so the forecast keeps the current lr"
        return rates, [] if scheduler is None else [plateau]
    schedulers = list(scheduler) if isinstance(scheduler, list | tuple) else [scheduler]
    if all(callable(getattr(each, "step", None)) for each in schedulers):
        return _followed(optimizers, schedulers, steps)
    if not callable(scheduler):
        raise ValueError(
            f"scheduler={scheduler!r} must be a torch LR scheduler, or a function step -> multiplier. Several "
            "optimizers may have a list of schedulers"
        )
    name = str(getattr(scheduler, "name", "a function of the step"))
    values = multipliers(scheduler, steps)
    rates = []
    for group in groups:
        lr = float(group["lr"]) * values
        rates.append(GroupRates(name, lr, {**group, "lr": float(lr.max())}))
    return rates, []


def _followed(optimizers: Optimizers, schedulers: list[Scheduler], steps: int) -> tuple[list[GroupRates], list[str]]:
    """Step copies of torch's schedulers through the run."""
    name = " + ".join(dict.fromkeys(type(scheduler).__name__ for scheduler in schedulers))
    stand_ins = {member: _stand_in(member) for member in optimizers.members}
    # Copies that deepcopy leads to the stand-ins wherever a scheduler, or one inside it, refers to an optimizer.
    memo: dict[int, Any] = {id(optimizers): _followers(optimizers, stand_ins)}
    for member, stand_in in stand_ins.items():
        memo |= {id(part): stand_in for part in _parts(member, "optimizer", "inner")}
    for scheduler in schedulers:
        for part in _parts(scheduler, "scheduler"):
            wrapper = getattr(part, "optimizer", None)
            if wrapper is None or id(wrapper) in memo or isinstance(wrapper, tuple):
                continue
            if len(stand_ins) > 1 and unwrapped(wrapper) not in stand_ins:
                raise ValueError(f"{type(part).__name__} schedules an optimizer that is not one of {optimizers.name}")
            # If there is a single optimizer, the scheduler refers to it or to a wrapper of it.
            memo[id(wrapper)] = stand_ins.get(unwrapped(wrapper), next(iter(stand_ins.values())))
    # A scheduler may draw random numbers when it steps.
    state = random_state()
    try:
        copies = [deepcopy(scheduler, memo) for scheduler in schedulers]
    except Exception as error:
        raise ValueError(f"{name} cannot be copied ({error}), so its rates cannot be predicted: {BY_HAND}") from error
    groups = [group for group, _ in memo[id(optimizers)].groups()]
    history: list[list[dict[str, Any]]] = [[] for _ in groups]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that no optimizer step came before
            for t in range(steps):
                for group, changing in zip(groups, history, strict=True):
                    changing.append(_changing_options(group))
                # One step less: OneCycleLR refuses the one after its last.
                if t + 1 < steps:
                    for copy in copies:
                        copy.step()
    except Exception as error:
        raise ValueError(f"{name} fails at step {t} of {steps} ({error}): plan fewer steps, or {BY_HAND}") from error
    finally:
        restore_random_state(state)
    real = [group for group, _ in optimizers.groups()]
    rates = [_rates(name, group, changing) for group, changing in zip(real, history, strict=True)]
    notes = dict.fromkeys(note for _, group_notes in rates for note in group_notes)
    if any(isinstance(scheduler, EquilibriumRescale) for scheduler in schedulers):
        notes = {"rescales norms when lr changes, which the forecast ignores": None, **notes}
    return [rate for rate, _ in rates], [f"{name} {note}" for note in notes]


def _rates(name: str, group: dict[str, Any], history: list[dict[str, Any]]) -> tuple[GroupRates, list[str]]:
    """Return the rates of a group, and the changes that no forecast can follow."""
    lr = np.array([options["lr"] for options in history])
    decay = np.array([options["weight_decay"] for options in history])
    betas = [options["betas"] for options in history]
    momenta = [options["momentum"] for options in history]
    top = int(lr.argmax())
    options: dict[str, Any] = {"lr": float(lr[top])}
    notes = []
    corrected = False
    changing_decay = None
    # Decay proportional to lr is AdamC's correction, which has separate rules.
    if (decay != decay[top]).any():
        corrected = bool(np.allclose(decay * lr[top], decay[top] * lr, rtol=1e-6, atol=0))
        if not corrected:
            # At the highest lr decay may be 0, which has no multiples.
            usual = decay[top] or decay.max()
            changing_decay = decay / usual
            options["weight_decay"] = float(usual)
    if "weight_decay" in group:
        options.setdefault("weight_decay", float(decay[top]))
    changing_betas = None
    if betas[top] is not None and len(set(betas)) > 1:
        options["betas"] = betas[top]
        changing_betas = np.array(betas)
    if momenta[top] is not None and len(set(momenta)) > 1:
        options["momentum"] = momenta[top]
        notes.append(kept("momentum", np.array(momenta), lr))
    return GroupRates(name, lr, {**group, **options}, corrected, changing_decay, changing_betas), notes


def kept(option: str, values: Array, lr: Array) -> str:
    """Return a setting that a scheduler changes and a forecast cannot follow."""
    at_peak = values[lr.argmax()]
    return f"moves {option} between {values.min():.3g} and {values.max():.3g}: the forecast keeps {at_peak:.3g}"


def _changing_options(group: dict[str, Any]) -> dict[str, Any]:
    """Return the options that a scheduler may change, as plain numbers, or None for options that the group lacks."""
    betas: Any = group.get("betas")
    # k-Adam has a pair for each of its stages.
    is_pair = isinstance(betas, tuple | list) and len(betas) == 2 and isinstance(betas[0], float | int | Tensor)
    momentum = group.get("momentum")
    return {
        "lr": float(group["lr"]),
        "weight_decay": float(group.get("weight_decay", 0.0)),
        "momentum": None if momentum is None else float(momentum),
        "betas": tuple(map(float, betas)) if is_pair else None,
    }


def _followers(optimizers: Optimizers, stand_ins: Mapping[Optimizer, Optimizer]) -> Optimizers:
    """Return the stand-ins, with the group numbers of the real optimizers."""
    followers = Optimizers(list(stand_ins.values()), optimizers.rules)
    followers.owners = [stand_ins[owner] for owner in optimizers.owners]
    followers.numbers = {stand_ins[member]: list(numbers) for member, numbers in optimizers.numbers.items()}
    return followers


def _stand_in(optimizer: Optimizer) -> Optimizer:
    """Return an optimizer without parameters, with copies of the groups' options."""
    empty = [torch.zeros(()) for _ in optimizer.param_groups]
    stand_in = torch.optim.SGD(empty, lr=0.0)
    stand_in.param_groups = [
        {"params": [tensor], **deepcopy({key: value for key, value in group.items() if key != "params"})}
        for group, tensor in zip(optimizer.param_groups, empty, strict=True)
    ]
    return stand_in


def _parts(wrapper: Any, *inside: str) -> Iterator[Any]:
    """Return an object, and what it wraps under the attributes `inside`, at any depth."""
    seen: list[Any] = []
    waiting = [wrapper]
    while waiting:
        part = waiting.pop()
        if part is not None and not any(part is other for other in seen):
            seen.append(part)
            waiting += [getattr(part, name, None) for name in inside]
    yield from seen
