"""Bring a saved state into other parameter groups, by the names of the parameters."""

from typing import Any

import torch

from gyroscope.optim._engine.loading import in_order_of


def regrouped(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return a saved state with its groups cut as those of `optimizer` are, so that torch's optimizers load it.

    Parameters are matched by name, so both sides need the names that `named_parameters()` gives. The optimizers of
    this package do this when they load. For torch's own it is a hook: a state of RotationalAdamW goes back into AdamW.

    >>> model = torch.nn.Linear(4, 2)
    >>> from gyroscope.optim import RotationalAdamW
    >>> ours = RotationalAdamW(model)
    >>> adamw = torch.optim.AdamW(model.named_parameters())
    >>> hook = adamw.register_load_state_dict_pre_hook(regrouped)
    >>> adamw.load_state_dict(ours.state_dict())
    >>> len(ours.param_groups), len(adamw.param_groups)
    (2, 1)
    """
    return in_order_of(optimizer.param_groups, state_dict, type(optimizer).__name__)
