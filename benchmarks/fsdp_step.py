"""How long does a step take under FSDP2? Ratios to torch's AdamW in the same run, two processes, interleaved.

Shards of a GPT of 13.8M parameters over gloo on the CPU. Exits with 1 when RotationalAdamW takes more than LIMIT times
torch's AdamW, or a step has other collectives than it should: none for neurons, one for all tensors.
"""

import os
import random
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from optim_step import gpt
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode

from gyroscope.optim import Rotational, RotationalAdamW

WORLD = 2
ROUNDS = 15
LIMIT = 2.0
JUDGED = "RotationalAdamW, compiled"
COLLECTIVES = {"RotationalAdamW, per tensor": 1}


class Weights(nn.Module):
    """Parameters of these shapes, which nothing calls."""

    def __init__(self, shapes):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weights = nn.ParameterList(
            nn.Parameter(0.02 * torch.randn(shape, generator=generator)) for shape in shapes
        )


def parameters(mesh):
    """Sharded weights with gradients."""
    model = Weights(gpt())
    fully_shard(model, mesh=mesh)
    weights = list(model.parameters())
    for p in weights:
        p.grad = torch.full_like(p, 1e-3).mul_(p)
    return weights


def optimizers(mesh):
    """Name -> optimizer on weights of its own."""
    return {
        "torch AdamW": torch.optim.AdamW(parameters(mesh), weight_decay=0.1),
        "torch AdamW, fused": torch.optim.AdamW(parameters(mesh), weight_decay=0.1, fused=True),
        "RotationalAdamW, compiled": RotationalAdamW(parameters(mesh), compile=True),
        "RotationalAdamW": RotationalAdamW(parameters(mesh)),
        "RotationalAdamW, per tensor": RotationalAdamW(parameters(mesh), granularity="tensor"),
        "Rotational(AdamW)": Rotational(torch.optim.AdamW(parameters(mesh), weight_decay=0.1)),
    }


def worker(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    made = optimizers(init_device_mesh("cpu", (WORLD,)))
    seconds = {name: [] for name in made}
    collectives = {}
    for name, optimizer in made.items():  # compiles, and makes the state
        optimizer.step()
        with CommDebugMode() as communication:
            optimizer.step()
        collectives[name] = communication.get_total_counts()
    order = random.Random(0)  # the same on both processes
    for _ in range(ROUNDS):
        for name in order.sample(list(made), len(made)):
            dist.barrier()
            # Time of the processor, of which other programs may have a share; and none of it is spent waiting.
            began = time.process_time()
            made[name].step()
            seconds[name].append(time.process_time() - began)
    dist.barrier()
    dist.destroy_process_group()
    if rank:
        return
    base = statistics.median(seconds["torch AdamW"])
    print(f"{'per process, of two':30} {'ms':>7} {'ratio':>6} {'collectives':>12}")
    for name, each in seconds.items():
        median = statistics.median(each)
        print(f"{name:30} {1e3 * median:7.1f} {median / base:6.2f} {collectives[name]:12}")
    slow = statistics.median(seconds[JUDGED]) > LIMIT * base
    talks = any(count != COLLECTIVES.get(name, 0) for name, count in collectives.items())
    if slow or talks:
        print(
            f"{JUDGED} takes more than {LIMIT} times torch's AdamW" if slow else "collectives are not as they should be"
        )
        sys.exit(1)


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(worker, args=(port,), nprocs=WORLD)
