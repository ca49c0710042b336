"""The step of an optimizer inside another, in other memory than the weights and with other groups."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import Tensor
from torch.optim import Optimizer


@final
class SpareMemory:
    """Memory of the weights' size in which an inner optimizer steps, while the weights stay as they are."""

    def __init__(self) -> None:
        self._spare: dict[Tensor, Tensor] = {}

    def take_step(self, starts: Mapping[Tensor, bool], step: Callable[[], None]) -> dict[Tensor, Tensor]:
        """Take a step in the place of the weights, put these back, and return what the step has left.

        It starts from zeros if `starts` says so, and otherwise from a copy. The weights of a DTensor are copied away.
        """
        for p in starts.keys() - self._spare.keys():
            self._spare[p] = torch.empty_like(p)
        plain = {p: self._spare[p] for p in starts if not hasattr(p, "placements")}
        copied = [p for p in plain if not starts[p]]
        # One launch each.
        if len(copied) < len(plain):
            torch._foreach_zero_([spare for p, spare in plain.items() if starts[p]])
        if copied:
            torch._foreach_copy_([plain[p] for p in copied], copied)
        weights: dict[Tensor, Tensor] = {}
        left: dict[Tensor, Tensor] = {}
        try:
            for p, from_zero in starts.items():
                weights[p] = p.data if p in plain else self._spare[p].copy_(p)
                if p in plain:
                    p.data = plain[p]
                elif from_zero:
                    p.zero_()
            step()
        finally:  # also when out of memory, or at Ctrl-C
            for p, before in weights.items():
                left[p] = p.data if p in plain else p.detach().clone()
                if p in plain:
                    p.data = before
                else:
                    p.copy_(before)
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


def divide_by_lr_(difference: Tensor, lr: float | Tensor) -> None:
    """Divide a step by its learning rate, in place. At lr = 0 it becomes 0, whatever the optimizer did."""
    if isinstance(lr, Tensor) and lr.device.type != "cpu":
        # Reading lr would wait for its device.
        difference.div_(lr).masked_fill_(lr == 0, 0.0)
    elif lr:
        difference.div_(lr)
    else:
        difference.zero_()


def refuse_needed_closure(inner: Optimizer) -> None:
    """Raise for an optimizer that cannot step without a closure."""
    closure = inspect.signature(type(inner).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{type(inner).__name__} calls a closure several times in each step, and a rotational step rotates weights "
            "once: wrap an optimizer with one update per step, for example torch.optim.AdamW"
        )
