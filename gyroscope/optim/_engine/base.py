"""What every optimizer shares: checked options, state that survives loading, the loop over parameters."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import chain
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.graph import increment_version
from torch.optim.optimizer import ParamsT

from gyroscope._checks import check_decay
from gyroscope.geometry import Split, at_least_float32
from gyroscope.optim._engine.workspace import Kept, Workspace

Group = dict[str, Any]
State = dict[str, Any]

SPLIT: Group = {"granularity": "neuron", "axis": 0, "group_size": 1}
BOOKKEEPING = {"params", "param_names", "name", "initial_lr", "max_lr", "min_lr", "swa_lr"}
"""Keys that torch, its schedulers and users keep in a group beside the options."""
TORCH_ONLY = {"foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay", "dampening"}
REFUSED = {"amsgrad", "maximize"}


class Base(torch.optim.Optimizer, ABC):
    """A torch optimizer whose options are checked at each group's entry, and whose values per vector keep their dtype.

    A final class names its `row_state`, checks its own options in `_check`, and steps one parameter in `_update`.
    """

    row_state: ClassVar[tuple[str, ...]] = ()
    turns_by_group: ClassVar[bool] = True
    """Whether each tensor is split and turned as its group's `granularity`, `axis` and `group_size` say."""

    def __init__(self, params: ParamsT, options: Group) -> None:
        super().__init__(params, {**SPLIT, **options})

    @abstractmethod
    def _check(self, group: Group) -> None:
        """Raise a ValueError for an option of this group that the rule cannot use."""

    @abstractmethod
    def _update(self, p: Tensor, grad: Tensor, state: State, group: Group, space: Workspace) -> None:
        """Take one step; `state["step"]` counts it already, and is 1 when there is no other state yet."""

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with options of their own; an option that this optimizer does not have is an error."""
        unknown = sorted(set(param_group) - set(self.defaults) - BOOKKEEPING)
        if unknown:
            options = ", ".join(sorted(self.defaults))
            raise ValueError(f"{type(self).__name__} has no option {unknown[0]!r}: a group may set {options}")
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
        except ValueError:
            del self.param_groups[-1]
            raise

    def _check_group(self, group: Group) -> None:
        if any(p.is_complex() for p in group["params"]):
            raise ValueError(f"{type(self).__name__} has no complex weights: pass torch.view_as_real(weight) instead")
        check_decay(float(group["lr"]), group["weight_decay"])
        split = Split.of(group)
        for p in group["params"]:
            split.rotates(p.shape)  # raises where the split does not fit the tensor
        self._check(group)

    @_disable_dynamo  # in a trace its numbers would be constants
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; a closure recomputes the loss, which is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        space = Workspace(self.__dict__.setdefault("_kept", Kept()))
        ready = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        self._count([p for p, _ in ready])
        for p, group in ready:
            self._update(p, cast(Tensor, p.grad), self.state[p], group, space)
        space.finish()
        increment_version([p for p, _ in ready])  # a compiled program tells autograd nothing of what it changes
        return loss

    def _count(self, ready: list[Tensor]) -> None:
        if any(cast(Tensor, p.grad).layout != torch.strided for p in ready):
            raise RuntimeError(
                f"{type(self).__name__} takes no sparse gradients: set sparse=False in the Embedding that makes them"
            )
        for p in ready:
            # A float32 tensor on the CPU, as torch keeps it: reading it waits for no device.
            if "step" not in self.state[p]:
                self.state[p]["step"] = torch.tensor(0.0)
        if ready:
            torch._foreach_add_([self.state[p]["step"] for p in ready], 1.0)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this optimizer, or of the torch optimizer whose rule it has.

        Options that the saved groups lack keep their present values. torch casts all state to the parameters' dtype;
        values per vector are put back as they were saved.
        """
        pairs = zip(state_dict["param_groups"], self.param_groups, strict=False)
        groups = [self._merged(saved, present) for saved, present in pairs]
        groups += state_dict["param_groups"][len(groups) :]  # a wrong number is for torch to refuse
        super().load_state_dict({**state_dict, "param_groups": groups})
        for group in self.param_groups:
            self._check_group(group)
        saved_ids = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        for index, p in zip(saved_ids, chain.from_iterable(g["params"] for g in self.param_groups), strict=True):
            self._restore(p, state_dict["state"].get(index, {}))

    def _merged(self, saved: Group, present: Group) -> Group:
        refused = sorted(option for option in REFUSED if saved.get(option))
        if refused:
            raise ValueError(
                f"the saved state was made with {refused[0]}=True, which {type(self).__name__} does not have"
            )
        kept = {option: value for option, value in saved.items() if option not in TORCH_ONLY | REFUSED}
        return {**{option: value for option, value in present.items() if option != "params"}, **kept}

    def _restore(self, p: Tensor, saved: State) -> None:
        state = self.state[p] if saved else {}
        if "step" in saved:
            state["step"] = torch.tensor(float(saved["step"]))
        for key in self.row_state:
            if key in saved:
                state[key] = saved[key].to(device=p.device, dtype=at_least_float32(p.dtype), copy=True)
