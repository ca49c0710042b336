import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from gyroscope.model.groups import param_groups
from gyroscope.nn import Gain, Standardise, add_gain, fold, folded_state_dict, standardise


class Conv1D(nn.Module):
    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        return x @ self.weight + self.bias


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


# Layer, an input, the weight's name and the dimension of its outputs.
LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), (5, 6), "weight", 0),
    "conv": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 8, 8), "weight", 0),
    "depthwise conv": (lambda: nn.Conv1d(4, 4, 3, groups=4), (2, 4, 8), "weight", 0),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3), (2, 3, 8, 8), "weight", 1),
    "transposed, depthwise": (lambda: nn.ConvTranspose2d(4, 4, 3, groups=4), (2, 4, 8, 8), "weight", 0),
    "Conv1D": (lambda: Conv1D(4, 6), (5, 6), "weight", 1),
    "attention": (lambda: Attention(), (2, 5, 8), "attention.in_proj_weight", 0),
}


def make(name):
    torch.manual_seed(0)
    build, shape, tensor, axis = LAYERS[name]
    return build(), torch.randn(shape), tensor, axis


def get(model, path):
    module, _, tensor = path.rpartition(".")
    return getattr(model.get_submodule(module), tensor)


def gains(model):
    return [module.gain for module in model.modules() if isinstance(module, Gain)]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("granularity", ["neuron", "tensor"])
def test_a_new_gain_changes_no_output_and_then_multiplies_its_neuron(name, granularity):
    model, x, path, axis = make(name)
    expected, weight = model(x), get(model, path).detach().clone()
    add_gain(model, granularity)
    assert torch.equal(model(x), expected)
    module, _, tensor = path.rpartition(".")
    gain = model.get_submodule(module).parametrizations[tensor][0].gain
    assert gain.shape == ((weight.shape[axis],) if granularity == "neuron" else (1,))
    with torch.no_grad():
        gain[0] = 3.0
    after = get(model, path).detach()
    if granularity == "tensor":
        assert torch.equal(after, 3 * weight)
    else:
        assert torch.equal(after.select(axis, 0), 3 * weight.select(axis, 0))
        rest = range(1, weight.shape[axis])
        assert all(torch.equal(after.select(axis, i), weight.select(axis, i)) for i in rest)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("size", ["variance", "norm"])
def test_standardised_vectors_have_mean_zero_and_unit_size(name, size):
    model, _, path, axis = make(name)
    standardise(model, size, eps=1e-12)
    rows = get(model, path).detach().movedim(axis, 0).flatten(1)
    assert rows.mean(1) == pytest.approx(torch.zeros(len(rows)), abs=1e-6)
    unit = rows.var(1, correction=0) if size == "variance" else rows.norm(dim=1)
    assert unit == pytest.approx(torch.ones(len(rows)), rel=1e-5)


def test_a_grouped_transposed_convolution_is_one_vector_per_group():
    layer = standardise(nn.ConvTranspose1d(4, 6, 5, groups=2), eps=0.0)
    groups = layer.weight.detach().reshape(2, -1)
    assert groups.mean(1) == pytest.approx(torch.zeros(2), abs=1e-6)
    assert groups.var(1, correction=0) == pytest.approx(torch.ones(2), rel=1e-5)
    assert gains(add_gain(layer))[0].shape == (2,)
    assert layer.weight.shape == (4, 3, 5)


@pytest.mark.parametrize("name", LAYERS)
def test_standardising_forgets_the_scale_and_mean_of_the_weight(name):
    model, x, path, _ = make(name)
    standardise(model, eps=0.0)
    expected = model(x)
    with torch.no_grad():
        module, _, tensor = path.rpartition(".")
        model.get_submodule(module).parametrizations[tensor].original.mul_(3.0).add_(0.5)
    assert torch.allclose(model(x), expected, rtol=1e-4, atol=1e-5)


def test_a_constant_vector_gives_zeros_and_finite_gradients():
    layer = standardise(nn.Linear(4, 2))
    with torch.no_grad():
        layer.parametrizations.weight.original[0] = 1.0
    layer.weight.sum().backward()
    assert torch.equal(layer.weight[0], torch.zeros(4))
    assert torch.isfinite(layer.parametrizations.weight.original.grad).all()


def test_half_precision_weights_stay_half_precision():
    layer = add_gain(standardise(nn.Linear(64, 3).bfloat16(), "norm"))
    assert layer.weight.dtype == torch.bfloat16
    assert layer.weight.detach().float().norm(dim=1) == pytest.approx(torch.ones(3), rel=0.01)


@pytest.mark.parametrize("name", LAYERS)
def test_folding_gives_plain_layers_with_the_same_weights_bit_for_bit_and_the_same_outputs(name):
    model, x, path, _ = make(name)
    plain = {key: value.shape for key, value in model.state_dict().items()}
    add_gain(standardise(model))
    with torch.no_grad():
        for gain in gains(model):
            gain.add_(torch.randn_like(gain))
        weight, expected = get(model, path).clone(), model(x)
        assert fold(model) is model
        assert torch.equal(get(model, path), weight)
        assert model(x).numpy() == pytest.approx(expected.numpy(), rel=1e-5, abs=1e-5)  # kernels round as they like
    assert {key: value.shape for key, value in model.state_dict().items()} == plain
    assert not any(parametrize.is_parametrized(module) for module in model.modules())
    assert get(model, path).requires_grad


def test_folding_a_tied_weight_leaves_the_other_layer_as_it_was():
    model = nn.ModuleDict({"wte": nn.Embedding(7, 4), "head": nn.Linear(4, 7, bias=False)})
    model["head"].weight = model["wte"].weight
    add_gain(model)
    with torch.no_grad():
        gains(model)[0].fill_(2.0)
    embedding, head = model["wte"].weight.detach().clone(), model["head"].weight.detach().clone()
    fold(model)
    assert torch.equal(model["wte"].weight, embedding)
    assert torch.equal(model["head"].weight, head)
    assert torch.equal(head, 2 * embedding)


def test_folding_leaves_a_plain_model_and_other_parametrizations_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 4))
    add_gain(model[0])
    fold(model)
    assert isinstance(model[1].parametrizations.weight[0], nn.Module)
    assert not parametrize.is_parametrized(model[0])
    add_gain(model)
    with pytest.raises(ValueError, match=r"1\.weight has other parametrizations too \(_SpectralNorm\)"):
        fold(model)
    assert parametrize.is_parametrized(model[0])  # nothing is half done


@pytest.mark.parametrize("name", LAYERS)
def test_state_dict_round_trips_and_deepcopy_is_independent(name):
    model, x, _, _ = make(name)
    add_gain(standardise(model))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    twin, other = copy.deepcopy(model), add_gain(standardise(LAYERS[name][0]()))
    other.load_state_dict(model.state_dict())
    assert torch.equal(twin(x), model(x))
    assert torch.equal(other(x), model(x))
    with torch.no_grad():
        gains(twin)[0].zero_()
    assert not torch.equal(twin(x), model(x))


def test_gains_and_weights_train_and_land_in_the_right_groups():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 2, 3))
    add_gain(standardise(model))
    groups = param_groups(model, weight_decay=0.1)
    found = {name: (g["granularity"], g["weight_decay"]) for g in groups for name in g["param_names"]}
    for layer in ("0", "2"):
        assert found[f"{layer}.parametrizations.weight.original"] == ("neuron", 0.1)
        assert found[f"{layer}.parametrizations.weight.1.gain"] == ("none", 0.0)
    before = copy.deepcopy(model.state_dict())
    adamw = torch.optim.AdamW(groups, lr=0.01)
    model(torch.randn(2, 3, 8, 8)).square().mean().backward()
    adamw.step()
    trained = [name for name, p in model.named_parameters() if not torch.equal(p, before[name])]
    assert {name for name in trained if "parametrizations" in name} == {n for n in found if "parametrizations" in n}


def test_a_module_that_stands_in_a_model_twice_gets_one_gain():
    layer = nn.Linear(4, 4)
    assert len(gains(add_gain(nn.Sequential(layer, nn.ReLU(), layer)))) == 1


def test_recurrent_layers_norms_and_embeddings_get_none():
    model = nn.ModuleList([nn.LSTM(4, 4), nn.LayerNorm((4, 4)), nn.Embedding(4, 4), nn.Linear(4, 4)])
    add_gain(model)
    assert [name for name, module in model.named_modules() if isinstance(module, Gain)] == [
        "3.parametrizations.weight.0"
    ]


def test_mistakes_are_told_with_a_remedy():
    with pytest.raises(ValueError, match=r"granularity='row' must be 'neuron' or 'tensor'"):
        add_gain(nn.Linear(4, 4), "row")
    with pytest.raises(ValueError, match=r"size='std' must be 'variance' or 'norm'"):
        standardise(nn.Linear(4, 4), "std")
    with pytest.raises(ValueError, match=r"'parametrizations.weight.original' has a gain already"):
        add_gain(add_gain(nn.Linear(4, 4)))
    with pytest.raises(ValueError, match=r"standardise once, and before add_gain"):
        standardise(add_gain(nn.Linear(4, 4)))
    for change in (add_gain, standardise):
        with pytest.raises(ValueError, match=r"ReLU has no weight of a Linear"):
            change(nn.ReLU())


def test_standardise_is_a_module_of_its_own():
    assert isinstance(standardise(nn.Linear(4, 4)).parametrizations.weight[0], Standardise)


PLAIN_MODELS = {
    "linear": lambda: nn.Linear(6, 4),
    "conv": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)),
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
}


@pytest.mark.parametrize("granularity", ["neuron", "tensor"])
@pytest.mark.parametrize("name", PLAIN_MODELS)
def test_checkpoints_of_the_plain_model_load_into_the_one_with_gains_and_back(name, granularity):
    torch.manual_seed(0)
    plain, gained = PLAIN_MODELS[name](), add_gain(PLAIN_MODELS[name](), granularity)
    state = copy.deepcopy(plain.state_dict())
    with torch.no_grad():
        for gain in gains(gained):
            gain.fill_(3.0)
    gained.load_state_dict(plain.state_dict(), strict=True)
    assert all(torch.equal(gain, torch.ones_like(gain)) for gain in gains(gained))
    for module, other in zip(plain.modules(), fold(copy.deepcopy(gained)).modules(), strict=True):
        for key, value in module.named_parameters(recurse=False):
            assert torch.equal(getattr(other, key), value)
    assert all(torch.equal(state[key], value) for key, value in plain.state_dict().items()), "left as it was"

    with torch.no_grad():
        for gain in gains(gained):
            gain.uniform_(0.5, 2.0)
    before = copy.deepcopy(gained.state_dict())
    plain.load_state_dict(folded_state_dict(gained), strict=True)
    folded = fold(copy.deepcopy(gained)).state_dict()
    assert folded.keys() == plain.state_dict().keys()
    assert all(torch.equal(folded[key], value) for key, value in plain.state_dict().items())
    assert all(torch.equal(before[key], value) for key, value in gained.state_dict().items())


def test_a_folded_model_loads_plain_checkpoints_and_gains_load_their_own():
    layer = add_gain(nn.Linear(6, 4))
    with torch.no_grad():
        gains(layer)[0].uniform_(0.5, 2.0)
    other = add_gain(nn.Linear(6, 4))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight, layer.weight)
    fold(other).load_state_dict(nn.Linear(6, 4).state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        add_gain(standardise(nn.Linear(6, 4))).load_state_dict(nn.Linear(6, 4).state_dict())


def test_the_folded_state_of_a_tied_weight_warns():
    model = nn.ModuleDict({"embedding": nn.Embedding(9, 4), "head": nn.Linear(4, 9, bias=False)})
    model["head"].weight = model["embedding"].weight
    add_gain(model["head"])
    with pytest.warns(UserWarning, match=r"head.weight is tied to embedding.weight and has its own gains"):
        folded_state_dict(model)


def test_folding_a_copy_leaves_the_original_whole():
    layer = add_gain(nn.Linear(6, 4))
    fold(copy.deepcopy(layer))
    assert layer(torch.ones(1, 6)).shape == (1, 4)
    assert fold(layer).weight.shape == (4, 6)


@pytest.mark.parametrize("layer", [nn.Linear(6, 4), nn.Conv2d(6, 4, 3), nn.ConvTranspose2d(6, 4, 3)])
def test_gains_multiply_outputs(layer):
    gained = add_gain(copy.deepcopy(layer))
    assert [tuple(gain.shape) for gain in gains(gained)] == [(4,)]
    with torch.no_grad():
        gains(gained)[0][0] = 3.0
    changed = layer.weight.detach().clone()
    changed.select(1 if isinstance(layer, nn.ConvTranspose2d) else 0, 0).mul_(3.0)
    torch.testing.assert_close(gained.weight.detach(), changed)
