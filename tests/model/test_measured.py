"""What a tracker measures by default and on request: parts of fused weights, embeddings, and nothing twice."""

import re

import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope.geometry import Split
from gyroscope.model.measured import MOST_TOKENS, measured_layers
from tests.model.zoo import Conv1D, tied, untied


def names(model, params=None, **options):
    adamw = torch.optim.AdamW(params or model.parameters(), weight_decay=0.1)
    return [layer.name for layer in measured_layers(model, adamw, **options)]


FUSED = {
    "timm": (lambda: nn.ModuleDict({"qkv": nn.Linear(4, 12)}), "qkv.weight"),
    "GPT-2": (lambda: nn.ModuleDict({"c_attn": Conv1D(12, 4)}), "c_attn.weight"),
    "torch": (lambda: nn.ModuleDict({"attn": nn.MultiheadAttention(4, 2)}), "attn.in_proj_weight"),
    "torch, alone": (lambda: nn.MultiheadAttention(4, 2), "in_proj_weight"),
    "with a gain": (
        lambda: nn.ModuleDict({"qkv": gyro.nn.add_gain(nn.Linear(4, 12))}),
        "qkv.parametrizations.weight.original",
    ),
}


@pytest.mark.parametrize("kind", FUSED)
def test_queries_keys_and_values_of_known_layers_are_three(kind):
    make, name = FUSED[kind]
    model = make()
    layers = [layer for layer in measured_layers(model, torch.optim.AdamW(model.parameters())) if "[" in layer.name]
    assert [(layer.name, layer.start, layer.stop) for layer in layers] == [
        (f"{name}[q]", 0, 4),
        (f"{name}[k]", 4, 8),
        (f"{name}[v]", 8, 12),
    ]
    assert f"{name}[q]" not in names(model, parts={})
    assert name in names(model, parts={})


def test_what_is_not_in_thirds_stays_whole():
    """Keys shared by queries, heads that alternate, a convolution, and a name that only ends alike."""
    layers = {"qkv": nn.Linear(4, 8), "query_key_value": nn.Linear(4, 12), "not_attn": nn.Linear(4, 12)}
    convolution = nn.ModuleDict({"qkv": nn.Conv1d(4, 12, 1)})
    assert names(nn.ModuleDict(layers)) == [f"{name}.weight" for name in layers]
    assert names(convolution) == ["qkv.weight"]


def test_parts_on_request():
    model = nn.ModuleDict({"gate_up": nn.Linear(4, 6), "qkv": nn.Linear(4, 12)})
    parts = {"gate_up": ("gate", "up"), "qkv": ["q", "k", "v"]}
    expected = [f"gate_up.weight[{part}]" for part in ("gate", "up")] + [f"qkv.weight[{part}]" for part in "qkv"]
    assert names(model, parts=parts) == expected
    assert names(model, parts={"gate_up": ("gate", "up")}) == [*expected[:2], "qkv.weight"]
    with pytest.raises(ValueError, match=r"'gate_up.weight' has 6 vectors, which are not 4 equal parts"):
        names(model, parts={"gate_up": tuple("abcd")})
    for wrong in ("q", (), ("q",), ("q", "q")):
        with pytest.raises(ValueError, match=r"parts\['gate_up'\]=.* must be two or more names"):
            names(model, parts={"gate_up": wrong})


def test_groups_of_neurons_are_shared_out_and_a_whole_matrix_is_not():
    model = nn.ModuleDict({"qkv": nn.Linear(4, 12, bias=False)})
    for group_size, expected in ((2, [(0, 2), (2, 4), (4, 6)]), (12, [(0, 1)])):
        group = {"params": list(model.parameters()), "granularity": "group", "group_size": group_size}
        layers = measured_layers(model, gyro.optim.RotationalAdamW([group]))
        assert [(layer.start, layer.stop) for layer in layers] == expected
    muon = torch.optim.Muon(model.parameters(), weight_decay=0.1)
    assert [layer.name for layer in measured_layers(model, muon)] == ["qkv.weight"]


@pytest.mark.parametrize("make", [tied, untied])
def test_embeddings_that_decay_are_measured_token_by_token(make):
    model = make()
    layers = {
        layer.name: layer for layer in measured_layers(model, torch.optim.AdamW(model.parameters(), weight_decay=0.1))
    }
    assert list(layers) == [name for name, p in model.named_parameters() if p.dim() > 1]
    table = layers["wte.weight"]
    assert (table.split, table.vector, table.stop, table.at_most) == (Split(), "token", 7, MOST_TOKENS)
    assert {layer.vector for name, layer in layers.items() if name != "wte.weight"} == {"neuron"}


def test_embeddings_that_do_not_decay_are_measured_on_request_only():
    model = untied()
    groups = gyro.param_groups(model, weight_decay=0.1)
    assert names(model, groups) == ["mix.weight", "head.weight"]
    assert names(model, groups, layers=re.compile("wte")) == ["wte.weight"]


def test_an_embedding_that_the_optimizer_turns_is_measured_as_it_turns():
    model = untied()
    table = measured_layers(model, gyro.optim.RotationalAdamW(model.parameters()))[0]
    assert (table.name, table.split, table.vector) == ("wte.weight", Split(), "token")


def test_positions_and_class_tokens_are_no_tables():
    class Embeddings(nn.Module):
        def __init__(self):
            super().__init__()
            self.cls_token = nn.Parameter(torch.randn(1, 1, 4))
            self.positions = nn.Parameter(torch.randn(1, 5, 4))
            self.project = nn.Conv2d(3, 4, 2)

    assert names(Embeddings()) == ["project.weight"]
