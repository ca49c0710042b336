"""The learning rates that a scheduler will set, predicted by stepping a copy of it."""

import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from gyroscope._types import Array
from gyroscope.model.gradients import random_state, restore_random_state
from gyroscope.optim.schedulers import EquilibriumRescale
from gyroscope.theory.schedules import Schedule, multipliers

# Any torch LR scheduler, or a function from the step to a multiplier of the group's lr.
Scheduler = Any

BY_HAND = "pass a function of the step instead, step -> multiplier of lr"


@final
@dataclass(frozen=True)
class GroupRates:
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
        # A warmup only if the rate never falls on the way up: restarts are no warmup.
        climbs = values[0] < 1 and bool((np.diff(values[: top + 1]) >= 0).all())
        warmup = top + 1 if climbs and peak > 0 else 0

        def body(t: Any) -> Any:
            # `Schedule` multiplies by this ramp again.
            return values[t] / np.minimum(1.0, (t + 1) / max(warmup, 1))

        return Schedule(self.name, len(values), warmup, body)


def predict_rates(optimizer: Optimizer, scheduler: Scheduler, steps: int) -> tuple[list[GroupRates], list[str]]:
    """For each group of the optimizer the rates of the next steps, and what about them cannot be predicted.

    A scheduler is taken to step once after each optimizer step.
    """
    groups = optimizer.param_groups
    if scheduler is None or isinstance(scheduler, ReduceLROnPlateau):
        rates = [GroupRates("constant", np.full(steps, float(group["lr"])), dict(group)) for group in groups]
        plateau = "ReduceLROnPlateau depends on the losses of the run: the forecast keeps the present lr"
        return rates, [] if scheduler is None else [plateau]
    if callable(getattr(scheduler, "step", None)):
        return _followed(optimizer, scheduler, steps)
    if not callable(scheduler):
        raise ValueError(f"scheduler={scheduler!r} must be a torch LR scheduler, or a function step -> multiplier")
    name = str(getattr(scheduler, "name", "a function of the step"))
    values = multipliers(scheduler, steps)
    rates = []
    for group in groups:
        lr = float(group["lr"]) * values
        rates.append(GroupRates(name, lr, {**group, "lr": float(lr.max())}))
    return rates, []


class Moment(NamedTuple):
    """What a scheduler may change of a parameter group, at one step."""

    lr: float
    weight_decay: float
    momentum: float | None


def _followed(optimizer: Optimizer, scheduler: Scheduler, steps: int) -> tuple[list[GroupRates], list[str]]:
    """A torch scheduler, stepped through the run on a copy."""
    name = type(scheduler).__name__
    stand_in = _stand_in(optimizer)
    # A copy that deepcopy leads to the stand-in wherever the scheduler, or one inside it, refers to the optimizer.
    memo: dict[int, Any] = {id(part): stand_in for part in _parts(optimizer, "optimizer", "inner")}
    memo |= {id(part.optimizer): stand_in for part in _parts(scheduler, "scheduler") if hasattr(part, "optimizer")}
    # A scheduler may draw random numbers when it steps.
    state = random_state()
    try:
        copy = deepcopy(scheduler, memo)
    except Exception as error:
        raise ValueError(f"{name} cannot be copied ({error}), so its rates cannot be predicted: {BY_HAND}") from error
    history: list[list[Moment]] = [[] for _ in stand_in.param_groups]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that no optimizer step came before
            for t in range(steps):
                for group, moments in zip(stand_in.param_groups, history, strict=True):
                    decay = float(group.get("weight_decay", 0.0))
                    moments.append(Moment(float(group["lr"]), decay, _momentum(group)))
                # One step less: OneCycleLR refuses the one after its last.
                if t + 1 < steps:
                    copy.step()
    except Exception as error:
        raise ValueError(f"{name} fails at step {t} of {steps} ({error}): plan fewer steps, or {BY_HAND}") from error
    finally:
        restore_random_state(state)
    rates = [_rates(name, group, moments) for group, moments in zip(optimizer.param_groups, history, strict=True)]
    notes = dict.fromkeys(note for _, group_notes in rates for note in group_notes)
    if isinstance(scheduler, EquilibriumRescale):
        notes = {"rescales norms when lr changes, which the forecast leaves out": None, **notes}
    return [rate for rate, _ in rates], [f"{name} {note}" for note in notes]


def _rates(name: str, group: dict[str, Any], moments: list[Moment]) -> tuple[GroupRates, list[str]]:
    """What a group goes through, and what of it a forecast with fixed options must leave out."""
    lr = np.array([moment.lr for moment in moments])
    decay = np.array([moment.weight_decay for moment in moments])
    momenta = [moment.momentum for moment in moments]
    top = int(lr.argmax())
    options: dict[str, Any] = {"lr": float(lr[top])}
    notes = []
    corrected = False
    # Decay proportional to lr is AdamC's correction, which the rules know; any other course they do not.
    if (decay != decay[top]).any():
        corrected = bool(np.allclose(decay * lr[top], decay[top] * lr, rtol=1e-6, atol=0))
        if not corrected:
            notes.append("changes weight decay on the way, which the forecast leaves out")
    if "weight_decay" in group:
        options["weight_decay"] = float(decay[top])
    known = [momentum for momentum in momenta if momentum is not None]
    if known and min(known) < max(known):
        option = "betas" if "betas" in group else "momentum"
        options[option] = (momenta[top], *group["betas"][1:]) if "betas" in group else momenta[top]
        notes.append(
            f"moves {option} between {min(known):.3g} and {max(known):.3g}: the forecast keeps {momenta[top]:.3g}"
        )
    return GroupRates(name, lr, {**group, **options}, corrected), notes


def _momentum(group: dict[str, Any]) -> float | None:
    betas = group.get("betas")
    if isinstance(betas, tuple | list) and isinstance(betas[0], float | int | Tensor):
        return float(betas[0])
    momentum = group.get("momentum")
    return None if momentum is None else float(momentum)


def _stand_in(optimizer: Optimizer) -> Optimizer:
    """An optimizer with copies of the groups' options, over nothing."""
    empty = [torch.zeros(()) for _ in optimizer.param_groups]
    stand_in = torch.optim.SGD(empty, lr=0.0)
    stand_in.param_groups = [
        {"params": [tensor], **deepcopy({key: value for key, value in group.items() if key != "params"})}
        for group, tensor in zip(optimizer.param_groups, empty, strict=True)
    ]
    return stand_in


def _parts(wrapper: Any, *inside: str) -> Iterator[Any]:
    """An object, and what it wraps under the attributes `inside`, at any depth."""
    seen: list[Any] = []
    waiting = [wrapper]
    while waiting:
        part = waiting.pop()
        if part is not None and not any(part is other for other in seen):
            seen.append(part)
            waiting += [getattr(part, name, None) for name in inside]
    yield from seen
