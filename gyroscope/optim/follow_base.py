"""Following the base: a rotational optimizer turns each layer as its base rule would, from the same initial norms."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
from gyroscope.theory.law import Weights, over
from gyroscope.theory.recursion import Motion
from gyroscope.theory.rules.base import UpdateRule
from gyroscope.theory.rules.fixed_norm import STEEPEST

# Batches over which gradients are measured, as `gyro.plan` does.
BATCHES = 8
# A learning rate at which weights stay where they are.
AT_REST = 1e-12


def follow(optimizer: Optimizer, model: nn.Module, *, loss: Loss | None = None) -> "BaseFollower":
    """Let a rotational optimizer turn each layer by the angle that its base rule is forecast to have at that step.

    A rotational variant at its base's lr and weight decay turns by the equilibrium angle from the first step on. The
    base turns faster while its norms are below equilibrium, and slower while they are above: at the start, and at the
    end of a schedule. One call before the first step brings that course back, so that settings tuned for the base mean
    the same (RE section 3, "Scheduling effects"; derived in docs/theory.md, "Rotational variants").

    The forecast goes along with the run: before each step it takes a step of its own, at the learning rate, weight
    decay and betas of the moment, whatever scheduler sets them. Norms stay, and each layer has its own angle. Nothing
    has to be called; save `state_dict` with the optimizer's to resume.

    Args:
        optimizer: RotationalAdamW, RotationalSGD, RotationalLion or Rotational, before its first step.
        model: whose weights, as they are now, are where the base would start.
        loss: loss(model) -> scalar, on a fresh batch at each call. Needed where the base's norms depend on the
            gradient, as with SGD.

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
    """The weights of one parameter group: how their base moves, and how long their updates are for the optimizer.

    `base` is the base's motion. `at_rest` is the same at fixed norms: the lengths of the optimizer's own updates, which
    fall while the momentum fills; `update_sq` is their running mean, as the optimizer has it.
    """

    group: int
    weights: tuple[Decision, ...]
    sizes: Weights
    base: Motion
    at_rest: Motion
    update_sq: Array
    factors: Array = field(default_factory=lambda: np.zeros(0))
    """Of the last step."""

    def angle_factors(self, rule: UpdateRule, lr: float, beta: float) -> Array:
        """For the next step of each weight, the base's angle over the equilibrium angle."""
        angle, tangent_share = _advance(self.base, rule, lr, self.sizes)
        # In units of its own, for only the ratio to its mean matters.
        length, _ = _advance(self.at_rest, rule, AT_REST, self.sizes)
        if rule.is_decoupled:
            # A vector that turns leaves the tangent plane of older gradients. Not so with L2, whose part is radial.
            length = length * np.sqrt(tangent_share)
        self.update_sq = beta * self.update_sq + (1 - beta) * length**2
        rms = np.sqrt(self.update_sq / (1 - beta**self.base.done))
        settled = rule.at(lr, self.sizes, leading=True).angular_update
        # The optimizer turns by arctan of settled·factor·length/rms.
        factors = over(np.tan(np.minimum(angle, STEEPEST)), settled) * rms / length
        # No angle at lr = 0 is a multiple of another.
        self.factors = np.asarray(np.where(np.isfinite(factors), factors, 1.0))
        return self.factors

    def state(self) -> dict[str, Any]:
        """All that changes, for a file."""
        motions = {"base": self.base.state(), "at_rest": self.at_rest.state()}
        return {**motions, "update_sq": self.update_sq.tolist(), "factors": self.factors.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where a saved one was."""
        self.base.restore(state["base"])
        self.at_rest.restore(state["at_rest"])
        self.update_sq = np.array(state["update_sq"])
        self.factors = np.array(state.get("factors", ()))


@final
class BaseFollower:
    """What `follow` returns: it sets the optimizer's angle factors before each step, until `remove` is called."""

    def __init__(self, optimizer: EngineOptimizer, courses: list[Course]) -> None:
        self.optimizer = optimizer
        self._courses = courses
        # Whoever predicts this optimizer sees by them that it follows, before its first step too.
        optimizer.angle_factors = {weight.parameter: 1.0 for course in courses for weight in course.weights}
        self._hook = optimizer.register_step_pre_hook(self._before_step)
        self._save_hook = optimizer.register_state_dict_post_hook(_save_factors)

    @property
    def names(self) -> tuple[str, ...]:
        """The weights whose angles follow the base's."""
        return tuple(weight.name for course in self._courses for weight in course.weights)

    def _before_step(self, *_: Any) -> None:
        factors: dict[Tensor, float] = {}
        for course in self._courses:
            group = self.optimizer.param_groups[course.group]
            # A number or a tensor on the CPU, as `follow` has checked: no device has to be waited for.
            by_weight = course.angle_factors(rule_of(group, self.optimizer), float(group["lr"]), group["beta"])
            factors.update(zip((weight.parameter for weight in course.weights), by_weight.tolist(), strict=True))
        self.optimizer.angle_factors = factors

    def remove(self) -> None:
        """Turn by the equilibrium angle from now on."""
        self._hook.remove()
        self._save_hook.remove()
        self.optimizer.angle_factors = {}

    def state_dict(self) -> dict[str, Any]:
        """Where the base would be by now: numbers and lists, a few per layer."""
        return {"names": list(self.names), "courses": [course.state() for course in self._courses]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the saved follower was."""
        if tuple(state["names"]) != self.names:
            raise ValueError(
                f"the saved follower has the weights {', '.join(state['names'])} and this one {', '.join(self.names)}: "
                "call follow with the same model and the same groups"
            )
        for course, saved in zip(self._courses, state["courses"], strict=True):
            course.restore(saved)


def _save_factors(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Add the factors of the last step by parameter number, without which a file does not say by how much it turned."""
    assert isinstance(optimizer, EngineOptimizer)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    factors = optimizer.angle_factors
    state["angle_factors"] = {number: factors[p] for number, p in enumerate(parameters) if p in factors}


def _course(optimizer: EngineOptimizer, number: int, members: list[Decision], grads: Mapping[str, Tensor]) -> Course:
    group = optimizer.param_groups[number]
    rule = rule_of(group, optimizer)
    if rule.keeps_norm or rule.whole_matrix:
        raise ValueError(f"{rule.name} has no course of norms per vector that could be followed: use it without follow")
    if isinstance(group["lr"], Tensor) and group["lr"].device.type != "cpu":
        raise ValueError("lr is a tensor on another device, for which each step would wait: give lr as a number")
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
    """RMS norm of the vectors, those at zero left out; 0 if all are."""
    norms = gathered(weight.split.norm(weight.parameter.detach())).double()
    alive = norms[norms > 0]
    return float(alive.square().mean().sqrt()) if alive.numel() else 0.0


def _advance(motion: Motion, rule: UpdateRule, lr: float, sizes: Weights) -> tuple[Array, Array]:
    """Of the next step, for each weight: the angle, and how much of the squared update is tangent."""
    before2 = motion.norm2
    motion.rule = rule
    step = motion.advance(np.array([lr]), sizes)
    radial2 = over(step.cross[0] ** 2, step.square[0] * before2)
    return step.angles(before2)[0], np.clip(1 - radial2, 0.0, 1.0)
