"""Following the base: a rotational optimizer rotates each layer as its base rule would, from the same norms."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from gyroscope._types import Array
from gyroscope.geometry import gathered
from gyroscope.model.gradients import Loss, unit_grad_norms
from gyroscope.model.optimizer_list import unwrapped
from gyroscope.model.selection import Decision, select
from gyroscope.optim._engine.optimizer import EngineOptimizer
from gyroscope.optim.torch_rules import keeps_norms, rule_of
from gyroscope.optim.update_average import NoiseAverage, noise_average
from gyroscope.optimizers import spec_of
from gyroscope.theory.law import Weights, safe_divide
from gyroscope.theory.recursion import Motion
from gyroscope.theory.rules.base import UpdateRule
from gyroscope.theory.rules.fixed_norm import STEEPEST

# Batches over which gradients are measured, as in `gyro.plan`.
BATCHES = 8
# A learning rate at which weights do not move.
AT_REST = 1e-12


def follow(optimizer: Optimizer, model: nn.Module, *, loss: Loss | None = None) -> "BaseFollower":
    """Let a rotational optimizer rotate each layer by the angle that is forecast for its base rule at each step.

    A rotational variant rotates by the equilibrium angle from the first step on. Its base rotates faster while norms
    are below equilibrium, and slower while they are above, at the start and at the end of a schedule. One call before
    the first step reproduces that, so that settings tuned for the base carry over (RE section 3, "Scheduling effects",
    derived in docs/theory.md, "Rotational variants").

    Before each step the forecast takes its own step, at the present learning rate, weight decay and betas, with any
    scheduler. Norms stay, and each layer has its own angle. To resume, save `state_dict` with the optimizer's.

    Args:
        optimizer: RotationalAdamW, RotationalSGD, RotationalLion or Rotational, before its first step.
        model: the model, whose present weights are the start of the base.
        loss: loss(model) -> scalar, on a fresh batch at each call. Needed if the base's norms depend on the gradient,
            as with SGD.

    >>> import torch
    >>> from gyroscope.optim import RotationalAdamW
    >>> layer = torch.nn.Linear(512, 4, bias=False)
    >>> _ = torch.nn.init.orthogonal_(layer.weight)
    >>> follower = follow(RotationalAdamW(layer.parameters(), lr=1e-3, weight_decay=0.1), layer)
    >>> follower.names
    ('weight',)
    """
    stepping = unwrapped(optimizer)
    if not isinstance(stepping, EngineOptimizer) or not keeps_norms(stepping):
        raise ValueError(
            f"{type(optimizer).__name__} has no base to follow: follow is for rotational optimizers, for example "
            "RotationalAdamW"
        )
    weights = [weight for weight in select(model, stepping) if _norm(weight) > 0]
    grads: Mapping[str, Tensor] = unit_grad_norms(model, loss, weights, BATCHES) if loss is not None else {}
    by_group: dict[int, list[Decision]] = {}
    for weight in weights:
        by_group.setdefault(weight.group, []).append(weight)
    return BaseFollower(stepping, [_course(stepping, number, members, grads) for number, members in by_group.items()])


@dataclass
class Course:
    """The weights of one parameter group, with the motion of their base and the lengths of the optimizer's updates.

    `at_rest` is the base's motion at fixed norms, which gives these lengths. `update_sq` is their average, as the
    optimizer has it.
    """

    group: int
    weights: tuple[Decision, ...]
    sizes: Weights
    base: Motion
    at_rest: Motion
    update_sq: Array

    def angle_factors(self, rule: UpdateRule, lr: float, beta: float, square: float) -> Array:
        """Return the base's angle over the equilibrium angle for the next step of each weight."""
        angle, tangent_share = _advance(self.base, rule, lr, self.sizes)
        # In any unit, because only the ratio to its mean matters.
        length, _ = _advance(self.at_rest, rule, AT_REST, self.sizes)
        if rule.is_decoupled:
            # A vector that rotates leaves the tangent plane of older gradients. The part of L2 is radial.
            length = length * np.sqrt(tangent_share)
        self.update_sq = beta * self.update_sq + (1 - beta) * length**2 / square
        rms = np.sqrt(self.update_sq * square / (1 - beta**self.base.done))
        settled = rule.at(lr, self.sizes, leading=True).angular_update
        # The optimizer rotates by arctan of settled·factor·length/rms.
        factors = safe_divide(np.tan(np.minimum(angle, STEEPEST)), settled) * rms / length
        # At lr = 0 the ratio is not defined.
        return np.asarray(np.where(np.isfinite(factors), factors, 1.0))

    def state(self) -> dict[str, Any]:
        """Return the state that changes, for a file."""
        motions = {"base": self.base.state(), "at_rest": self.at_rest.state()}
        return {**motions, "update_sq": self.update_sq.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.base.restore(state["base"])
        self.at_rest.restore(state["at_rest"])
        self.update_sq = np.array(state["update_sq"])


@final
class BaseFollower:
    """A hook that sets the optimizer's angle factors before each step, until `remove` is called."""

    def __init__(self, optimizer: EngineOptimizer, courses: list[Course]) -> None:
        self.optimizer = optimizer
        self._courses = courses
        spec = spec_of(getattr(optimizer, "inner", optimizer))
        self._formula = "" if spec is None else spec.formula
        optimizer.follows_base = True
        self._hook = optimizer.register_step_pre_hook(self._before_step)
        self._save_hook = optimizer.register_state_dict_post_hook(_mark_state)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the weights whose angles follow the base's."""
        return tuple(weight.name for course in self._courses for weight in course.weights)

    def _before_step(self, *_: Any) -> None:
        factors: dict[Tensor, float] = {}
        for course in self._courses:
            group = self.optimizer.param_groups[course.group]
            # `follow` has checked that lr is on the CPU.
            average = NoiseAverage(group["beta"], 1.0)
            if group["update_average"] == "noise":
                average = noise_average(self._formula, group, course.base.done + 1)
            by_weight = course.angle_factors(rule_of(group, self.optimizer), float(group["lr"]), *average)
            factors.update(zip((weight.parameter for weight in course.weights), by_weight.tolist(), strict=True))
        self.optimizer.angle_factors = factors

    def remove(self) -> None:
        """Rotate by the equilibrium angle from now on."""
        self._hook.remove()
        self._save_hook.remove()
        self.optimizer.angle_factors = {}
        self.optimizer.follows_base = False

    def state_dict(self) -> dict[str, Any]:
        """Return the forecast's state: numbers and lists, a few per layer."""
        return {"names": list(self.names), "courses": [course.state() for course in self._courses]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a saved follower."""
        if tuple(state["names"]) != self.names:
            raise ValueError(
                f"the saved follower has the weights {', '.join(state['names'])} and this one {', '.join(self.names)}: "
                "call follow with the same model and the same groups"
            )
        for course, saved in zip(self._courses, state["courses"], strict=True):
            course.restore(saved)


def _mark_state(_: Optimizer, state: dict[str, Any]) -> None:
    """Mark a state whose last angles do not follow from its settings, so that no autopsy computes them."""
    state["follows_base"] = True


def _course(optimizer: EngineOptimizer, number: int, members: list[Decision], grads: Mapping[str, Tensor]) -> Course:
    group = optimizer.param_groups[number]
    rule = rule_of(group, optimizer)
    if rule.keeps_norm or rule.whole_matrix:
        raise ValueError(f"{rule.name} has no forecast of norms per vector to follow: use it without follow")
    if isinstance(group["lr"], Tensor) and group["lr"].device.type != "cpu":
        raise ValueError("lr is a tensor on another device, and each step would wait for it: give lr as a number")
    measured = [float(grads[weight.name].square().mean().sqrt()) if grads else 0.0 for weight in members]
    if "unit_grad_norm" in rule.needs and min(measured) <= 0:
        weight = members[measured.index(min(measured))]
        why = "no gradient reaches it" if grads else "pass loss=…, which measures it"
        raise ValueError(f"{rule.name}'s norms depend on the gradient of {weight.name!r}: {why}")
    fan_in = np.array([float(weight.split.fan_in(weight.parameter.shape)) for weight in members])
    start2 = np.array([_norm(weight) for weight in members]) ** 2
    return Course(
        group=number,
        weights=tuple(members),
        sizes=Weights(fan_in, np.array(measured)),
        base=rule.motion(start2.copy()),
        at_rest=rule.motion(start2.copy()),
        update_sq=np.zeros_like(start2),
    )


def _norm(weight: Decision) -> float:
    """Return the RMS norm of the vectors that are not zero, or 0."""
    norms = gathered(weight.split.norm(weight.parameter.detach())).double()
    alive = norms[norms > 0]
    return float(alive.square().mean().sqrt()) if alive.numel() else 0.0


def _advance(motion: Motion, rule: UpdateRule, lr: float, sizes: Weights) -> tuple[Array, Array]:
    """Return each weight's angle in the next step, and the tangent share of the squared update."""
    before2 = motion.norm2
    motion.rule = rule
    step = motion.advance(np.array([lr]), sizes)
    radial2 = safe_divide(step.cross[0] ** 2, step.square[0] * before2)
    return step.angles(before2)[0], np.clip(1 - radial2, 0.0, 1.0)
