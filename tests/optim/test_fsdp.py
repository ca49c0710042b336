"""Under FSDP2 every optimizer does what it does in one process: uneven shards, empty shards, any split into vectors."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.debug import CommDebugMode

from gyroscope import optim

STEPS, WORLD = 4, 2
OPTIMIZERS = {
    "RotationalAdamW": lambda groups: optim.RotationalAdamW(groups, lr=0.05),
    "RotationalAdamW, imbalanced": lambda groups: optim.RotationalAdamW(groups, lr=0.05, imbalance=(0.5, 3.0, 0)),
    "RotationalSGD": lambda groups: optim.RotationalSGD(groups, lr=0.1, nesterov=True, weight_decay=0.1),
    "RotationalLion": lambda groups: optim.RotationalLion(groups, lr=0.01),
    "Lion": lambda groups: optim.Lion(groups, lr=0.01, weight_decay=0.1),
    "AdamS": lambda groups: optim.AdamS(groups, lr=0.05, weight_decay=0.1),
    "AdamSRT": lambda groups: optim.AdamSRT(groups, lr=0.05, weight_decay=0.1),
    "SGDMRT": lambda groups: optim.SGDMRT(groups, lr=0.1, weight_decay=0.1),
    "SphericalAdam": lambda groups: optim.SphericalAdam(groups, lr=0.05),
    "KAdam": lambda groups: optim.KAdam(groups, lr=0.05, weight_decay=0.1),
    "Rotational(AdamW)": lambda groups: optim.Rotational(torch.optim.AdamW(groups, lr=0.05, weight_decay=0.1)),
    "Rotational(Adam)": lambda groups: optim.Rotational(
        torch.optim.Adam(groups, lr=0.05, weight_decay=0.1), angular_update=0.03
    ),
}
SPLITS = {
    "neuron": {"granularity": "neuron"},
    "columns": {"granularity": "neuron", "axis": 1},
    "group": {"granularity": "group", "group_size": 3},
    "tensor": {"granularity": "tensor"},
    "experts": {"granularity": "neuron", "axis": (0, 1)},
    "experts, cut by outputs": {"granularity": "neuron", "axis": (0, 1)},
}


class Experts(nn.Module):
    """Weights [experts, outputs, inputs]: over two processes 2 + 1 experts, and 1 + 0."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(3, 6, 4))
        self.down = nn.Parameter(torch.randn(1, 4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.einsum("bi,eoi->beo", x, self.up).tanh().sum(1)
        return torch.einsum("bo,edo->bd", hidden, self.down)


def network(split: str) -> nn.Module:
    """6 rows (even), 9 rows (uneven), 1 row (an empty shard); biases and a gain that do not rotate."""
    torch.manual_seed(0)
    if split.startswith("experts"):
        return Experts().double()
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 1)).double()


def trained(model: nn.Module, name: str, split: str) -> CommDebugMode:
    """Train for a few steps; the communication of the optimizer's last step."""
    weights = [p for p in model.parameters() if p.dim() > 1 and (split != "group" or p.shape[0] % 3 == 0)]
    rest = [p for p in model.parameters() if all(p is not w for w in weights)]
    optimizer = OPTIMIZERS[name]([{"params": weights, **SPLITS[split]}, {"params": rest, "granularity": "none"}])
    for step in range(STEPS):
        x = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).sin().sum().backward()
        with CommDebugMode() as communication:
            optimizer.step()
    return communication


def worker(rank: int, port: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,))
    for name in OPTIMIZERS:
        for split in SPLITS:
            model = network(split)
            place = (lambda _: Shard(1)) if split == "experts, cut by outputs" else None
            fully_shard(model, mesh=mesh, shard_placement_fn=place)
            communication = trained(model, name, split)
            shards: list[Any] = list(model.parameters())
            weights = [p.full_tensor().detach().clone() for p in shards]
            if rank == 0:
                torch.save((weights, communication.get_total_counts()), Path(folder) / f"{name} {split}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def sharded(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fsdp")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(worker, args=(port, str(folder)), nprocs=WORLD)  # type: ignore[attr-defined]
    return folder


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_processes_train_as_one_does(name, split, sharded):
    model = network(split)
    trained(model, name, split)
    weights, communications = torch.load(sharded / f"{name} {split}.pt")
    for alone, together in zip(model.parameters(), weights, strict=True):
        torch.testing.assert_close(together, alone.detach(), rtol=1e-12, atol=1e-12)
    rotating = 0 if name in ("Lion", "KAdam") else 2 if split == "group" else 3
    assert communications <= (0 if split == "neuron" else rotating), "one reduction per tensor, none for whole vectors"
