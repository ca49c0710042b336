"""BatchNorm whose statistics are those of all processes' batches, so that several train as one does.

torch's SyncBatchNorm does the same on GPUs alone.
"""

from typing import Any, cast, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.modules.batchnorm import _BatchNorm


@final
class SharedBatchNorm(_BatchNorm):
    """BatchNorm of any number of dimensions, which in training normalises by mean and variance over all processes."""

    def forward(self, x: Tensor) -> Tensor:
        """x̂·weight + bias; gradients go through the statistics to every process."""
        if not self.training:
            return super().forward(x)
        dims = [dim for dim in range(x.dim()) if dim != 1]
        wide = x.float() if x.dtype.itemsize < 4 else x
        # Every process has as many values: their number needs no reduction.
        count = wide.numel() // wide.shape[1] * dist.get_world_size()
        mean = _summed(wide.sum(dims)) / count
        centred = wide - _along_channels(mean, x)
        variance = _summed(centred.square().sum(dims)) / count
        with torch.no_grad():
            self._remember(mean, variance * count / (count - 1))
        normalised = centred * _along_channels((variance + self.eps).rsqrt(), x)
        return (normalised * _along_channels(self.weight, x) + _along_channels(self.bias, x)).to(x.dtype)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        """Bring the running statistics up to date, as torch does."""
        for running, now in ((self.running_mean, mean), (self.running_var, variance)):
            cast(Tensor, running).lerp_(now.to(cast(Tensor, running).dtype), cast(float, self.momentum))
        cast(Tensor, self.num_batches_tracked).add_(1)

    def _check_input_dim(self, input: Tensor) -> None:
        """Channels are dimension 1 of any tensor."""


def with_shared_statistics(model: nn.Module) -> None:
    """Put a `SharedBatchNorm` with the same parameters and buffers in the place of each BatchNorm."""
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, _BatchNorm) and not isinstance(layer, SharedBatchNorm):
                shared = SharedBatchNorm(layer.num_features, layer.eps, cast(Any, layer.momentum))
                for key, value in {**layer._parameters, **layer._buffers}.items():
                    setattr(shared, key, value)
                shared.train(layer.training)
                setattr(parent, name, shared)


def _summed(values: Tensor) -> Tensor:
    """The sum over processes, through which gradients go back to each."""
    return cast(Tensor, all_reduce(values))  # type: ignore[no-untyped-call]


def _along_channels(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *(1,) * (like.dim() - 2))
