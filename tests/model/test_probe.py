"""The probe gives the right answer on every kind of normalisation, and leaves no trace."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import layer_norm, scaled_dot_product_attention

from gyroscope.model import invariance_probe as probe_module
from gyroscope.model.groups import param_groups
from gyroscope.model.invariance_probe import probe
from gyroscope.model.selection import Invariance
from gyroscope.nn import standardise
from tests.model.zoo import Conv1D


class QKNorm(nn.Module):
    """Attention whose queries and keys are normalised head by head."""

    def __init__(self, width=16, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = (layer_norm(t, t.shape[-1:]) for t in (q, k))
        return self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


def loss_on(*shape):
    """A loss on fresh inputs, with a target that makes every output matter."""

    def loss(model):
        y = model(torch.randn(*shape)).flatten(1)
        return (y - torch.linspace(-1, 1, y.shape[1])).square().mean() + y.sin().mean()

    return loss


IMAGES, VECTORS, TOKENS = (32, 3, 8, 8), (64, 12), (8, 6, 16)
CASES = {
    "convolution and BatchNorm": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)),
        IMAGES,
        {"0.weight": ("neuron", 0, 1, False), "2.weight": ("none", 0, 1, False)},
    ),
    "a bias before BatchNorm does no harm": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, bias=True), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)),
        IMAGES,
        {"0.weight": ("neuron", 0, 1, False), "2.weight": ("none", 0, 1, False)},
    ),
    "Linear and LayerNorm": (
        lambda: nn.Sequential(nn.Linear(12, 10, bias=False), nn.LayerNorm(10), nn.Linear(10, 5)),
        VECTORS,
        {"0.weight": ("tensor", 0, 1, False), "2.weight": ("none", 0, 1, False)},
    ),
    "a bias before LayerNorm": (
        lambda: nn.Sequential(nn.Linear(12, 10), nn.LayerNorm(10), nn.Linear(10, 5)),
        VECTORS,
        {"0.weight": ("none", 0, 1, False), "2.weight": ("none", 0, 1, False)},
    ),
    "convolution and GroupNorm": (
        lambda: nn.Sequential(nn.Conv2d(3, 12, 3, bias=False), nn.GroupNorm(3, 12), nn.Conv2d(12, 4, 1)),
        IMAGES,
        {"0.weight": ("group", 0, 4, False), "2.weight": ("none", 0, 1, False)},
    ),
    "a bias before GroupNorm": (
        lambda: nn.Sequential(nn.Conv2d(3, 12, 3), nn.GroupNorm(3, 12), nn.Conv2d(12, 4, 1)),
        IMAGES,
        {"0.weight": ("none", 0, 1, False), "2.weight": ("none", 0, 1, False)},
    ),
    "attention with qk-norm": (
        QKNorm,
        TOKENS,
        {
            "q.weight": ("group", 0, 4, False),
            "k.weight": ("group", 0, 4, False),
            "v.weight": ("none", 0, 1, False),
            "out.weight": ("none", 0, 1, False),
        },
    ),
    "transposed convolution and BatchNorm": (
        lambda: nn.Sequential(nn.ConvTranspose2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)),
        IMAGES,
        {"0.weight": ("neuron", 1, 1, False), "2.weight": ("none", 0, 1, False)},
    ),
    "Hugging Face's Conv1D and LayerNorm": (
        lambda: nn.Sequential(Conv1D(10, 12, bias=False), nn.LayerNorm(10), nn.Linear(10, 5)),
        VECTORS,
        {"0.weight": ("tensor", 0, 1, False), "2.weight": ("none", 0, 1, False)},
    ),
    "Hugging Face's Conv1D and BatchNorm": (
        lambda: nn.Sequential(Conv1D(10, 12), nn.BatchNorm1d(10), nn.Linear(10, 5)),
        VECTORS,
        {"0.weight": ("neuron", 1, 1, False), "2.weight": ("none", 0, 1, False)},
    ),
    "a ReLU network without normalisation": (
        lambda: nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5)),
        VECTORS,
        {f"{i}.weight": ("none", 0, 1, False) for i in (0, 2, 4)},
    ),
}


def standardised():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1, bias=False))
    standardise(model[0])
    return model


CASES["a standardised convolution"] = (
    standardised,
    IMAGES,
    {"0.parametrizations.weight.original": ("neuron", 0, 1, True), "2.weight": ("none", 0, 1, False)},
)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(4))
def test_the_probe_finds_what_is_invariant(name, seed):
    make, shape, expected = CASES[name]
    torch.manual_seed(seed)
    found = probe(make(), loss_on(*shape))
    answers = {key: (i.granularity, i.axis, i.group_size, i.centred) for key, i in found.items()}
    assert answers == expected, str(found)
    words = {key: "sensitive" if i.granularity == "none" else "orthogonal" for key, i in found.items()}
    assert {key: i.evidence for key, i in found.items()} == words


def test_an_iterator_of_batches_will_do():
    torch.manual_seed(0)
    make, shape, expected = CASES["convolution and BatchNorm"]
    data = iter([torch.randn(*shape) for _ in range(200)])
    loss = loss_on(*shape)
    found = probe(make(), lambda model: loss(lambda _: model(next(data))))
    assert {key: i.granularity for key, i in found.items()} == {key: value[0] for key, value in expected.items()}


# Seeds for which a spread taken from two batches alone hid a convolution.
@pytest.mark.parametrize("seed", [1, 4, 20, 22])
def test_two_batches_of_an_iterator_with_nearly_the_same_loss_prove_nothing(seed):
    torch.manual_seed(seed)
    model = zero_gains()
    small_batches = iter([torch.randn(4, 3, 8, 8) for _ in range(200)])
    loss = loss_on(*IMAGES)
    found = probe(model, lambda model: loss(lambda _: model(next(small_batches))))
    assert sum(invariance.granularity == "neuron" for invariance in found.values()) == 5, str(found)


def test_one_wrong_candidate_does_not_cost_all_others_a_trial_of_their_own(monkeypatch):
    torch.manual_seed(0)
    blocks = [part for _ in range(8) for part in (nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3))]
    model = nn.Sequential(*blocks, nn.Conv2d(3, 4, 1))
    finest = probe_module._finest
    wrong = Invariance("neuron")
    monkeypatch.setattr(probe_module, "_finest", lambda w, grads: wrong if w.name == "16.weight" else finest(w, grads))
    monkeypatch.setattr(probe_module, "SUSPECT", 2.0)
    backward = []
    loss = loss_on(*IMAGES)

    def counted(model):
        backward.append(torch.is_grad_enabled())
        return loss(model)

    found = probe(model, counted)
    assert [name for name, invariance in found.items() if invariance.granularity != "neuron"] == ["16.weight"]
    # Four batches as it is, four enlarged, and four with the wrong one alone.
    assert sum(backward) == 12


def test_model_gradients_buffers_modes_and_random_states_are_bit_identical_afterwards():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.1), nn.Conv2d(8, 4, 1))
    model[0].bias.data.zero_()
    loss_on(*IMAGES)(model).backward()
    model[3].weight.grad = None
    model[1].eval()
    before, grads = copy.deepcopy(model.state_dict()), [copy.deepcopy(p.grad) for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    probe(model, loss_on(*IMAGES))
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    for p, grad in zip(model.parameters(), grads, strict=True):
        assert (p.grad is None) == (grad is None)
        assert grad is None or torch.equal(p.grad, grad)
    assert modes == [module.training for module in model.modules()]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002
    assert random.getstate() == states[2]


def test_the_model_is_restored_when_the_loss_fails():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="no data"):
        probe(model, lambda model: (model(torch.randn(8, 4)), (_ for _ in ()).throw(RuntimeError("no data")))[0])
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_the_result_sorts_a_model():
    torch.manual_seed(0)
    make, shape, _ = CASES["convolution and GroupNorm"]
    model = make()
    groups = param_groups(model, weight_decay=0.1, probe=probe(model, loss_on(*shape)))
    rotating = {name: group for group in groups if group["granularity"] != "none" for name in group["param_names"]}
    assert list(rotating) == ["0.weight"]
    assert (rotating["0.weight"]["granularity"], rotating["0.weight"]["group_size"]) == ("group", 4)


def test_the_table_says_what_and_why():
    torch.manual_seed(0)
    make, shape, _ = CASES["a bias before LayerNorm"]
    text = str(probe(make(), loss_on(*shape)))
    assert "invariant per" in text
    assert "sensitive" in text


def test_a_weight_without_gradient_is_none():
    torch.manual_seed(0)
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "unused": nn.Linear(4, 4)})
    found = probe(model, lambda model: model["used"](torch.randn(8, 4)).square().mean())
    assert found["unused.weight"].evidence == "unreached"


@pytest.mark.parametrize(
    ("call", "quoted"),
    [
        (lambda m: probe(m, loss_on(8, 4), batches=0), "batches=0"),
        (lambda m: probe(m, lambda model: model(torch.ones(2, 4))), "scalar"),
        (lambda m: probe(m, lambda model: 3.0), "loss\\(model\\) gave 3.0"),
        (lambda m: probe(m, lambda model: model(torch.full((2, 4), torch.nan)).sum()), "loss is finite"),
    ],
)
def test_bad_input_is_quoted(call, quoted):
    with pytest.raises(ValueError, match=quoted):
        call(nn.Linear(4, 4))


class Residual(nn.Module):
    """A block of a ResNet whose last gain starts at 0, so that the block is the identity."""

    def __init__(self, width=6):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = (nn.BatchNorm2d(width) for _ in range(2))
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x):
        return x + self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))


def zero_gains():
    return nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), Residual(), Residual(), nn.Conv2d(6, 4, 1))


class UNet(nn.Module):
    """Down and up again, with an output layer of zeros as diffusion models have it: no gradient reaches the rest."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, 8)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2, bias=False)
        self.up_norm = nn.GroupNorm(2, 8)
        self.out = nn.Conv2d(8, 3, 3, padding=1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x):
        hidden = self.norm(self.down(x)).relu()
        return self.out(self.up_norm(self.up(hidden)).relu())


class PreNorm(nn.Module):
    """A block of a ViT: normalisations before the layers, biases of 0, small weights, no weight is scale-invariant."""

    def __init__(self, width=48, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for layer in (self.qkv, self.proj, self.fc1, self.fc2):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))


@pytest.mark.parametrize("seed", range(3))
def test_gains_that_start_at_zero_hide_no_convolution(seed):
    torch.manual_seed(seed)
    found = probe(zero_gains(), loss_on(*IMAGES))
    convolutions = {"0.weight", *(f"{block}.conv{number}.weight" for block in (2, 3) for number in (1, 2))}
    assert {name for name, i in found.items() if (i.granularity, i.axis) == ("neuron", 0)} == convolutions, str(found)
    assert not any(invariance.undecided for invariance in found.values())


@pytest.mark.parametrize("seed", range(3))
def test_an_output_layer_of_zeros_hides_nothing_behind_it(seed):
    torch.manual_seed(seed)
    found = probe(UNet(), loss_on(*IMAGES))
    answers = {name: (i.granularity, i.axis, i.group_size, i.undecided) for name, i in found.items()}
    assert answers == {
        "down.weight": ("group", 0, 4, False),
        "up.weight": ("group", 1, 4, False),
        "out.weight": ("none", 0, 1, False),
    }, str(found)


@pytest.mark.parametrize("seed", range(3))
def test_biases_of_zero_are_no_evidence_of_a_normalisation_behind_them(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 48), PreNorm(), PreNorm(), nn.LayerNorm(48), nn.Linear(48, 5))
    found = probe(model, loss_on(*TOKENS))
    assert {invariance.evidence for invariance in found.values()} == {"sensitive"}, str(found)
    assert {(i.granularity, i.undecided) for i in found.values()} == {("none", False)}


def test_a_bias_of_zero_before_a_layer_norm_is_seen():
    torch.manual_seed(0)
    make, shape, _ = CASES["a bias before LayerNorm"]
    model = make()
    nn.init.zeros_(model[0].bias)
    assert probe(model, loss_on(*shape))["0.weight"].granularity == "none"


def test_a_deep_network_without_normalisation_does_not_overflow_the_probe():
    torch.manual_seed(0)
    layers = [layer for _ in range(40) for layer in (nn.Linear(24, 24, bias=False), nn.ReLU())]
    for layer in layers[::2]:
        nn.init.orthogonal_(layer.weight, gain=2**0.5)
    found = probe(nn.Sequential(*layers, nn.Linear(24, 2)), loss_on(32, 24), batches=2)
    assert {invariance.granularity for invariance in found.values()} == {"none"}


def test_experts_are_invariant_per_expert_and_neuron():
    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.Parameter(torch.randn(3, 5, 12))
            self.norm = nn.BatchNorm1d(15)
            self.out = nn.Linear(15, 2)

        def forward(self, x):
            return self.out(self.norm(torch.einsum("bi,eoi->beo", x, self.experts).flatten(1)))

    torch.manual_seed(0)
    found = probe(Normalised(), loss_on(*VECTORS))["experts"]
    assert (found.granularity, found.axis) == ("neuron", (0, 1)), found


def test_the_probe_of_a_special_point_leaves_no_trace():
    torch.manual_seed(0)
    model = zero_gains()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    probe(model, loss_on(*IMAGES))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_where_the_probe_cannot_say_the_type_of_layer_decides_with_one_warning():
    torch.manual_seed(0)
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "one": nn.Linear(4, 4), "other": nn.Linear(4, 4)})
    found = probe(model, lambda model: model["used"](torch.randn(8, 4)).square().mean())
    assert [name for name, invariance in found.items() if invariance.undecided] == ["one.weight", "other.weight"]
    assert "cannot say" in str(found)
    with pytest.warns(
        UserWarning, match="could not decide for 2 weights .*one.weight, other.weight: no grad"
    ) as warned:
        groups = param_groups(model, weight_decay=0.1, probe=found)
    assert len(warned) == 1
    rotating = [name for group in groups if group["granularity"] == "neuron" for name in group["param_names"]]
    assert rotating == ["one.weight", "other.weight"]


class FusedQKNorm(nn.Module):
    """Attention of one fused matrix, whose queries and keys are normalised head by head, and on request the values."""

    def __init__(self, values, width=16, heads=4):
        super().__init__()
        self.heads = heads
        self.values = values
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        q, k = (layer_norm(t, t.shape[-1:]) for t in (q, k))
        v = layer_norm(v, v.shape[-1:]) if self.values else v
        return self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("seed", range(3))
def test_a_fused_matrix_whose_queries_and_keys_alone_are_invariant_is_none(seed):
    torch.manual_seed(seed)
    found = probe(FusedQKNorm(values=False), loss_on(*TOKENS))["qkv.weight"]
    assert found.granularity == "none"


def test_a_fused_matrix_behind_a_norm_of_every_head_is_invariant_head_by_head():
    torch.manual_seed(0)
    found = probe(FusedQKNorm(values=True), loss_on(*TOKENS))["qkv.weight"]
    assert (found.granularity, found.axis, found.group_size) == ("group", 0, 4)


class ScaledConvolution(nn.Module):
    """A standardised convolution with a gain for each output, as in NF-ResNets, which have no other norm."""

    def __init__(self, inputs, outputs, gain_shape):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, 3, 3))
        self.gain = nn.Parameter(torch.ones(gain_shape))

    def forward(self, x):
        w = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        w = w / w.flatten(1).norm(dim=1).view(-1, 1, 1, 1) * self.gain.view(-1, 1, 1, 1)
        return 1.7 * torch.conv2d(x, w, padding=1).relu()


def test_gains_of_four_dimensions_cost_no_more_trials_than_gains_of_one():
    calls = {}
    for shape in ((8,), (8, 1, 1, 1)):
        torch.manual_seed(0)
        model = nn.Sequential(*(ScaledConvolution(3 if layer == 0 else 8, 8, shape) for layer in range(40)))
        loss = loss_on(4, 3, 6, 6)
        calls[shape] = 0

        def counted(model, loss=loss, shape=shape):
            calls[shape] += 1
            return loss(model)

        found = probe(model, counted)
        assert {found[f"{layer}.weight"].granularity for layer in range(40)} == {"neuron"}
        assert shape == (8,) or found["0.gain"].evidence == "gain"
    assert calls[8, 1, 1, 1] == calls[8,] < 20
