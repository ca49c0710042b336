"""BatchNorm with statistics over the batches of all processes, so that several processes train as one would.

torch's SyncBatchNorm does the same, but only on GPUs.
"""

from typing import Any, cast, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.modules.batchnorm import _BatchNorm


@final
class SharedBatchNorm(_BatchNorm):
    """BatchNorm for inputs of any number of dimensions. In training, mean and variance are over all processes."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x̂·weight + bias. Gradients flow through the statistics to every process."""
        if not self.training:
            return super().forward(x)
        dims = [dim for dim in range(x.dim()) if dim != 1]
        wide = x.float() if x.dtype.itemsize < 4 else x
        # Every process has the same number of values, so the count needs no reduction.
        count = wide.numel() // wide.shape[1] * dist.get_world_size()
        mean = _summed(wide.sum(dims)) / count
        centred = wide - _along_channels(mean, x)
        variance = _summed(centred.square().sum(dims)) / count
        with torch.no_grad():
            self._remember(mean, variance * count / (count - 1))
        normalised = centred * _along_channels((variance + self.eps).rsqrt(), x)
        return (normalised * _along_channels(self.weight, x) + _along_channels(self.bias, x)).to(x.dtype)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        """Update the running statistics, as torch does."""
        for running, now in ((self.running_mean, mean), (self.running_var, variance)):
            cast(Tensor, running).lerp_(now.to(cast(Tensor, running).dtype), cast(float, self.momentum))
        cast(Tensor, self.num_batches_tracked).add_(1)

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept any number of dimensions. Channels are dimension 1."""


def with_shared_statistics(model: nn.Module) -> None:
    """Replace each BatchNorm by a `SharedBatchNorm` with the same parameters and buffers."""
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, _BatchNorm) and not isinstance(layer, SharedBatchNorm):
                shared = SharedBatchNorm(layer.num_features, layer.eps, cast(Any, layer.momentum))
                for key, value in {**layer._parameters, **layer._buffers}.items():
                    setattr(shared, key, value)
                shared.train(layer.training)
                setattr(parent, name, shared)


def _summed(values: Tensor) -> Tensor:
    """Return the sum over processes. Gradients flow back to each of them."""
    return cast(Tensor, all_reduce(values))  # type: ignore[no-untyped-call]


def _along_channels(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *(1,) * (like.dim() - 2))
