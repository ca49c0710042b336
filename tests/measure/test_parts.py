"""Fused weights are measured part by part, and embeddings token by token: the same numbers as of the vectors alone."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gyroscope as gyro
from gyroscope.geometry import Split
from gyroscope.model.measured import MOST_TOKENS
from tests.model.zoo import Conv1D

OPTIMIZERS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    "AdamS": lambda p: gyro.optim.AdamS(p, lr=1e-2, weight_decay=0.1),
    "RotationalAdamW": lambda p: gyro.optim.RotationalAdamW(p, lr=1e-2, weight_decay=0.1),
}


@pytest.fixture(scope="module", autouse=True)
def process_group(tmp_path_factory):
    """One process on gloo, for FSDP2."""
    store = tmp_path_factory.mktemp("gloo") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def whole(p):
    p = p.detach()
    return (p.full_tensor() if hasattr(p, "full_tensor") else p).clone()


def fused(make):
    """A layer of four queries, keys and values, each with a norm of its own."""
    torch.manual_seed(0)
    layer = make()
    with torch.no_grad():
        sizes = torch.linspace(0.5, 2.0, 12)
        layer.weight.mul_(sizes[:, None] if isinstance(layer, nn.Linear) else sizes)
    return nn.ModuleDict({"c_attn": layer})


def measured(model, optimizer, path, **options):
    """The run of three steps, and the weight before and after the last of them."""
    layer = model["c_attn"]
    with gyro.Tracker(model, optimizer, path, every=1, **options) as tracker:
        for step in range(3):
            torch.manual_seed(step)
            optimizer.zero_grad()
            layer(torch.randn(16, 4)).sin().sum().backward()
            before = whole(layer.weight)
            optimizer.step()
    return tracker.run, before, whole(layer.weight)


CASES = [(name, lambda: nn.Linear(4, 12), Split()) for name in OPTIMIZERS]
CASES.append(("AdamW", lambda: Conv1D(12, 4), Split(axis=1)))


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("rows", [None, 2])
@pytest.mark.parametrize(("name", "make", "split"), CASES)
def test_each_part_has_the_numbers_of_its_vectors(name, make, split, rows, sharded, tmp_path):
    model = fused(make)
    if sharded:
        fully_shard(model["c_attn"], mesh=init_device_mesh("cpu", (1,)))
    run, before, after = measured(model, OPTIMIZERS[name](model.parameters()), tmp_path, rows=rows)
    assert run.layers == [f"c_attn.weight[{part}]" for part in "qkv"]
    chosen = [0, 1, 2, 3] if rows is None else [0, 2]
    angles = split.angle(before.double(), after.double()).view(3, 4)[:, chosen]
    norms = split.norm(after.double()).view(3, 4)[:, chosen]
    for part, layer in enumerate(run.layers):
        info = run.layer(layer)
        assert (info.vectors, info.fan_in, info.rows) == (4, 4, None if rows is None else (0, 2))
        for stat in ("mean", "min", "max"):
            expected = getattr(angles[part], stat)()
            assert run.series(layer, "angular_update", stat)[-1] == pytest.approx(float(expected), rel=1e-4)
        assert run.series(layer, "norm")[-1] == pytest.approx(float(norms[part].mean()), rel=1e-4)


def test_a_weight_is_whole_or_has_other_parts_on_request(tmp_path):
    model = fused(lambda: nn.Linear(4, 12))
    adamw = OPTIMIZERS["AdamW"](model.parameters())
    assert measured(model, adamw, tmp_path / "whole", parts={})[0].layers == ["c_attn.weight"]
    halves = measured(model, adamw, tmp_path / "halves", parts={"c_attn": ("gate", "up")})[0]
    assert halves.layers == ["c_attn.weight[gate]", "c_attn.weight[up]"]
    assert halves.layer("c_attn.weight[up]").vectors == 6


def test_raw_values_of_a_part_are_those_of_its_vectors(tmp_path):
    model = fused(lambda: nn.Linear(4, 12))
    run, before, after = measured(model, OPTIMIZERS["AdamW"](model.parameters()), tmp_path, raw=r"\[v\]")
    angles = Split().angle(before.double(), after.double())[8:]
    np.testing.assert_allclose(run.raw("c_attn.weight[v]", "angular_update")[-1], angles, rtol=1e-4)
    ends = (int(angles.argmin()), int(angles.argmax()))
    assert tuple(run.extremes("c_attn.weight[v]", "angular_update")) == ends


def test_tokens_of_a_large_embedding_are_a_sample(tmp_path):
    model = nn.Sequential(nn.Embedding(3 * MOST_TOKENS, 4), nn.Linear(4, 3))
    with gyro.Tracker(model, OPTIMIZERS["AdamW"](model.parameters()), tmp_path) as tracker:
        info = tracker.run.layer("0.weight")
    assert (info.granularity, info.vectors, len(info.rows)) == ("token", 3 * MOST_TOKENS, MOST_TOKENS)
    assert info.rows[:3] == (0, 3, 6)
