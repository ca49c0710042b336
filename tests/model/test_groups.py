import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from gyroscope.model.groups import param_groups
from gyroscope.model.parameters import clean_name
from gyroscope.model.selection import Invariance
from gyroscope.nn import add_gain, standardise
from tests.model.zoo import Conv1D, Experts, parameter_names, tied
from tests.needs import needs_muon


class RMSNorm2d(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 3, 3))


class ViTEmbeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.position_embeddings = nn.Parameter(torch.zeros(1, 5, 4))


class Custom(nn.Module):
    """A layer of unknown type: a matrix, a vector, a number, and a gain and positions written to broadcast."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(3, 4))
        self.vector = nn.Parameter(torch.randn(4))
        self.number = nn.Parameter(torch.tensor(1.0))
        self.gamma = nn.Parameter(torch.ones(4, 1, 1))
        self.positions = nn.Parameter(torch.zeros(1, 5, 4))


def tied_linears():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return model


# Name, model, and what rotates: name -> (granularity, axis, group_size).
NEURON, COLUMN, EXPERTS = ("neuron", 0, 1), ("neuron", 1, 1), ("neuron", (0, 1), 1)
ZOO = {
    "mlp": (nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)), {"0.weight": NEURON, "2.weight": NEURON}),
    "one input": (nn.Sequential(nn.Linear(1, 5), nn.Linear(5, 1)), {"1.weight": NEURON}),
    "conv + batch norm": (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv1d(4, 4, 3, groups=4), nn.Conv3d(2, 2, 2)),
        {"0.weight": NEURON, "2.weight": NEURON, "3.weight": NEURON},
    ),
    "depthwise 1×1 is a gain": (nn.Conv2d(8, 8, 1, groups=8), {}),
    "transposed": (
        nn.Sequential(nn.ConvTranspose1d(4, 3, 2), nn.ConvTranspose2d(4, 3, 2), nn.ConvTranspose3d(4, 1, 2)),
        {"0.weight": COLUMN, "1.weight": COLUMN, "2.weight": COLUMN},
    ),
    "transposed, depthwise": (nn.ConvTranspose2d(4, 4, 3, groups=4), {"weight": NEURON}),
    "transposed, grouped": (nn.ConvTranspose2d(4, 6, 3, groups=2), {"weight": ("group", 0, 2)}),
    "attention": (
        nn.MultiheadAttention(8, 2, add_bias_kv=True),
        {"in_proj_weight": NEURON, "out_proj.weight": NEURON},
    ),
    "attention with other keys": (
        nn.MultiheadAttention(8, 2, kdim=4, vdim=6),
        {"q_proj_weight": NEURON, "k_proj_weight": NEURON, "v_proj_weight": NEURON, "out_proj.weight": NEURON},
    ),
    "recurrent": (nn.LSTM(4, 3), {"weight_ih_l0": NEURON, "weight_hh_l0": NEURON}),
    "Hugging Face's Conv1D": (Conv1D(6, 4), {"weight": COLUMN}),
    "norms of two dimensions": (nn.Sequential(nn.LayerNorm((4, 4)), RMSNorm2d(), nn.GroupNorm(2, 4)), {}),
    "embeddings": (nn.Sequential(nn.Embedding(9, 4), nn.EmbeddingBag(9, 4), ViTEmbeddings()), {}),
    "unknown": (Custom(), {"matrix": NEURON}),
    "tied to an embedding": (tied(), {"mix.weight": NEURON}),
    "tied to its like": (tied_linears(), {"0.weight": NEURON}),
    "experts": (Experts(), {"up_proj": EXPERTS, "w2": EXPERTS, "router": NEURON}),
    "frozen": (nn.Linear(4, 4).requires_grad_(False), {"weight": NEURON}),
    "weight norm": (
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
        {"parametrizations.weight.original1": NEURON},
    ),
    "weight norm, transposed": (
        nn.utils.parametrizations.weight_norm(nn.ConvTranspose2d(4, 3, 3)),
        {"parametrizations.weight.original1": COLUMN},
    ),
    "spectral norm": (
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)),
        {"parametrizations.weight.original": NEURON},
    ),
    "gain": (add_gain(nn.ConvTranspose2d(4, 3, 3)), {"parametrizations.weight.original": COLUMN}),
    "gain per tensor": (add_gain(nn.Linear(4, 3), "tensor"), {"parametrizations.weight.original": NEURON}),
    "gain on standardised attention": (
        add_gain(standardise(nn.MultiheadAttention(4, 2))),
        {"parametrizations.in_proj_weight.original": NEURON, "out_proj.parametrizations.weight.original": NEURON},
    ),
    "compiled": (torch.compile(nn.Sequential(nn.Linear(4, 3)), backend="eager"), {"0.weight": NEURON}),
    "data parallel": (nn.DataParallel(nn.Sequential(nn.Linear(4, 3))), {"0.weight": NEURON}),
}


def sorted_by(groups):
    return {
        name: (group["granularity"], group["axis"], group["group_size"], group["weight_decay"])
        for group in groups
        for name in group["param_names"]
    }


@pytest.mark.parametrize("name", ZOO)
def test_what_is_a_weight_rotates_and_decays_and_nothing_else_does(name):
    model, rotates = ZOO[name]
    found = sorted_by(param_groups(model, weight_decay=0.1))
    assert {name: split[:3] for name, split in found.items() if split[0] != "none"} == rotates
    assert all(split[3] == (0.1 if name in rotates else 0.0) for name, split in found.items())


@pytest.mark.parametrize("name", ZOO)
def test_every_parameter_lands_in_exactly_one_group_under_its_name(name):
    model, _ = ZOO[name]
    groups = param_groups(model, weight_decay=0.1)
    placed = [p for group in groups for p in group["params"]]
    assert {id(p) for p in placed} == {id(p) for p in model.parameters()}
    assert len(placed) == len({id(p) for p in placed})
    for group in groups:
        names = [parameter_names(model)[p] for p in group["params"]]
        assert group["param_names"] == names
    options = [tuple((key, group[key]) for key in group if key not in ("params", "param_names")) for group in groups]
    assert len(options) == len(set(options)) <= 3


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD])
def test_any_optimizer_of_torch_takes_the_groups_and_saves_them(name, make):
    model, _ = ZOO[name]
    optimizer = make(param_groups(model, weight_decay=0.1), lr=1e-3)
    optimizer.step()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert all(group["lr"] == 1e-3 and "granularity" in group for group in optimizer.param_groups)


@needs_muon
def test_muon_takes_the_matrices_that_rotate():
    groups = param_groups(ZOO["mlp"][0], weight_decay=0.1)
    muon = torch.optim.Muon([group for group in groups if group["granularity"] != "none"])
    muon.step()
    assert all(p.dim() == 2 for group in muon.param_groups for p in group["params"])


def test_whole_tensors_or_nothing_may_rotate_and_decay_stays():
    model = nn.Sequential(nn.ConvTranspose2d(4, 3, 2), nn.Linear(3, 2), nn.LayerNorm(2))
    for granularity in ("tensor", "none"):
        groups = param_groups(model, weight_decay=0.1, granularity=granularity)
        assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
        assert groups[0]["param_names"] == ["0.weight", "1.weight"]
        assert {group["granularity"] for group in groups} == {granularity, "none"}
    with pytest.raises(ValueError, match=r"granularity='row' must be 'neuron', 'tensor' or 'none'"):
        param_groups(model, weight_decay=0.1, granularity="row")
    with pytest.raises(ValueError, match=r"granularity='group'.*group_size"):
        param_groups(model, weight_decay=0.1, granularity="group")


def transformer():
    return nn.ModuleDict({"wte": nn.Embedding(7, 8), "qk": nn.Linear(8, 8), "head": nn.Linear(8, 7)})


def test_overrides_are_a_granularity_a_dict_or_none():
    overrides = {
        "wte": "neuron",
        r"^qk\.weight$": {"granularity": "group", "group_size": 4, "lr": 1e-4},
        "head": None,
    }
    found = sorted_by(groups := param_groups(transformer(), weight_decay=0.1, overrides=overrides))
    assert found == {
        "wte.weight": ("neuron", 0, 1, 0.1),
        "qk.weight": ("group", 0, 4, 0.1),
        "qk.bias": ("none", 0, 1, 0.0),
        "head.weight": ("none", 0, 1, 0.0),
        "head.bias": ("none", 0, 1, 0.0),
    }
    assert [group["lr"] for group in groups if "lr" in group] == [1e-4]


def test_an_override_by_name_changes_rotation_and_not_the_decay_of_a_weight():
    found = sorted_by(param_groups(transformer(), weight_decay=0.1, overrides={"head.weight": "none", "bias": "none"}))
    assert found["head.weight"] == ("none", 0, 1, 0.1)
    assert found["head.bias"] == ("none", 0, 1, 0.0)
    decay = sorted_by(param_groups(transformer(), weight_decay=0.1, overrides={"bias": {"weight_decay": 0.2}}))
    assert decay["qk.bias"] == ("none", 0, 1, 0.2)


def test_the_last_override_wins_and_keeps_what_it_does_not_name():
    overrides = {".": "tensor", "0": {"granularity": "neuron", "lr": 0.5}, "0.weight": {"weight_decay": 0.3}}
    found = param_groups(nn.Sequential(nn.ConvTranspose2d(4, 3, 2, bias=False)), weight_decay=0.1, overrides=overrides)
    assert sorted_by(found) == {"0.weight": ("neuron", 1, 1, 0.3)}
    assert found[0]["lr"] == 0.5


def test_a_tied_weight_answers_to_all_its_names():
    found = sorted_by(param_groups(tied(), weight_decay=0.1, overrides={"head": "neuron"}))
    assert found["wte.weight"] == ("neuron", 0, 1, 0.1)


def test_vectors_of_one_entry_do_not_rotate_even_on_request():
    groups = param_groups(nn.Linear(4, 3), weight_decay=0.1, overrides={"bias": "neuron"})
    assert sorted_by(groups)["bias"] == ("none", 0, 1, 0.0)
    assert "no direction to rotate" in groups.describe()


def test_an_override_that_matches_nothing_is_quoted_beside_near_names():
    with pytest.raises(ValueError, match=r"overrides\['qk\.wieght'\] matches no parameter: did you mean 'qk\.weight'"):
        param_groups(transformer(), weight_decay=0.1, overrides={"qk.wieght": None})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"(": None}, r"overrides\['\('\] is not a regular expression"),
        ({"qk": 3}, r"overrides\['qk'\]=3 must be a granularity, a dict of options, or None"),
        ({"qk.weight": "row"}, r"override 'qk.weight' does not fit 'qk\.weight' of shape \(8, 8\).*row"),
        ({"qk.weight": {"axis": 2}}, r"override 'qk.weight' does not fit 'qk\.weight' of shape \(8, 8\)"),
        ({"qk.weight": {"granularity": "group", "group_size": 3}}, r"override 'qk.weight' does not fit 'qk\.weight'"),
    ],
)
def test_an_override_that_makes_no_sense_is_quoted(override, message):
    with pytest.raises(ValueError, match=message):
        param_groups(transformer(), weight_decay=0.1, overrides=override)


def test_a_negative_decay_is_refused():
    with pytest.raises(ValueError, match=r"weight_decay=-0\.1"):
        param_groups(transformer(), weight_decay=-0.1)


def test_a_probe_replaces_the_default_by_type_and_an_override_replaces_the_probe():
    probe = {
        "wte.weight": Invariance("neuron", centred=True),
        "qk.weight": Invariance("group", 0, 4),
        "head.weight": Invariance("none"),
    }
    groups = param_groups(transformer(), weight_decay=0.1, probe=probe, overrides={"qk.weight": "tensor"})
    assert sorted_by(groups) == {
        "wte.weight": ("neuron", 0, 1, 0.1),
        "qk.weight": ("tensor", 0, 1, 0.1),
        "head.weight": ("none", 0, 1, 0.1),  # a weight without invariance still decays
        "qk.bias": ("none", 0, 1, 0.0),
        "head.bias": ("none", 0, 1, 0.0),
    }
    assert {name: group.get("centre") for group in groups for name in group["param_names"]} == {
        "wte.weight": True,
        "qk.weight": False,
        "head.weight": None,
        "qk.bias": None,
        "head.bias": None,
    }


def test_a_probe_of_another_model_is_an_error():
    with pytest.raises(ValueError, match=r"the probe has 'qkv\.weight'.*probe this model.*qk\.weight"):
        param_groups(transformer(), weight_decay=0.1, probe={"qkv.weight": Invariance("neuron")})


def test_the_description_has_a_line_per_parameter_also_after_an_optimizer_took_the_groups():
    model = tied()
    model["mix"].bias.requires_grad_(False)
    groups = param_groups(model, weight_decay=0.1, overrides={"mix.weight": {"lr": 0.5}})
    before = groups.describe()
    torch.optim.AdamW(groups)
    assert len(groups.describe().splitlines()) == len(before.splitlines()) == 4
    assert "betas" not in groups.describe()
    lines = {line.split()[1]: line for line in before.splitlines()[1:]}
    assert set(lines) == {"wte.weight", "mix.weight", "mix.bias"}
    assert "4 × neuron of 4, dim 0" in lines["mix.weight"]
    assert "lr=0.5" in lines["mix.weight"]
    assert "override 'mix.weight'" in lines["mix.weight"]
    assert "weight of Embedding, tied to head.weight" in lines["wte.weight"]
    assert "bias of Linear, frozen" in lines["mix.bias"]


def test_wrappers_are_taken_off_names_and_nothing_else_is():
    assert clean_name("module._orig_mod.a.module.weight") == "a.module.weight"
    assert clean_name("a._fsdp_wrapped_module.b._checkpoint_wrapped_module.weight") == "a.b.weight"
    assert clean_name("module") == "module"
    alike = nn.Module()
    alike.module, alike.weight = nn.Linear(2, 2, bias=False), nn.Parameter(torch.ones(2))
    assert sorted(parameter_names(alike).values()) == ["module.weight", "weight"]


def test_gains_have_a_learning_rate_of_their_own():
    model = nn.Sequential(add_gain(nn.Linear(4, 3)), weight_norm(nn.Linear(3, 3)), nn.LayerNorm(3))
    groups = param_groups(model, weight_decay=0.1, gain_lr=0.01)
    assert {group.get("lr"): group["param_names"] for group in groups if group["granularity"] == "none"} == {
        None: ["0.bias", "1.bias", "2.weight", "2.bias"],
        0.01: ["0.parametrizations.weight.0.gain", "1.parametrizations.weight.original0"],
    }
    assert all(group["weight_decay"] == 0 for group in groups if "lr" in group)
    with pytest.raises(ValueError, match=r"gain_lr=0\.1, and the model has no gains.*add_gain"):
        param_groups(nn.Linear(4, 3), weight_decay=0.1, gain_lr=0.1)
