"""Two processes: under DDP the first one measures; where weights are sharded both do, and the first one writes."""

import contextlib
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import gyroscope as gyro
from gyroscope.measure.quantities import PER_LAYER, PER_VECTOR
from gyroscope.store import open_run
from tests.processes import run_processes

pytestmark = pytest.mark.distributed

STEPS, WORLD = 5, 2
SPLITS = {
    "neuron": {"granularity": "neuron"},
    "columns": {"granularity": "neuron", "axis": 1},
    "group": {"granularity": "group", "group_size": 3},
    "tensor": {"granularity": "tensor"},
    "experts": {"granularity": "neuron", "axis": (0, 1)},
}
OPTIMIZERS = {
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.05, weight_decay=0.1),
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.1),
    "AdamS": lambda groups: gyro.optim.AdamS(groups, lr=0.05, weight_decay=0.1),
}
CASES = [
    *(("AdamW", split, None) for split in SPLITS),
    *(("AdamW", split, 4) for split in ("neuron", "columns", "group")),
    *(("SGD", split, None) for split in ("neuron", "group")),
    *(("AdamS", split, rows) for split, rows in (("neuron", 4), ("columns", None), ("tensor", None))),
]


class Experts(nn.Module):
    """Three experts, of which two processes have two and one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(3, 5, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bi,eoi->bo", x, self.weight)


def network(split: str = "neuron") -> nn.Module:
    """6 rows (even), 9 rows (uneven, and groups of 3 across processes), 1 row (an empty shard). Or experts."""
    torch.manual_seed(0)
    if split == "experts":
        return Experts().double()
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 1)).double()


def optimizer_of(model, name, split):
    weights = [p for p in model.parameters() if p.dim() > 1 and (split != "group" or p.shape[0] % 3 == 0)]
    rest = [p for p in model.parameters() if all(p is not w for w in weights)]
    return OPTIMIZERS[name]([{"params": weights, **SPLITS[split]}, {"params": rest, "granularity": "none"}])


def parallel_network() -> nn.Module:
    """A layer that is cut by rows, and one that is cut by columns; a norm and a head that every process has."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 9), nn.LayerNorm(9), nn.Linear(9, 1)).double()


def trained(model, optimizer, path, collectives=None, **options):
    """`collectives` gets how many there were in each step of the optimizer."""
    with gyro.Tracker(model, optimizer, path, every=2, raw=".", **options) as tracker:
        for step in range(STEPS):
            x = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            model(x).sin().sum().backward()
            if collectives is None:
                optimizer.step()
                continue
            with CommDebugMode() as communication:
                optimizer.step()
            collectives.append(communication.get_total_counts())
    return tracker


def worker(rank: int, ports: list[int], folder: Path) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(ports[0]))
    # A process that waits for another in vain fails soon.
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (WORLD,))
    for name, split, rows in CASES:
        model = network(split)
        fully_shard(model, mesh=mesh)
        trained(model, optimizer_of(model, name, split), folder / f"{name} {split} {rows}", rows=rows)
    model = DistributedDataParallel(network())
    tracker = trained(model, optimizer_of(model, "AdamW", "neuron"), folder / "ddp")
    if rank:
        with pytest.raises(ValueError, match="ask process 0"):
            _ = tracker.run
    fails_alone(rank, mesh, folder)
    closes_alone(rank, mesh, folder)
    model = parallel_network()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    collectives: list[int] = []
    trained(model, optimizer_of(model, "AdamW", "neuron"), folder / "tp", collectives)
    if rank == 0:
        torch.save(collectives, folder / "collectives.pt")
    one_dies(rank, mesh, folder)


def one_dies(rank, mesh, folder):
    """Process 1 is gone in the middle of a run; nothing may come after this."""
    model = network()
    fully_shard(model, mesh=mesh)
    if rank == 1:
        model.register_forward_pre_hook(count_down(3, lambda: os._exit(0)))
    with contextlib.suppress(RuntimeError):  # of gloo, which misses the other process
        trained(model, optimizer_of(model, "AdamW", "neuron"), folder / "died")
    # To leave the group in order would wait for the other process.
    os._exit(0)


def count_down(calls, then):
    """A hook that acts at a later call."""
    left = iter(range(calls))
    return lambda *_: then() if next(left, None) is None else None


def closes_alone(rank, mesh, folder):
    """Process 0 ends its run early; the other one goes on and must not wait for it."""
    model = network()
    fully_shard(model, mesh=mesh)
    optimizer = optimizer_of(model, "AdamW", "neuron")
    tracker = gyro.Tracker(model, optimizer, folder / "closed early", every=1)
    for step in range(STEPS):
        if step == 3 and rank == 0:
            tracker.close()
        optimizer.zero_grad()
        model(torch.ones(8, 4, dtype=torch.float64)).sin().sum().backward()
        optimizer.step()
    tracker.close()


def fails_alone(rank, mesh, folder):
    """Process 1 cannot measure; the other one must not wait for it."""
    import gyroscope.measure._pipeline.measurement

    measurement: Any = gyroscope.measure._pipeline.measurement
    model = network()
    sum_after = measurement.sum_after
    fully_shard(model, mesh=mesh)
    if rank == 1:
        measurement.sum_after = lambda steps: 1 / 0
    try:
        if rank == 1:
            with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
                trained(model, optimizer_of(model, "AdamW", "neuron"), folder / "alone")
        else:
            trained(model, optimizer_of(model, "AdamW", "neuron"), folder / "alone")
    finally:
        measurement.sum_after = sum_after


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return run_processes(worker, tmp_path_factory.mktemp("processes"), world=WORLD)


def assert_same(together, alone):
    assert together.layers == alone.layers
    assert together.steps.tolist() == alone.steps.tolist() == [0, 2, 4]
    assert together.notes == alone.notes
    for layer in alone.layers:
        assert together.layer(layer) == alone.layer(layer)
        for row in PER_VECTOR:
            ours, theirs = (run.raw(layer, row.name) for run in (together, alone))
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-9, err_msg=f"{layer} {row.name}")
        for row in PER_LAYER:
            ours, theirs = (run.series(layer, row.name) for run in (together, alone))
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, err_msg=f"{layer} {row.name}")
        counts = (run.histogram(layer, "norm", 4).tolist() for run in (together, alone))
        assert next(counts) == next(counts)


@pytest.mark.parametrize(("name", "split", "rows"), CASES)
def test_sharded_vectors_are_measured_as_in_one_process(name, split, rows, folder, tmp_path):
    model = network(split)
    trained(model, optimizer_of(model, name, split), tmp_path, rows=rows)
    assert_same(open_run(folder / f"{name} {split} {rows}"), open_run(tmp_path))


def test_under_ddp_one_process_measures_what_one_alone_would(folder, tmp_path):
    model = network()
    trained(model, optimizer_of(model, "AdamW", "neuron"), tmp_path)
    assert_same(open_run(folder / "ddp"), open_run(tmp_path))


def test_tensor_parallel_layers_are_measured_as_in_one_process(folder, tmp_path):
    model = parallel_network()
    trained(model, optimizer_of(model, "AdamW", "neuron"), tmp_path)
    assert_same(open_run(folder / "tp"), open_run(tmp_path))


def test_a_sample_of_all_layers_takes_one_collective_and_a_step_between_samples_none(folder):
    assert torch.load(folder / "collectives.pt") == [1, 0, 1, 0, 1]


def test_a_process_that_dies_leaves_a_run_that_can_be_read(folder):
    run = open_run(folder / "died")
    assert run.status == "failed"
    assert run.steps.tolist() == [0, 2]
    assert np.isfinite(run.series("0.weight", "angular_update")).all()


def test_a_process_that_ends_its_run_leaves_no_other_waiting(folder):
    run = open_run(folder / "closed early")
    assert run.status == "finished"
    assert run.steps.tolist() == [0, 1, 2]


def test_a_process_that_cannot_measure_leaves_no_other_waiting(folder):
    run = open_run(folder / "alone")
    assert run.status == "finished"
    assert run.series("0.weight", "entries").tolist() == [12, 12, 12], "3 of 6 rows: the other half was not told"
