"""One training over the processes that torchrun starts. Each has a share of every batch, and the first one writes."""

import atexit
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map

from gyroscope_lab.training.batch_norm import with_shared_statistics
from gyroscope_lab.training.config import TrainConfig

# Environment variables that torchrun sets in each process.
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@final
@dataclass(frozen=True)
class Processes:
    """The processes of a training, and the rank of this one. By default there is one process."""

    device: torch.device
    rank: int = 0
    world: int = 1
    fsdp: bool = False

    @property
    def is_first(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    def check(self, config: TrainConfig) -> None:
        """Raise ValueError for a run that these processes cannot share."""
        if config.batch_size % self.world:
            raise ValueError(
                f"batch_size={config.batch_size} is not a multiple of the {self.world} processes that share each batch"
            )
        if self.fsdp and config.precision == "pure-bf16":
            raise ValueError(
                "precision='pure-bf16' has weights of two dtypes, which FSDP2 does not support: leave out --fsdp"
            )

    def share(self, batch: Tensor) -> Tensor:
        """Return this process's part of a batch."""
        return batch[self.rank :: self.world]

    def spread(self, model: nn.Module) -> nn.Module:
        """Return the model as it is called in training. Its gradients are those of the whole batch."""
        if self.world == 1:
            return model
        with_shared_statistics(model)
        if self.fsdp:
            from torch.distributed.fsdp import fully_shard

            fully_shard(model)
            return model
        return nn.parallel.DistributedDataParallel(model)

    def mean(self, values: Mapping[str, Tensor | float]) -> dict[str, Tensor | float]:
        """Return the mean of each value over processes, in one reduction."""
        if self.world == 1:
            return dict(values)
        packed = torch.stack([torch.as_tensor(value, dtype=torch.float32).to(self.device) for value in values.values()])
        dist.all_reduce(packed)
        return dict(zip(values, (packed / self.world).unbind(0), strict=True))

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process. All of them must call this at the same steps."""
        if self.world == 1:
            return flag
        flags = torch.tensor(float(flag), device=self.device)
        dist.all_reduce(flags)
        return bool(flags)

    def wait(self) -> None:
        """Wait until all processes reach this point."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def started_processes(device: str, fsdp: bool = False) -> Iterator[Processes]:
    """Yield the processes that torchrun started, or a single process without torchrun."""
    if not under_torchrun():
        if fsdp:
            raise ValueError(
                "FSDP2 shards weights over processes, and there is only one: start it with "
                "torchrun --nproc-per-node 2 -m gyroscope train --fsdp …"
            )
        yield Processes(usable_device(device))
        return
    here = usable_device(device)
    if here.type == "cuda":
        here = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(here)
    dist.init_process_group("nccl" if here.type == "cuda" else "gloo")
    try:
        yield Processes(here, dist.get_rank(), dist.get_world_size(), fsdp)
    finally:
        dist.destroy_process_group()


def usable_device(name: str) -> torch.device:
    """Return the device of this name, or raise ValueError if torch cannot compute on it here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0].split(". ")[0]
        raise ValueError(f"device={name!r} cannot be used ({reason}): choose for example cpu, cuda or mps") from None
    return device


def under_torchrun() -> bool:
    """Return whether torchrun started this process."""
    return all(name in os.environ for name in VARIABLES)


def end_process(code: int) -> int:
    """End a process that torchrun started, with this exit code. Return the code in any other process.

    Python's finalization is skipped. A thread of gloo may still hold the tensors of the last collective, because it
    drops them after it has woken the waiting thread. To drop them it needs the GIL. Python unwinds a thread that asks
    for the GIL during finalization, here out of a destructor, so C++ calls std::terminate ("terminate called without
    an active exception", SIGABRT). `destroy_process_group` does not join that thread as long as DDP, FSDP2 or a cache
    of DTensor refers to the group.
    """
    if under_torchrun():
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def gathered(state: Any) -> Any:
    """Return a state with whole tensors instead of shards. All processes must call this."""
    return tree_map(lambda x: x.full_tensor() if hasattr(x, "placements") else x, state)


def spread_weights(saved: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Shard the whole weights of a checkpoint like those of the model."""
    present = model.state_dict()
    return {name: _placed_like(value, present[name]) for name, value in saved.items()}


def spread_moments(saved: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Shard the state of an optimizer: tensors that have a parameter's shape are sharded like it.

    Values per vector stay whole, because the optimizers that have them place them themselves.
    """
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = {
        number: {
            key: _placed_like(value, p)
            if isinstance(value, Tensor) and value.shape == p.shape and value.dim()
            else value
            for key, value in saved["state"].get(number, {}).items()
        }
        for number, p in zip(numbers, parameters, strict=True)
    }
    return {**saved, "state": {number: values for number, values in state.items() if values}}


def _placed_like(values: Tensor, like: Tensor) -> Tensor:
    """Move values to the device of `like`, and shard them like it. Every process must have the same values."""
    values = values.to(like.device)
    if not isinstance(like, DTensor):
        return values
    # No source rank, because every process has read the same file and nothing needs to be sent.
    return distribute_tensor(values, like.device_mesh, like.placements, src_data_rank=None)
