"""The metrics of one parameter that Composer's `OptimizerMonitor` logs: rotation, its prediction, and the norm.

Composer calls `report_per_parameter_metrics(param, name, metrics)` of the first optimizer every few batches. Nothing is
imported from Composer, and nothing is computed in a step.
"""

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gyroscope.geometry import Split, at_least_float32, gathered
from gyroscope.optim.torch_rules import keeps_norms, rule_of
from gyroscope.theory import FixedNorm

# Vectors of a tensor, evenly spaced, that are kept between reports: enough for an RMS angle to a few percent.
ROWS = 64

# These vectors at the last report, by parameter.
LastReported = MutableMapping[Tensor, Tensor]


@torch.no_grad()
def parameter_metrics(
    optimizer: Optimizer, parameter: Tensor, name: str, last: LastReported
) -> dict[str, float | Tensor]:
    """Return the metrics of a parameter as tensors on its device, or nothing if it does not rotate.

        rotation/since_report/NAME        RMS angle of its vectors since the last report, in radians
        rotation/predicted_per_step/NAME  equilibrium radians at the present lr and weight decay, if these determine it
        l2_norm/param/NAME                norm of the whole tensor

    All processes must call this for a sharded parameter, and get the metrics of the whole. `last` is updated.
    """
    group = next((group for group in optimizer.param_groups if any(p is parameter for p in group["params"])), None)
    if group is None or not Split.of(group).rotates(parameter.shape):
        return {}
    weight = gathered(parameter.detach())
    metrics: dict[str, float | Tensor] = {
        f"l2_norm/param/{name}": torch.linalg.vector_norm(weight, dtype=at_least_float32(weight.dtype))
    }
    predicted = _predicted_angle(optimizer, group, parameter)
    if predicted is not None:
        metrics[f"rotation/predicted_per_step/{name}"] = predicted
    rows = Split.of(group).rows(weight)[0]
    some = rows[:: -(-len(rows) // ROWS)].clone()
    if parameter in last:
        angles = Split().angle(last[parameter], some)
        metrics[f"rotation/since_report/{name}"] = angles.square().mean().sqrt()
    last[parameter] = some
    return metrics


def _predicted_angle(optimizer: Optimizer, group: Mapping[str, Any], parameter: Tensor) -> float | None:
    """Return the equilibrium radians per step. None if theory has no rule, or needs the gradient."""
    try:
        rule = rule_of(group, optimizer)
    except ValueError:
        return None
    if keeps_norms(optimizer) and not rule.keeps_norm:
        rule = FixedNorm(rule)
    shape = tuple(parameter.shape)
    angle = rule.equilibrium(fan_in=Split.of(group).fan_in(shape), shape=shape).angular_update
    return None if angle is None else float(angle)
