"""A weight on white noise under an optimizer: its rotation and norm over the rule's, once it has settled."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import gyroscope as gyro
from gyroscope.optimizers import rotates_matrices
from tests.optim.torch_walk import angle

SHAPES = ((64, 64), (128, 32))
# One step forgets 1/200 of a direction, so that a thousand steps forget the start.
LR = 1e-2
WEIGHT_DECAY = 0.5
# Steps from the norm of equilibrium, or from another if the rule leaves the norm open.
SETTLING = 400
FAR = 1600
MEASURED = 500


@dataclass(frozen=True)
class Ratios:
    """Measured over predicted. None for a norm that the rule leaves open."""

    rotation: float
    norm: float | None


@torch.no_grad()
def ratios(make: Any, shape: tuple[int, int], gradient_rms: float = 1.0, steps: int | None = None) -> Ratios:
    """Return the ratios of the optimizer that `make` returns for a list of parameters.

    `steps` are those in which it settles. A rule may depend on a step size that the optimizer finds meanwhile.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(shape, generator=generator))
    optimizer = make([weight])
    group = optimizer.param_groups[0]
    whole = rotates_matrices(optimizer, group)
    rule = gyro.rule_of(group, optimizer)
    # The gradient does not depend on the weight, so its unit form is that at the norm of equilibrium.
    columns = shape[0] * shape[1] if whole else shape[1]
    given = {"shape": shape} if rule.whole_matrix else {"fan_in": columns}
    norm = None
    if "unit_grad_norm" in rule.needs:
        norm, given["unit_grad_norm"] = norm_in_noise(rule, shape[1], gradient_rms)
    settled = rule.equilibrium(**given)
    norm = settled.norm if norm is None else norm
    moves = norm is not None and not rule.keeps_norm
    if moves:
        weight.mul_(norm / rms_norm(weight, whole))
    settling = steps or (SETTLING if moves or rule.keeps_norm else FAR)
    angles = norms = 0.0
    for step in range(settling + MEASURED):
        weight.grad = gradient_rms * torch.randn(shape, generator=generator)
        before = weight.detach().clone()
        optimizer.step()
        if step == settling:
            found = gyro.rule_of(group, optimizer).equilibrium(**given)
            settled = settled if given.get("unit_grad_norm") else found
            norm = norm if given.get("unit_grad_norm") else found.norm
        if step >= settling:
            rows = (before.flatten()[None], weight.flatten()[None]) if whole else (before, weight)
            angles += float(angle(*rows).mean()) / MEASURED
            norms += rms_norm(weight, whole) / MEASURED
    return Ratios(angles / settled.angular_update, norms / norm if moves else None)


def rms_norm(weight: Tensor, whole: bool) -> float:
    return float(weight.norm() if whole else weight.square().sum(1).mean().sqrt())


def norm_in_noise(rule: Any, fan_in: int, gradient_rms: float) -> tuple[float, float]:
    """Return the norm in equilibrium if the gradient stays as it is, and the gradient norm times that norm."""
    size = gradient_rms * fan_in**0.5
    norm = 1.0
    for _ in range(100):
        norm = float(rule.equilibrium(fan_in=fan_in, unit_grad_norm=size * norm).norm)
    return norm, size * norm
