"""The step of an optimizer inside another, in other memory than the weights and with other groups."""

import inspect
from typing import Any, final

import torch
from torch import Tensor
from torch.optim import Optimizer


@final
class SpareMemory:
    """Memory of the weights' size in which an inner optimizer steps, while the weights stay as they are."""

    def __init__(self) -> None:
        self._spare: dict[Tensor, Tensor] = {}
        self._zeroed: dict[Tensor, Tensor] = {}
        self._weights: dict[Tensor, Tensor] = {}  # filled only while the inner optimizer steps

    def swap_in(self, p: Tensor, from_zero: bool) -> None:
        """Put a copy of p's weights, or zeros, in their place. The weights of a DTensor are copied away instead."""
        if self._zeroed and not self._weights:
            # A step's first. One launch for all that start at zero, which are those of the last step.
            torch._foreach_zero_(list(self._zeroed.values()))
        spare = self._spare.get(p)
        if spare is None:
            spare = self._spare[p] = torch.empty_like(p)
        if hasattr(p, "placements"):
            self._weights[p] = spare.copy_(p)
            if from_zero:
                p.zero_()
            return
        if not from_zero:
            self._zeroed.pop(p, None)
            spare.copy_(p)
        elif p not in self._zeroed:
            self._zeroed[p] = spare.zero_()
        self._weights[p] = p.data
        p.data = spare

    def swap_out(self) -> dict[Tensor, Tensor]:
        """Put all weights back. Return what the inner optimizer left in the place of each."""
        return {p: self._swap_out(p) for p in list(self._weights)}

    def _swap_out(self, p: Tensor) -> Tensor:
        weights = self._weights.pop(p)
        if hasattr(p, "placements"):
            left = p.detach().clone()
            p.copy_(weights)
            return left
        left = p.data
        p.data = weights
        return left


def step_with_groups(inner: Optimizer, stand_ins: list[dict[str, Any]]) -> None:
    """Take the inner optimizer's step with these groups in place of its own.

    torch wraps a class's step to call the optimizer's own hooks and the global ones. The outer optimizer has called the
    global ones already, so this calls the wrapped function between the inner optimizer's own hooks.
    """
    groups = inner.param_groups
    inner.param_groups = stand_ins
    try:
        step = type(inner).step
        if not getattr(step, "hooked", False):
            inner.step()
            return
        for before in list(inner._optimizer_step_pre_hooks.values()):
            before(inner, (inner,), {})
        step.__wrapped__(inner)  # type: ignore[attr-defined]  # functools.wraps has set it
        # A scheduler made for the inner optimizer warns unless it has seen a step.
        inner._opt_called = True  # type: ignore[attr-defined]
        for after in list(inner._optimizer_step_post_hooks.values()):
            after(inner, (inner,), {})
    finally:
        inner.param_groups = groups


def refuse_needed_closure(inner: Optimizer) -> None:
    """Raise for an optimizer that cannot step without a closure."""
    closure = inspect.signature(type(inner).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{type(inner).__name__} calls a closure several times in each step, and a rotational step rotates weights "
            "once: wrap an optimizer with one update per step, for example torch.optim.AdamW"
        )
