"""Optimizers made of a model, of named parameters, and by name."""

import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope import optim
from tests.optim.catalogue import CATALOGUE


class Conv1D(nn.Module):
    """As Hugging Face's: the weight is (inputs, outputs)."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))


def gpt2():
    torch.manual_seed(0)
    block = nn.ModuleDict(
        {
            "ln_1": nn.LayerNorm(8),
            "attn": nn.ModuleDict({"c_attn": Conv1D(24, 8), "c_proj": Conv1D(8, 8)}),
            "mlp": nn.ModuleDict({"c_fc": Conv1D(32, 8), "c_proj": Conv1D(8, 32)}),
        }
    )
    return nn.ModuleDict({"wte": nn.Embedding(50, 8), "wpe": nn.Embedding(16, 8), "h": nn.ModuleList([block])})


def vision():
    return nn.ModuleDict(
        {
            "stem": nn.Conv2d(3, 8, 3),
            "bn1": nn.BatchNorm2d(8),
            "conv": nn.Conv1d(4, 6, 3),
            "up": nn.ConvTranspose2d(8, 4, 2),
            "attention": nn.MultiheadAttention(8, 2),
            "head": nn.Linear(8, 10),
        }
    )


def decisions(optimizer):
    found = {}
    for group in optimizer.param_groups:
        turns = group["granularity"] != "none"
        for name in group["param_names"]:
            found[name] = (group["granularity"], group["axis"] if turns else 0, group["weight_decay"])
    return found


@pytest.mark.parametrize("make", [gpt2, vision])
def test_a_model_and_its_named_parameters_are_sorted_alike(make):
    model = make()
    by_model = decisions(optim.RotationalAdamW(model, weight_decay=0.2))
    assert by_model == decisions(optim.RotationalAdamW(model.named_parameters(), weight_decay=0.2))
    assert by_model == decisions(optim.RotationalAdamW(gyro.param_groups(model, weight_decay=0.2)))
    assert len(by_model) == len(list(model.parameters()))


def test_embeddings_do_not_turn_and_conv1d_turns_along_its_outputs():
    model = gpt2()
    optimizer = optim.RotationalAdamW(model, lr=0.01, weight_decay=0.2)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    weight = "h.0.attn.c_attn.weight"
    after = dict(model.named_parameters())
    torch.testing.assert_close(after[weight].detach().norm(dim=0), before[weight].norm(dim=0))
    assert not torch.allclose(after[weight].detach().norm(dim=1), before[weight].norm(dim=1), rtol=1e-4)
    assert not torch.allclose(after["wte.weight"].detach().norm(dim=1), before["wte.weight"].norm(dim=1), rtol=1e-4)
    assert decisions(optimizer)["wte.weight"] == ("none", 0, 0.0)


def test_a_granularity_is_that_of_what_turns():
    found = decisions(optim.RotationalAdamW(gpt2().named_parameters(), granularity="tensor"))
    assert {granularity for granularity, _, _ in found.values()} == {"tensor", "none"}
    assert found["wte.weight"][0] == "none"


@pytest.mark.parametrize("name", optim.names())
def test_every_name_makes_its_class_of_a_model_and_steps(name):
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4), nn.LayerNorm(4))
    optimizer = optim.create(name, model, lr=1e-3)
    assert type(optimizer).__name__.lower() == name.replace("-", "")
    turning = [
        name for group in optimizer.param_groups if group["granularity"] != "none" for name in group["param_names"]
    ]
    assert turning == ["1.weight"]
    model(torch.tensor([1, 2])).square().sum().backward()
    optimizer.step()


def test_every_class_has_a_name():
    classes = {type(row.make([torch.nn.Parameter(torch.randn(4, 4))])).__name__ for row in CATALOGUE}
    assert {name.lower() for name in classes - {"Rotational"}} == {name.replace("-", "") for name in optim.names()}


def test_a_name_that_there_is_not_is_answered_by_the_nearest():
    with pytest.raises(ValueError, match="unknown optimizer 'rotational-adam': did you mean 'rotational-adamw'"):
        optim.create("rotational-adam", nn.Linear(2, 2))


def test_the_tracker_says_what_turns_that_should_not(tmp_path):
    model = gpt2()
    bare = optim.RotationalAdamW(model.parameters())
    said = r"RotationalAdamW was made from bare tensors and rotates what it should not: wte.weight \(weight of Emb"
    with pytest.warns(RuntimeWarning, match=said + r".* and 3 more. Make it from the model, RotationalAdamW\(model"):
        gyro.Tracker(model, bare, tmp_path / "bare").close()
    assert any("wte.weight" in note for note in gyro.store.open_run(tmp_path / "bare").notes)
    gyro.Tracker(model, optim.RotationalAdamW(model), tmp_path / "sorted").close()
    assert gyro.store.open_run(tmp_path / "sorted").notes == []
