"""Gains and standardisation absorbed into plain weights, for inference."""

from collections.abc import Iterator
from typing import TypeVar, cast

from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import ParametrizationList

from gyroscope.nn.gain import Gain
from gyroscope.nn.standardise import Standardise

Model = TypeVar("Model", bound=nn.Module)
OURS = (Gain, Standardise)


def fold(model: Model) -> Model:
    """Absorb gains and standardisation into the weights, in place: plain layers with the same weights bit for bit.

    The weights are new parameters, untied where they were tied, so fold after training; an optimizer made before does
    not know them. A model that has neither is returned as it is.

    >>> from gyroscope.nn import add_gain
    >>> [name for name, _ in fold(add_gain(nn.Linear(3, 2))).named_parameters()]
    ['bias', 'weight']
    """
    ours = []
    for name, module, tensor, chain in _parametrized(model):
        others = [type(link).__name__ for link in chain if not isinstance(link, OURS)]
        if len(others) == len(chain):  # nothing of ours
            continue
        if others:
            raise ValueError(
                f"{name}.{tensor} has other parametrizations too ({', '.join(others)}): fold it with "
                f"torch.nn.utils.parametrize.remove_parametrizations(module, {tensor!r})"
            )
        ours.append((module, tensor))
    for module, tensor in ours:
        _fold(module, tensor)
    return model


def _parametrized(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, ParametrizationList]]:
    for name, module in model.named_modules():
        if parametrize.is_parametrized(module):
            for tensor, chain in cast(nn.ModuleDict, module.parametrizations).items():
                yield name, module, tensor, cast(ParametrizationList, chain)


def _fold(module: nn.Module, tensor: str) -> None:
    value = getattr(module, tensor).detach().clone()
    # torch's own leave_parametrized=True writes into the tensor behind it, which another layer may share.
    parametrize.remove_parametrizations(module, tensor, leave_parametrized=False)
    setattr(module, tensor, nn.Parameter(value, requires_grad=getattr(module, tensor).requires_grad))
