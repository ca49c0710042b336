"""Gains and standardisation folded into plain weights, for inference and for checkpoints of the plain model."""

import warnings
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from gyroscope.nn.weights import Gain, Model, Standardise


def fold(model: Model) -> Model:
    """Fold gains and standardisation into the weights, in place. Plain layers have the same weights bit for bit.

    The weights are new parameters, and tied weights become separate. Fold after training, because an optimizer made
    before does not have them. A model without gains and standardisation is returned as it is.

    >>> from gyroscope.nn import add_gain
    >>> [name for name, _ in fold(add_gain(nn.Linear(3, 2))).named_parameters()]
    ['bias', 'weight']
    """
    for module, tensor in {(module, tensor): None for _, module, tensor in _foldable(model)}:
        value = getattr(module, tensor).detach().clone()
        # torch deletes the weight from the layer's class, which deep copies share: give this layer its own.
        shared = type(module)
        module.__class__ = type(shared.__name__, shared.__bases__, dict(shared.__dict__))
        # torch's leave_parametrized=True would write into the original tensor, which another layer may share.
        parametrize.remove_parametrizations(module, tensor, leave_parametrized=False)
        setattr(module, tensor, nn.Parameter(value, requires_grad=getattr(module, tensor).requires_grad))
    return model


def folded_state_dict(model: nn.Module) -> dict[str, Any]:
    """Return the state_dict that `fold` would leave, for the plain model. The model stays as it is.

    The other way, `add_gain` lets a model load a state_dict of the plain one, with gains of 1. To resume training, save
    `model.state_dict()` instead, because an optimizer needs the gains. If a weight with gains is tied to another, the
    folded one is not, with a warning.

    >>> from gyroscope.nn import add_gain
    >>> nn.Linear(3, 2).load_state_dict(folded_state_dict(add_gain(nn.Linear(3, 2))))
    <All keys matched successfully>
    """
    state: dict[str, Any] = model.state_dict()
    parameters = list(model.named_parameters(remove_duplicate=False))
    originals = {key.removesuffix("original"): p for key, p in parameters}
    for name, module, tensor in _foldable(model):
        prefix = f"{name}." if name else ""
        inside = f"{prefix}parametrizations.{tensor}."
        state = {key: value for key, value in state.items() if not key.startswith(inside)}
        state[f"{prefix}{tensor}"] = getattr(module, tensor).detach().clone()
        tied = [key for key, p in parameters if p is originals[inside] and not key.startswith(inside)]
        if tied:
            warnings.warn(
                f"{prefix}{tensor} is tied to {tied[0]} and has its own gains: load this state into a model without "
                "the tie",
                stacklevel=2,
            )
    return state


def _foldable(model: nn.Module) -> list[tuple[str, nn.Module, str]]:
    """Return each layer and tensor with gains or standardisation. Raise for one with other parametrizations too."""
    foldable = []
    # A layer that the model has under two names is in its state_dict twice.
    for name, module in model.named_modules(remove_duplicate=False):
        for tensor, chain in getattr(module, "parametrizations", {}).items():
            others = [type(link).__name__ for link in chain if not isinstance(link, Gain | Standardise)]
            if others and len(others) < len(chain):
                raise ValueError(
                    f"{name}.{tensor} has other parametrizations too ({', '.join(others)}): fold it with "
                    f"torch.nn.utils.parametrize.remove_parametrizations(module, {tensor!r})"
                )
            if not others:
                foldable.append((name, module, tensor))
    return foldable
