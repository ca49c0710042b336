"""A learnable gain: the weight's size as a parameter of its own, so that the weight itself may only turn."""

from dataclasses import replace
from typing import Literal, TypeVar, final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from gyroscope.geometry import Split
from gyroscope.model.parameters import Place, linear_maps, parametrizations

Model = TypeVar("Model", bound=nn.Module)


@final
class Gain(nn.Module):
    """weight = gain · w, one gain per weight vector, 1 at the start. A parametrization.

    >>> Gain(Split("neuron", 1), torch.ones(2, 3)).gain.shape
    torch.Size([3])
    """

    def __init__(self, split: Split, weight: Tensor) -> None:
        super().__init__()
        self.split = split
        gains = torch.ones(split.num_vectors(weight.shape), dtype=weight.dtype, device=weight.device)
        self.gain = nn.Parameter(gains)

    def forward(self, weight: Tensor) -> Tensor:
        """The weight with each vector times its gain."""
        return self.split.broadcast(self.gain, weight.shape) * weight


def add_gain(model: Model, granularity: Literal["neuron", "tensor"] = "neuron") -> Model:
    """Give every weight of the model's (or the one layer's) linear maps a learnable gain, in place.

    For optimizers that keep norms fixed: the gain learns the size that the weight no longer can. The function computed
    is unchanged. `param_groups` lets gains neither rotate nor decay. Add gains before the optimizer is made.

    >>> layer = add_gain(nn.Linear(3, 2))
    >>> [name for name, _ in layer.named_parameters()]
    ['bias', 'parametrizations.weight.original', 'parametrizations.weight.0.gain']
    """
    if granularity not in ("neuron", "tensor"):
        raise ValueError(f"granularity={granularity!r} must be 'neuron' or 'tensor'")
    weights = list(linear_maps(model))
    if not weights:
        raise ValueError(f"{type(model).__name__} has no weight of a Linear, convolution or attention layer to gain")
    # All are checked before the first is changed, so that an error leaves the model as it was.
    for place, _ in weights:
        if has_parametrization(place, Gain):
            raise ValueError(f"{place.name!r} has a gain already: add gains once, to the model or layer by layer")
    for place, split in weights:
        chosen = split if granularity == "neuron" else replace(split, granularity="tensor")
        # Behind a parametrization getattr makes the weight, and no graph of that is wanted.
        with torch.no_grad():
            gain = Gain(chosen, getattr(place.module, place.tensor))
        parametrize.register_parametrization(place.module, place.tensor, gain)
    return model


def has_parametrization(place: Place, *kinds: type[nn.Module]) -> bool:
    """Whether a parametrization of one of these kinds acts on the layer's tensor."""
    return any(isinstance(link, kinds) for link in parametrizations(place.module, place.tensor) or ())
