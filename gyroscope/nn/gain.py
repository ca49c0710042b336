"""A learnable gain: the weight's size as its own parameter, so that the weight itself need only rotate."""

from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar, cast, final

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
        """Return the weight with each vector times its gain."""
        return self.split.broadcast(self.gain, weight.shape) * weight


def add_gain(
    model: Model,
    granularity: Literal["neuron", "tensor"] = "neuron",
    *,
    per: Literal["row", "column", "both"] = "row",
) -> Model:
    """Give every weight of the model's (or the one layer's) linear maps a learnable gain, in place.

    For optimizers that keep norms fixed: the gain learns the size that the weight no longer can. The model computes the
    same function. In `param_groups` gains neither rotate nor decay, and `gain_lr` is their learning rate. Add gains
    before the optimizer is made.

    With granularity "neuron", `per` chooses gains of a weight's outputs ("row"), of its inputs ("column"), or both.

    A state_dict of the plain model loads, with gains of 1. `folded_state_dict` returns one for the plain model.

    >>> layer = add_gain(nn.Linear(3, 2))
    >>> [name for name, _ in layer.named_parameters()]
    ['bias', 'parametrizations.weight.original', 'parametrizations.weight.0.gain']
    """
    if granularity not in ("neuron", "tensor"):
        raise ValueError(f"granularity={granularity!r} must be 'neuron' or 'tensor'")
    if per not in ("row", "column", "both") or (granularity == "tensor" and per != "row"):
        raise ValueError(
            f"per={per!r} must be 'row', 'column' or 'both', and has no effect on a gain of a whole tensor"
        )
    weights = list(linear_maps(model))
    if not weights:
        raise ValueError(f"{type(model).__name__} has no weight of a Linear, convolution or attention layer to gain")
    # All are checked before the first is changed, so that an error leaves the model as it was.
    for place, _ in weights:
        if has_parametrization(place, Gain):
            raise ValueError(f"{place.name!r} has a gain already: add gains once, to the model or layer by layer")
    for place, split in weights:
        # A parametrized weight is computed on access, which needs no graph here.
        with torch.no_grad():
            weight = getattr(place.module, place.tensor)
        for chosen in _splits(split, granularity, per):
            parametrize.register_parametrization(place.module, place.tensor, Gain(chosen, weight))
        load_hook = partial(_load_plain_weight, place.tensor)
        place.module.register_load_state_dict_pre_hook(load_hook)  # type: ignore[no-untyped-call]
    return model


def _splits(split: Split, granularity: str, per: str) -> list[Split]:
    """Return the split of each gain of a weight. A column is what an input is multiplied by."""
    if granularity == "tensor":
        return [replace(split, granularity="tensor")]
    # Outputs are in dim 1 of a ConvTranspose and of Hugging Face's Conv1D, and in dim 0 of all else.
    columns = Split(axis=0 if split.axis == 1 else 1)
    return {"row": [split], "column": [columns], "both": [split, columns]}[per]


def _load_plain_weight(tensor: str, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let a plain weight of a state_dict be the weight behind the gains, and set the gains to 1."""
    links = list(parametrizations(module, tensor) or ())
    # After `fold` there are none. Behind standardisation the same weight would compute another function.
    if prefix + tensor in state and links and all(isinstance(link, Gain) for link in links):
        inside = f"{prefix}parametrizations.{tensor}."
        state[inside + "original"] = state.pop(prefix + tensor)
        for number, link in enumerate(links):
            state[f"{inside}{number}.gain"] = torch.ones_like(cast(Gain, link).gain)


def has_parametrization(place: Place, *kinds: type[nn.Module]) -> bool:
    """Return whether a parametrization of one of these kinds acts on the layer's tensor."""
    return any(isinstance(link, kinds) for link in parametrizations(place.module, place.tensor) or ())
