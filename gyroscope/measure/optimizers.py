"""The optimizer that really steps, whatever is wrapped around it, and what a call of its step says."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

WRAPPED = ("optimizer", "_optimizer")
"""Where Lightning, Fabric and Accelerate keep the optimizer that they wrap, themselves posing as an Optimizer."""


def real_optimizer(optimizer: Any) -> Optimizer:
    """The outermost optimizer whose own `step` runs hooks: wrappers only call it, or skip it.

    >>> import torch
    >>> adamw = torch.optim.AdamW([torch.ones(2, 2)])
    >>> wrapper = type("LightningOptimizer", (), {"optimizer": adamw})()
    >>> real_optimizer(wrapper) is adamw
    True
    """
    inner = next((found for name in WRAPPED if isinstance(found := _attribute(optimizer, name), Optimizer)), None)
    if inner is not None and inner is not optimizer:
        return real_optimizer(inner)
    if not isinstance(optimizer, Optimizer) or not hasattr(optimizer, "register_step_pre_hook"):
        raise ValueError(
            f"optimizer={optimizer!r} is not a torch optimizer, nor a wrapper around one: pass the "
            "torch.optim.Optimizer whose step() changes the weights"
        )
    return optimizer


def _attribute(optimizer: Any, name: str) -> Any:
    return getattr(optimizer, name, None)


def has_closure(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a step was given a closure, which makes the gradients within it; args[0] is the optimizer."""
    return (args[1] if len(args) > 1 else kwargs.get("closure")) is not None


def usable(grad: Tensor | None) -> bool:
    """Whether there is a gradient, and a dense one."""
    return grad is not None and not grad.is_sparse


def steps_taken(optimizer: Optimizer) -> int:
    """How many steps the optimizer's own state counts; 0 where it does not count."""
    counts = [state["step"] for state in optimizer.state.values() if isinstance(state, dict) and "step" in state]
    return max((int(count) for count in counts), default=0)
