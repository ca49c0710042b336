"""Learnable gains and weight standardisation, as parametrizations of the weights of linear maps.

A gain makes the weight's size a separate parameter, so that the weight itself only has to rotate. Standardisation
centres each neuron's weight vector and brings it to unit size at every use.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar, cast, final, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from gyroscope.geometry import Split, at_least_float32
from gyroscope.model.parameters import Place, linear_maps, parametrizations

Model = TypeVar("Model", bound=nn.Module)
Size = Literal["variance", "norm"]


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
        """Return the weight with each vector times its gain."""
        return self.split.broadcast(self.gain, weight.shape) * weight


@final
class Standardise(nn.Module):
    """weight = (w - mean)/sqrt(var + eps) per vector, divided by sqrt(fan_in) for unit norm. A parametrization.

    The weight then depends neither on the scale of w (up to eps) nor on its mean.

    >>> Standardise(Split(), "norm", eps=0.0)(torch.tensor([[1.0, 3.0]]))
    tensor([[-0.7071,  0.7071]])
    """

    def __init__(self, split: Split, size: Size, eps: float) -> None:
        super().__init__()
        self.split = split
        self.size = size
        self.eps = eps

    def forward(self, weight: Tensor) -> Tensor:
        """Return the standardised weight, computed in float32 or better."""
        # In bfloat16 the mean over a long vector would have three digits.
        w = self.split.centred(weight.to(at_least_float32(weight.dtype)))
        # With eps inside the root a vector of zeros stays at zero.
        fan_in = self.split.fan_in(weight.shape)
        inverse = (self.split.dot(w, w) / fan_in + self.eps).rsqrt()
        sized = inverse / fan_in**0.5 if self.size == "norm" else inverse
        return (w * self.split.broadcast(sized, weight.shape)).to(weight.dtype)


def add_gain(model: Model, granularity: Literal["neuron", "tensor"] = "neuron") -> Model:
    """Give every weight of the model's (or the one layer's) linear maps a learnable gain, in place.

    This is for optimizers that keep norms fixed. The gain learns the size, because the weight no longer can. The model
    computes the same function. In `param_groups` gains neither rotate nor decay, and `gain_lr` is their learning rate.
    Add gains before the optimizer is made.

    A state_dict of the plain model loads, with gains of 1. `folded_state_dict` returns one for the plain model.

    >>> layer = add_gain(nn.Linear(3, 2))
    >>> [name for name, _ in layer.named_parameters()]
    ['bias', 'parametrizations.weight.original', 'parametrizations.weight.0.gain']
    """
    if granularity not in ("neuron", "tensor"):
        raise ValueError(f"granularity={granularity!r} must be 'neuron' or 'tensor'")
    problem = "has a gain already: add gains once, to the model or layer by layer"
    for place, split in _linear_weights(model, (Gain,), problem):
        # A parametrized weight is computed on access, which needs no graph here.
        with torch.no_grad():
            weight = getattr(place.module, place.tensor)
        gain = Gain(split if granularity == "neuron" else replace(split, granularity="tensor"), weight)
        parametrize.register_parametrization(place.module, place.tensor, gain)
        load_hook = partial(_load_plain_weight, place.tensor)
        place.module.register_load_state_dict_pre_hook(load_hook)  # type: ignore[no-untyped-call]
    return model


def standardise(model: Model, size: Size = "variance", *, eps: float = 1e-6) -> Model:
    """Standardise every weight of the model's (or the one layer's) linear maps per output neuron, in place.

    `size` becomes 1: the variance of a vector's entries (Qiao et al. 2019) or its norm. Add a learnable size with
    `add_gain`. In `param_groups` the weight behind it rotates.

    >>> layer = standardise(nn.Linear(64, 2), "norm")
    >>> layer.weight.norm(dim=1).detach().round(decimals=2)
    tensor([1., 1.])
    """
    if size not in get_args(Size):
        raise ValueError(f"size={size!r} must be 'variance' or 'norm', which becomes 1")
    problem = "has a gain or is standardised already: standardise once, and before add_gain"
    for place, split in _linear_weights(model, (Gain, Standardise), problem):
        parametrize.register_parametrization(place.module, place.tensor, Standardise(split, size, eps))
    return model


def _linear_weights(model: nn.Module, kinds: tuple[type[nn.Module], ...], problem: str) -> list[tuple[Place, Split]]:
    """Return the weights of linear maps. Raise if there are none, or if one has such a parametrization."""
    weights = list(linear_maps(model))
    if not weights:
        raise ValueError(f"{type(model).__name__} has no weight of a Linear, convolution or attention layer")
    # All are checked before the first is changed, so that an error leaves the model as it was.
    for place, _ in weights:
        if any(isinstance(link, kinds) for link in parametrizations(place.module, place.tensor) or ()):
            raise ValueError(f"{place.name!r} {problem}")
    return weights


def _load_plain_weight(tensor: str, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Load a plain weight of a state_dict as the weight behind the gains, and set the gains to 1."""
    links = list(parametrizations(module, tensor) or ())
    # After `fold` there are none. Behind standardisation the same weight would compute another function.
    if prefix + tensor in state and links and all(isinstance(link, Gain) for link in links):
        inside = f"{prefix}parametrizations.{tensor}."
        state[inside + "original"] = state.pop(prefix + tensor)
        for number, link in enumerate(links):
            state[f"{inside}{number}.gain"] = torch.ones_like(cast(Gain, link).gain)
