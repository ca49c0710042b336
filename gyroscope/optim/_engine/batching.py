"""Plain steps of many tensors at once, in the fastest of three ways."""

from collections.abc import Callable

import torch
from torch import Tensor

from gyroscope.optim._engine.memory import WHOLE, Scratch, cut, is_small, pieces
from gyroscope.optim._engine.steps import PlainStep
from gyroscope.optim.formulas import is_fusable

# (step, scratch memory, [weight, gradient, *moments] of each tensor)
Runner = Callable[[PlainStep, Scratch, list[list[Tensor]]], None]


def plain_runner(step: PlainStep, tensors: list[Tensor]) -> tuple[str | None, Runner]:
    """Return how such tensors take their step, with a name of the batch that they join. None: alone."""
    if step.fused is not None and is_fusable(tensors):
        return "fused", _run_fused
    if is_small(tensors[0]) and all(x.is_contiguous() for x in tensors):
        return "end to end", _run_end_to_end
    return None, _run_in_pieces


def _run_fused(step: PlainStep, scratch: Scratch, batch: list[list[Tensor]]) -> None:
    assert step.fused is not None
    step.fused(*zip(*batch, strict=True))


def _run_in_pieces(step: PlainStep, scratch: Scratch, batch: list[list[Tensor]]) -> None:
    """Step piece by piece: a piece stays in cache through all operations of the step."""
    scratch.reserved.clear()
    for tensors in batch:
        for part in pieces(tensors[0]) if tensors[0].dim() else [WHOLE]:
            step.step(cut(tensors, part), scratch)


def _run_end_to_end(step: PlainStep, scratch: Scratch, batch: list[list[Tensor]]) -> None:
    """Take one step of many small tensors with their entries concatenated."""
    if len(batch) == 1:
        _run_in_pieces(step, scratch, batch)
        return
    columns = [[x if x.dim() == 1 else x.view(-1) for x in tensors] for tensors in zip(*batch, strict=True)]
    joined = [torch.cat(tensors) for tensors in columns]
    _run_in_pieces(step, scratch, [joined])
    sizes = [x.numel() for x in columns[0]]
    for place, (tensors, changed) in enumerate(zip(columns, joined, strict=True)):
        if place != 1:  # all but the gradient
            torch._foreach_copy_(tensors, torch.split(changed, sizes))
