"""The layers of a checkpoint: its stored tensors, decided by group, or by name and shape (`gyroscope.model.by_name`).

A parameter group with a split (`granularity`, `axis`, `group_size`), as `gyro.param_groups` makes it, overrides names.
Muon rotates each matrix as a whole. Fused queries, keys and values are three layers, as in the tracker.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from gyroscope.checkpoint.files.formats import ParameterState
from gyroscope.checkpoint.last_step.group_step import GroupStep
from gyroscope.geometry import Split
from gyroscope.model.by_name import NamedSplit, splits_by_name
from gyroscope.model.measured import WatchedLayer, watched_layers
from gyroscope.model.selection import Decision, turning, with_tokens

# An embedding in a file without an optimizer is shown, because it may have decayed.
UNKNOWN_GROUP = {"weight_decay": 1.0}


def checkpoint_layers(
    parameters: Sequence[ParameterState],
    groups: Sequence[Mapping[str, Any]],
    steps: Sequence[GroupStep] = (),
) -> Iterator[tuple[ParameterState, list[WatchedLayer]]]:
    """Yield every parameter with vectors, and its layers. `steps` are the last steps of the groups, if known."""
    by_name = splits_by_name({each.name: each.weight.shape for each in parameters})
    for parameter in parameters:
        has_group = parameter.group >= 0
        group = groups[parameter.group] if has_group else UNKNOWN_GROUP
        step = steps[parameter.group] if has_group and steps else None
        decision = _decision(parameter, by_name[parameter.name], group, step)
        if decision.turns:
            yield parameter, list(watched_layers(decision, decision.split))


def _decision(
    parameter: ParameterState, named: NamedSplit, group: Mapping[str, Any], step: GroupStep | None
) -> Decision:
    # Without values, because only its shape is used.
    empty = torch.empty(parameter.weight.shape, device="meta")
    weight = torch.nn.Parameter(empty, requires_grad=False)
    decision = Decision(parameter.name, weight, named.split, "name and shape", parameter.group, named.is_embedding)
    if _is_written(group, step):
        decision = replace(decision, split=Split.of(group), reason="its parameter group")
    rule = None if step is None else step.rule
    decision = turning(decision, group, whole_by=rule.name if rule is not None and rule.whole_matrix else "")
    return with_tokens(decision, group)


def _is_written(group: Mapping[str, Any], step: GroupStep | None) -> bool:
    """Return whether the group's split was chosen. Our optimizers that rotate nothing write the default too."""
    spec = None if step is None else step.spec
    turns_nothing = spec is not None and spec.is_ours and not spec.load().turns_by_group
    return "granularity" in group and not (turns_nothing and Split.of(group) == Split())
