"""Weight standardisation: each neuron's weight vector centred and brought to unit size at every use."""

from typing import Literal, TypeVar, final

from torch import Tensor, nn
from torch.nn.utils import parametrize

from gyroscope.geometry import Split, at_least_float32
from gyroscope.model.parameters import linear_maps
from gyroscope.nn.gain import Gain, has_parametrization

Model = TypeVar("Model", bound=nn.Module)
Size = Literal["variance", "norm"]


@final
class Standardise(nn.Module):
    """weight = (w - mean)/sqrt(var + eps) per vector, divided by sqrt(fan_in) for unit norm. A parametrization.

    The weight then depends neither on the scale of w (up to eps) nor on its mean.

    >>> import torch
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


def standardise(model: Model, size: Size = "variance", *, eps: float = 1e-6) -> Model:
    """Standardise every weight of the model's (or the one layer's) linear maps per output neuron, in place.

    `size` becomes 1: the variance of a vector's entries (Qiao et al. 2019) or its norm. Add a learnable size with
    `add_gain`. In `param_groups` the weight behind it rotates.

    >>> layer = standardise(nn.Linear(64, 2), "norm")
    >>> layer.weight.norm(dim=1).detach().round(decimals=2)
    tensor([1., 1.])
    """
    if size not in ("variance", "norm"):
        raise ValueError(f"size={size!r} must be 'variance' or 'norm': the one that becomes 1")
    weights = list(linear_maps(model))
    if not weights:
        raise ValueError(f"{type(model).__name__} has no weight of a Linear, convolution or attention layer")
    # All are checked before the first is changed, so that an error leaves the model as it was.
    for place, _ in weights:
        if has_parametrization(place, Gain, Standardise):
            raise ValueError(
                f"{place.name!r} has a gain or is standardised already: standardise once, and before add_gain"
            )
    for place, split in weights:
        parametrize.register_parametrization(place.module, place.tensor, Standardise(split, size, eps))
    return model
