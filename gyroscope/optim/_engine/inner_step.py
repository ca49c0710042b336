"""The step of an optimizer inside another: in memory that is lent to it, with groups that stand in for its own."""

import inspect
from typing import Any, final

import torch
from torch import Tensor
from torch.optim import Optimizer


@final
class Loan:
    """Memory of the weights' size in which an inner optimizer steps, while the weights stay where they are."""

    def __init__(self) -> None:
        self._spare: dict[Tensor, Tensor] = {}
        self._weights: dict[Tensor, Tensor] = {}  # filled only while the inner optimizer steps

    def lend(self, p: Tensor, from_zero: bool) -> None:
        """Put other memory in the place of p's weights, holding them or zeros; a DTensor's weights are copied away."""
        spare = self._spare.get(p)
        if spare is None:
            spare = self._spare[p] = torch.empty_like(p)
        if hasattr(p, "placements"):
            self._weights[p] = spare.copy_(p)
            if from_zero:
                p.zero_()
            return
        spare = spare.zero_() if from_zero else spare.copy_(p)
        self._weights[p] = p.data
        p.data = spare

    def take_back(self) -> dict[Tensor, Tensor]:
        """Put all weights back; returns what the inner optimizer left in the place of each."""
        return {p: self._take_back(p) for p in list(self._weights)}

    def _take_back(self, p: Tensor) -> Tensor:
        weights = self._weights.pop(p)
        if hasattr(p, "placements"):
            left = p.detach().clone()
            p.copy_(weights)
            return left
        left = p.data
        p.data = weights
        return left


def step_with_groups(inner: Optimizer, stand_ins: list[dict[str, Any]]) -> None:
    """The inner optimizer's step with these groups in the place of its own.

    torch wraps a class's step so that it calls the optimizer's own hooks and those registered for all optimizers. The
    latter are called for the outer optimizer already, so what is inside that wrap is called, between its own hooks.
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
    """Raise for an optimizer that cannot step without a closure: it calls it several times in each step."""
    closure = inspect.signature(type(inner).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{type(inner).__name__} calls a closure several times in each step, and a rotational step turns weights "
            "once: wrap an optimizer with one update per step, for example torch.optim.AdamW"
        )
