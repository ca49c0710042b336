"""What an optimizer says of one parameter when a trainer asks: how far it turned, how far theory says, and its norm.

The protocol is Composer's, whose `OptimizerMonitor` calls `report_per_parameter_metrics(param, name, metrics)` of the
first optimizer every few batches, and logs what comes back. Nothing is imported of Composer, and nothing is computed
in a step: all of it happens when it is asked for.
"""

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gyroscope.geometry import Split, at_least_float32, gathered
from gyroscope.optim.torch_rules import keeps_norms, rule_of
from gyroscope.theory import FixedNorm

# Vectors of a tensor, evenly spread, whose last direction is kept from report to report: enough for an RMS angle to a
# few percent, and little memory.
ROWS = 64

# By parameter, these vectors as they were at its last report.
LastReported = MutableMapping[Tensor, Tensor]


@torch.no_grad()
def parameter_metrics(
    optimizer: Optimizer, parameter: Tensor, name: str, last: LastReported
) -> dict[str, float | Tensor]:
    """Named numbers of one parameter, as tensors on its device where they are measured; nothing for what cannot turn.

        rotation/since_report/NAME        RMS angle of its vectors since the last report, in radians; the step's own
                                          where every step is reported; not in the first report
        rotation/predicted_per_step/NAME  radians in equilibrium at the lr and weight decay of the moment, where these
                                          are enough to tell
        l2_norm/param/NAME                norm of the whole tensor

    Of a sharded parameter all processes must ask: each gets the numbers of the whole, so none are left to reduce.
    `last` is where the vectors of this report are left for the next.
    """
    group = next((group for group in optimizer.param_groups if any(p is parameter for p in group["params"])), None)
    if group is None or not Split.of(group).rotates(parameter.shape):
        return {}
    weight = gathered(parameter.detach())
    metrics: dict[str, float | Tensor] = {
        f"l2_norm/param/{name}": torch.linalg.vector_norm(weight, dtype=at_least_float32(weight.dtype))
    }
    predicted = predicted_angle(optimizer, group, parameter)
    if predicted is not None:
        metrics[f"rotation/predicted_per_step/{name}"] = predicted
    rows = Split.of(group).rows(weight)[0]
    some = rows[:: -(-len(rows) // ROWS)].clone()
    if parameter in last:
        angles = Split().angle(last[parameter], some)
        metrics[f"rotation/since_report/{name}"] = angles.square().mean().sqrt()
    last[parameter] = some
    return metrics


def predicted_angle(optimizer: Optimizer, group: Mapping[str, Any], parameter: Tensor) -> float | None:
    """Radians per step in equilibrium; None where theory has no rule, or needs the gradient."""
    try:
        rule = rule_of(group, optimizer)
    except ValueError:
        return None
    if keeps_norms(optimizer) and not rule.keeps_norm:
        rule = FixedNorm(rule)
    shape = tuple(parameter.shape)
    angle = rule.equilibrium(fan_in=Split.of(group).fan_in(shape), shape=shape).angular_update
    return None if angle is None else float(angle)
