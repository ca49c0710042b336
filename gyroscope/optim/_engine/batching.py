"""Plain steps of many tensors at once: what goes entry by entry may be laid together as is fastest."""

from collections.abc import Callable

import torch
from torch import Tensor

from gyroscope.optim._engine.memory import WHOLE, Scratch, cut, pieces
from gyroscope.optim._engine.steps import PlainStep
from gyroscope.optim.formulas import is_fusable

# Tensors of fewer entries take their step laid end to end: one by one they would wait for Python.
SMALL = 2**13

# Of a step, scratch memory, and of each tensor its [weight, gradient, *moments].
Runner = Callable[[PlainStep, Scratch, list[list[Tensor]]], None]


def plain_runner(step: PlainStep, tensors: list[Tensor]) -> tuple[str | None, Runner]:
    """How tensors like these take their step, and a name for those that may take it together; None: alone."""
    # One call of a kernel for all tensors of a batch, whatever their sizes.
    if step.fused is not None and is_fusable(tensors):
        return "fused", _run_fused
    if tensors[0].numel() < SMALL and all(x.is_contiguous() for x in tensors):
        return "end to end", _run_end_to_end
    return None, _run_in_pieces


def _run_fused(step: PlainStep, scratch: Scratch, batch: list[list[Tensor]]) -> None:
    assert step.fused is not None
    step.fused(*zip(*batch, strict=True))


def _run_in_pieces(step: PlainStep, scratch: Scratch, batch: list[list[Tensor]]) -> None:
    """Piece by piece: a piece stays in cache through all the operations of the step."""
    scratch.reserved.clear()
    for tensors in batch:
        for part in pieces(tensors[0]) if tensors[0].dim() else [WHOLE]:
            step.step(cut(tensors, part), scratch)


def _run_end_to_end(step: PlainStep, scratch: Scratch, batch: list[list[Tensor]]) -> None:
    """One step of many small tensors, their entries laid end to end."""
    columns = [[x if x.dim() == 1 else x.view(-1) for x in tensors] for tensors in zip(*batch, strict=True)]
    joined = [torch.cat(tensors) for tensors in columns]
    _run_in_pieces(step, scratch, [joined])
    sizes = [x.numel() for x in columns[0]]
    for place, (tensors, changed) in enumerate(zip(columns, joined, strict=True)):
        if place != 1:  # all but the gradient
            torch._foreach_copy_(tensors, torch.split(changed, sizes))
