"""Several processes train as one does: DDP, FSDP2, tensor parallelism; another number of them loads a checkpoint.

All of it happens in one spawn of three processes, for importing torch takes longer than training: two of them train and
save, all three load.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import gyroscope as gyro
from gyroscope import optim
from gyroscope.geometry import Split
from gyroscope.optim._engine.compiled import PROGRAMS
from tests.optim.catalogue import CATALOGUE
from tests.processes import run_processes

pytestmark = pytest.mark.distributed

STEPS, MORE, WORLD = 20, 3, 3
# Variants of a row differ in numbers, not in how they go over processes.
VARIANTS = (
    "RotationalSGD-nesterov",
    "SphericalAdam-star",
    "RotationalAdamW-free",
    "RotationalSGD-settling",
    "RotationalLion-settling",
)
ROWS = {row.name: row for row in CATALOGUE if row.name not in VARIANTS}
every_row = pytest.mark.parametrize("name", ROWS)
# Entry by entry: there is nothing to sum.
ENTRYWISE = ("KAdam", "Lion")
SPLITS = {
    "neurons": {"granularity": "neuron"},
    "columns": {"granularity": "neuron", "axis": 1},
    "heads": {"granularity": "group", "group_size": 3},
    "experts": {"granularity": "neuron", "axis": (0, 1)},
    "cut": {"granularity": "neuron", "axis": (0, 1)},
    "whole": {"granularity": "tensor"},
    "gain": {"granularity": "none"},
}


class EverySplit(nn.Module):
    """One weight for each way to split a tensor; over two processes none of them is cut at its vectors' ends.

    `whole` has one row, so that one process has nothing of it, and `experts` are 2 + 1; `cut` is cut by outputs.
    """

    def __init__(self) -> None:
        super().__init__()
        shapes = ((5, 4), (9, 5), (9, 9), (3, 6, 9), (2, 4, 6), (1, 4), (4,))
        for name, shape in zip(SPLITS, shapes, strict=True):
            # Small, so that no rounding decides: a row of 4 whose gradients have one sign has hardly a direction.
            self.register_parameter(name, nn.Parameter(0.3 * torch.randn(shape)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x @ self.neurons.T).tanh() @ self.columns.T
        x = (x.tanh() @ self.heads.T).tanh()
        x = torch.einsum("bi,eoi->bo", x, self.experts).tanh()
        x = torch.einsum("bi,eoi->bo", x, self.cut).tanh()
        return (x * self.gain) @ self.whole.T


class Experts(nn.Module):
    """Three experts [experts, outputs, inputs], of which two processes have two and one."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(0.3 * torch.randn(3, 5, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bi,eoi->bo", x, self.experts)


def network(kind: str) -> nn.Module:
    """Rows that two processes share evenly (6), unevenly (9) and not at all (1); or every split; or experts."""
    torch.manual_seed(0)
    if kind == "splits":
        return EverySplit().double()
    if kind == "experts":
        return Experts().double()
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 9), nn.LayerNorm(9), nn.Linear(9, 1)).double()


def optimizer_of(model: nn.Module, name: str) -> torch.optim.Optimizer:
    splits = SPLITS if isinstance(model, EverySplit | Experts) else {}
    groups = [{"params": [p], **splits.get(key, {})} for key, p in model.named_parameters()]
    optimizer: Any = ROWS[name].make(groups)
    if name == "RotationalAdamW":
        # Values per vector, of which each process has to take its own.
        first = groups[0]["params"][0]
        optimizer.angle_factors = {first: torch.linspace(0.5, 3.0, Split.of(groups[0]).num_vectors(first.shape))}
    return optimizer


def trained(
    model: nn.Module, optimizer: torch.optim.Optimizer, start: int, steps: int, rank: int = 0, world: int = 1
) -> list[int]:
    """Train from step `start` on each process's share of the batches; collectives of the first and the last step."""
    counts = []
    for step in range(start, start + steps):
        # With seeds from 0 on a gradient nearly cancels, and Adam divides by √v, which amplifies the order of sums.
        x = torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(100 + step))
        optimizer.zero_grad()
        model(x[rank::world]).sin().mean().backward()
        if step in (start, start + steps - 1):
            with CommDebugMode() as communication:
                optimizer.step()
            counts.append(communication.get_total_counts())
        else:
            optimizer.step()
    return counts


@cache
def alone(name: str, kind: str, steps: int = STEPS) -> list[torch.Tensor]:
    """The weights after so many steps of one process."""
    model = network(kind)
    trained(model, optimizer_of(model, name), 0, steps)
    return [p.detach() for p in model.parameters()]


def whole_weights(model: nn.Module) -> list[torch.Tensor]:
    shards: list[Any] = list(model.parameters())
    return [(p.full_tensor() if hasattr(p, "placements") else p).detach().clone() for p in shards]


# What the processes do


def under_ddp(name: str, rank: int, mesh: DeviceMesh) -> tuple[nn.Module, list[int]]:
    model = network("rows")
    parallel = DistributedDataParallel(model, process_group=mesh.get_group())
    return model, trained(parallel, optimizer_of(model, name), 0, STEPS, rank, 2)


def under_fsdp(name: str, rank: int, mesh: DeviceMesh) -> tuple[nn.Module, list[int]]:
    model = network("rows")
    fully_shard(model, mesh=mesh)
    return model, trained(model, optimizer_of(model, name), 0, STEPS, rank, 2)


def with_offloaded_state(name: str, rank: int, mesh: DeviceMesh) -> tuple[nn.Module, list[int]]:
    model = network("rows")
    fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    return model, trained(model, optimizer_of(model, name), 0, MORE, rank, 2)


def with_experts(name: str, rank: int, mesh: DeviceMesh) -> tuple[nn.Module, list[int]]:
    model = network("experts")
    fully_shard(model, mesh=mesh)
    return model, trained(model, optimizer_of(model, name), 0, STEPS, rank, 2)


def compiled_experts(rank: int, mesh: DeviceMesh) -> tuple[list[torch.Tensor], int]:
    """The weights after compiled steps, and how many programs were compiled for them."""
    model = network("experts")
    fully_shard(model, mesh=mesh)
    before = len(PROGRAMS)
    optimizer = optim.RotationalAdamW([{"params": list(model.parameters()), **SPLITS["experts"]}], compile=True)
    trained(model, optimizer, 0, MORE, rank, 2)
    return whole_weights(model), len(PROGRAMS) - before


def under_tensor_parallelism(name: str, rank: int, mesh: DeviceMesh) -> tuple[nn.Module, list[int]]:
    model = network("rows")
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model, trained(model, optimizer_of(model, name), 0, STEPS)


def under_both(name: str, rank: int, mesh: DeviceMesh) -> tuple[nn.Module, list[int]]:
    """FSDP2 over tensor parallelism: a mesh of two dimensions, the first of them of size 1."""
    model = network("rows")
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for part in ("0", "2"):
        fully_shard(model.get_submodule(part), mesh=mesh["dp"])
    return model, trained(model, optimizer_of(model, name), 0, STEPS)


def by_splits(name: str, rank: int, mesh: DeviceMesh) -> tuple[nn.Module, list[int], torch.optim.Optimizer]:
    model = network("splits")
    fully_shard(model, mesh=mesh, shard_placement_fn=lambda p: Shard(1) if p is model.cut else None)
    optimizer = optimizer_of(model, name)
    return model, trained(model, optimizer, 0, STEPS, rank, 2), optimizer


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}


def resumed(folder: Path, rank: int = 0, world: int = 1) -> dict[str, list[torch.Tensor]]:
    """The checkpoint of two processes, loaded and continued by as many as there are; the weights by optimizer."""
    pairs = {}
    states = {}
    for name in ROWS:
        model = network("splits")
        if world > 1:
            fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
        optimizer = optimizer_of(model, name)
        before = whole_weights(model)
        # Of a fresh optimizer torch takes a step at lr = 0 here, to see its state.
        states[name] = state_of(model, optimizer)
        assert all(map(torch.equal, before, whole_weights(model))), f"{name}: that step has changed weights"
        assert set(states[name]["optimizer"]["state"]) == set(SPLITS), f"{name}: state not keyed by names"
        pairs[name] = (model, optimizer)
    load(states, checkpoint_id=folder / "checkpoint", no_dist=world == 1)
    weights = {}
    for name, (model, optimizer) in pairs.items():
        keys = [set(values) for values in optimizer.state.values()]
        set_model_state_dict(model, states[name]["model"])
        set_optimizer_state_dict(model, optimizer, states[name]["optimizer"])
        trained(model, optimizer, STEPS, MORE, rank, world)
        assert [set(values) for values in optimizer.state.values()] == keys, f"{name}: later steps have other keys"
        weights[name] = whole_weights(model)
    return weights


def from_summands(name: str, rank: int, mesh: DeviceMesh) -> list[torch.Tensor]:
    """A weight that both processes hold; each has a summand of its gradients, as sequence parallelism leaves them."""
    weight = torch.arange(1.0, 13.0, dtype=torch.float64).view(3, 4).sin()
    p = nn.Parameter(distribute_tensor(weight.clone(), mesh, [Replicate()]))
    optimizer = ROWS[name].make([p])
    for step in range(MORE):
        p.grad = DTensor.from_local((rank + 1) * (weight + step).cos(), mesh, [Partial()])
        optimizer.step()
    return whole_weights(nn.ParameterList([p]))


def refused(mesh: DeviceMesh, original: bool) -> list[str]:
    """What is said to FSDP1, whose parameters are flat pieces of several weights."""
    model = FullyShardedDataParallel(
        network("rows"), process_group=mesh.get_group(), device_id=torch.device("cpu"), use_orig_params=original
    )
    calls = {
        "an optimizer": lambda: optim.RotationalAdamW(model.parameters()),
        "the wrapper": lambda: optim.Rotational(torch.optim.AdamW(model.parameters())),
        "param_groups": lambda: gyro.param_groups(model, weight_decay=0.1),
        "the tracker": lambda: gyro.Tracker(model, torch.optim.AdamW(model.parameters()), "not written"),
    }
    messages = []
    for call in calls.values():
        with pytest.raises(ValueError, match="FSDP1") as caught:
            call()
        messages.append(str(caught.value))
    return messages


def worker(rank: int, ports: list[int], folder: Path) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(ports[0]))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    pair = DeviceMesh("cpu", [0, 1])
    both = DeviceMesh("cpu", [[0, 1]], mesh_dim_names=("dp", "tp"))
    if rank < 2:
        states = {}
        for name in ROWS:
            kept = {}
            for way in (under_ddp, under_fsdp, under_tensor_parallelism, with_offloaded_state, with_experts):
                model, counts = way(name, rank, pair)
                kept[way.__name__] = (whole_weights(model), counts)
            model, counts, optimizer = by_splits(name, rank, pair)
            kept["by_splits"] = (whole_weights(model), counts)
            kept["from_summands"] = from_summands(name, rank, pair)
            states[name] = state_of(model, optimizer)
            if name == "RotationalAdamW":
                model, counts = under_both(name, rank, both)
                kept["under_both"] = (whole_weights(model), counts)
                kept["compiled_experts"] = compiled_experts(rank, pair)
            if rank == 0:
                torch.save(kept, folder / f"{name}.pt")
        save(states, checkpoint_id=folder / "checkpoint", process_group=pair.get_group())
        messages = [refused(pair, original) for original in (True, False)]
        if rank == 0:
            torch.save(messages, folder / "refused.pt")
    dist.barrier()
    weights = resumed(folder, rank, WORLD)
    if rank == 0:
        torch.save(weights, folder / "on three.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return run_processes(worker, tmp_path_factory.mktemp("distributed"), world=WORLD)


def assert_same(together: list[torch.Tensor], weights: list[torch.Tensor]) -> None:
    for ours, theirs in zip(together, weights, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@every_row
def test_ddp_trains_as_one_process_does_and_the_optimizer_communicates_nothing(name, folder):
    weights, counts = torch.load(folder / f"{name}.pt")["under_ddp"]
    assert_same(weights, alone(name, "rows"))
    assert counts == [0, 0]


@every_row
def test_fsdp2_trains_as_one_process_does_and_whole_neurons_need_no_communication(name, folder):
    weights, counts = torch.load(folder / f"{name}.pt")["under_fsdp"]
    assert_same(weights, alone(name, "rows"))
    # Matrices that rotate as a whole take one reduction for all layers.
    assert counts == ([1, 1] if ROWS[name].whole else [0, 0])


@every_row
def test_experts_cut_between_experts_train_as_one_process_does_and_need_no_communication(name, folder):
    weights, counts = torch.load(folder / f"{name}.pt")["with_experts"]
    assert_same(weights, alone(name, "experts"))
    assert counts == [0, 0]


def test_experts_cut_between_experts_take_compiled_steps(folder):
    weights, programs = torch.load(folder / "RotationalAdamW.pt")["compiled_experts"]
    model = network("experts")
    optimizer = optim.RotationalAdamW([{"params": list(model.parameters()), **SPLITS["experts"]}])
    trained(model, optimizer, 0, MORE)
    assert_same(weights, [p.detach() for p in model.parameters()])
    assert programs == 1


@every_row
def test_vectors_that_no_process_holds_take_one_reduction_for_all_layers(name, folder):
    weights, counts = torch.load(folder / f"{name}.pt")["by_splits"]
    assert_same(weights, alone(name, "splits"))
    assert counts == ([0, 0] if name in ENTRYWISE else [1, 1])


@every_row
def test_tensor_parallel_layers_train_as_one_process_does_with_one_reduction_for_rows_that_are_cut(name, folder):
    weights, counts = torch.load(folder / f"{name}.pt")["under_tensor_parallelism"]
    assert_same(weights, alone(name, "rows"))
    assert counts == ([0, 0] if name in ENTRYWISE else [1, 1])


def test_fsdp2_over_tensor_parallelism_trains_as_one_process_does(folder):
    weights, counts = torch.load(folder / "RotationalAdamW.pt")["under_both"]
    assert_same(weights, alone("RotationalAdamW", "rows"))
    assert counts == [1, 1]


@every_row
def test_gradients_of_which_each_process_has_a_summand_are_summed_first(name, folder):
    weight = torch.arange(1.0, 13.0, dtype=torch.float64).view(3, 4).sin()
    p = nn.Parameter(weight.clone())
    optimizer = ROWS[name].make([p])
    for step in range(MORE):
        p.grad = 3 * (weight + step).cos()  # 1 + 2, of process 0 and of process 1
        optimizer.step()
    assert_same(torch.load(folder / f"{name}.pt")["from_summands"], [p.detach()])


@every_row
def test_state_that_fsdp2_offloads_to_the_cpu_is_stepped_there(name, folder):
    weights, _ = torch.load(folder / f"{name}.pt")["with_offloaded_state"]
    assert_same(weights, alone(name, "rows", MORE))


@pytest.fixture(scope="module")
def in_one_process(folder) -> dict[str, list[torch.Tensor]]:
    with pytest.warns(UserWarning, match="load in a single process"):
        return resumed(folder)


@every_row
def test_a_checkpoint_of_two_processes_goes_on_in_one_and_in_three(name, folder, in_one_process):
    whole = alone(name, "splits", STEPS + MORE)
    assert_same(torch.load(folder / "on three.pt")[name], whole)
    assert_same(in_one_process[name], whole)


def test_flat_parameters_of_fsdp1_are_refused_with_a_sentence_that_names_fsdp2(folder):
    for messages in torch.load(folder / "refused.pt"):
        assert len(messages) == 4
        assert all("fully_shard" in message and "FSDP2" in message for message in messages), messages
