"""Rotational(mode="hyperball"): the published step, its matrices, its radius, and Layca's step beside it."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope.geometry import Split
from gyroscope.optim import Rotational
from tests.needs import needs_muon
from tests.optim.catalogue import compiles


def gradients(shape, steps, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(steps)]


def weight(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))


def stepped(optimizer, p, grads):
    for g in grads:
        p.grad = g.clone()
        optimizer.step()
    return p.detach()


def published(w, u, lr, R):
    """W ← R·n(W - lr·R·n(u))."""
    moved = w - lr * R * u / u.norm()
    return R * moved / moved.norm()


@needs_muon
@pytest.mark.parametrize("shape", [(6, 10), (10, 6)])
def test_around_torchs_muon_it_is_muonh(shape):
    p = weight(*shape)
    other = nn.Parameter(torch.zeros_like(p))
    muonh = Rotational(torch.optim.Muon([p], lr=0.02, weight_decay=0.0), mode="hyperball")
    muon = torch.optim.Muon([other], lr=1.0, weight_decay=0.0)
    w = p.detach().clone()
    R = w.norm()
    for g in gradients(shape, 10):
        with torch.no_grad():
            other.zero_()
        stepped(muon, other, [g])
        w = published(w, -other.detach(), 0.02, R)
        torch.testing.assert_close(stepped(muonh, p, [g]), w, rtol=1e-12, atol=1e-14)
    assert float(p.detach().norm()) == pytest.approx(float(R), rel=1e-12)


class NorMuon(torch.optim.Optimizer):
    """Momentum, its orthogonal factor, and rows divided by the root of an average of their mean squares."""

    def __init__(self, params, lr, momentum=0.9, beta2=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum, "beta2": beta2})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * self.update(p, group))

    def update(self, p, group):
        state = self.state[p]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p)
            state["row_squares"] = torch.zeros(len(p), 1, dtype=p.dtype)
        state["momentum_buffer"].lerp_(p.grad, 1 - group["momentum"])
        u, _, v = torch.linalg.svd(state["momentum_buffer"], full_matrices=False)
        orthogonal = u @ v
        state["row_squares"].lerp_(orthogonal.square().mean(1, keepdim=True), 1 - group["beta2"])
        return orthogonal / (state["row_squares"].sqrt() + 1e-10)


def test_around_a_muon_with_normalised_rows_it_is_normuonh():
    p, other = weight(6, 10), weight(6, 10)
    optimizer = Rotational(NorMuon([p], lr=0.02), mode="hyperball")
    inner = NorMuon([other], lr=0.02)
    w = p.detach().clone()
    R = w.norm()
    for g in gradients((6, 10), 10):
        other.grad = g
        w = published(w, inner.update(other, inner.param_groups[0]), 0.02, R)
        torch.testing.assert_close(stepped(optimizer, p, [g]), w, rtol=1e-11, atol=1e-13)


def test_each_matrix_of_the_experts_that_the_model_has_keeps_its_norm():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = weight(3, 4, 6)
            self.router = nn.Linear(6, 3, dtype=torch.float64)

    model = Experts()
    optimizer = Rotational(torch.optim.AdamW(gyro.param_groups(model, weight_decay=0.0), lr=0.1), mode="hyperball")
    splits = {name: group for group in optimizer.param_groups for name in group["param_names"]}
    assert (splits["up"]["granularity"], splits["up"]["axis"]) == ("neuron", 0)
    assert splits["router.weight"]["granularity"] == "tensor"
    assert splits["router.bias"]["granularity"] == "none"
    norms = model.up.detach().flatten(1).norm(dim=1)
    rows = model.up.detach().norm(dim=2)
    stepped(optimizer, model.up, gradients((3, 4, 6), 5))
    torch.testing.assert_close(model.up.detach().flatten(1).norm(dim=1), norms)
    assert not torch.allclose(model.up.detach().norm(dim=2), rows, rtol=1e-3)


class Language(nn.Module):
    def __init__(self, head="lm_head"):
        super().__init__()
        self.wte = nn.Embedding(7, 6)
        self.blocks = nn.ModuleList([nn.ModuleDict({"fc": nn.Linear(6, 6), "output": nn.Linear(6, 6)})])
        self.add_module(head, nn.Linear(6, 7, bias=False))


def rotating_names(optimizer):
    return {
        name
        for group in optimizer.param_groups
        for name, p in zip(group["param_names"], group["params"], strict=True)
        if Split.of(group).rotates(p.shape)
    }


HIDDEN = {"blocks.0.fc.weight", "blocks.0.output.weight"}
OUTPUT = r"^(?!wte|blocks)"
GROUPS = {
    "param_groups": lambda model: gyro.param_groups(model, weight_decay=0.0),
    "named parameters": lambda model: model.named_parameters(),
    "head apart": lambda model: gyro.param_groups(model, weight_decay=0.0, overrides={OUTPUT: {"lr": 0.003}}),
}


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("head", ["lm_head", "head", "output", "embed_out"])
def test_only_hidden_matrices_rotate_and_all_else_takes_the_inner_step(groups, head):
    torch.manual_seed(0)
    model = Language(head).double()
    other = copy.deepcopy(model)
    optimizer = Rotational(torch.optim.AdamW(GROUPS[groups](model), lr=0.02, weight_decay=0.0), mode="hyperball")
    assert rotating_names(optimizer) == HIDDEN
    adamw = torch.optim.AdamW(GROUPS[groups](other), lr=0.02, weight_decay=0.0)
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        before = p.detach().clone()
        q.grad = p.grad = gradients(p.shape, 1)[0]
        if name in HIDDEN:
            q.grad = None
            with torch.no_grad():
                q.copy_(published(before, p.grad.sign(), 0.02, before.norm()))  # Adam's first update
    optimizer.step()
    adamw.step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-8)


def test_the_output_layer_rotates_on_request_and_every_matrix_does_without_names():
    model = Language()
    groups = gyro.param_groups(model, weight_decay=0.0, overrides={"lm_head": "tensor"})
    asked = Rotational(torch.optim.AdamW(groups, lr=0.02), mode="hyperball")
    assert rotating_names(asked) == {*HIDDEN, "lm_head.weight"}
    bare = Rotational(torch.optim.AdamW(model.parameters(), lr=0.02), mode="hyperball")
    assert [group["granularity"] for group in bare.param_groups] == ["tensor"]
    neurons = torch.optim.AdamW(gyro.param_groups(model, weight_decay=0.1), lr=0.02)
    assert rotating_names(Rotational(neurons)) == {*HIDDEN, "lm_head.weight"}


def test_a_group_that_is_added_later_leaves_its_output_layer_to_the_inner_step():
    model = Language()
    named = [("blocks.0.fc.weight", model.blocks[0]["fc"].weight), ("lm_head.weight", model.lm_head.weight)]
    optimizer = Rotational(torch.optim.AdamW(named[:1], lr=0.02), mode="hyperball")
    optimizer.add_param_group({"params": named[1:], "lr": 0.003})
    assert rotating_names(optimizer) == {"blocks.0.fc.weight"}
    assert [group["lr"] for group in optimizer.param_groups] == [0.02, 0.003]


@pytest.mark.parametrize("of", ["adamw", "adamh"])
def test_states_with_the_output_layer_in_the_group_of_hidden_matrices_are_loaded(of):
    model = Language()
    inner = torch.optim.AdamW(gyro.param_groups(model, weight_decay=0.0), lr=0.02)
    saving = inner if of == "adamw" else Rotational(inner, mode="hyperball")
    for p in model.parameters():
        p.grad = gradients(p.shape, 1, torch.float32)[0]
    saving.step()
    fresh = torch.optim.AdamW(gyro.param_groups(model, weight_decay=0.0), lr=0.5)
    loading = Rotational(fresh, mode="hyperball")
    loading.load_state_dict(copy.deepcopy(saving.state_dict()))
    for p in model.parameters():
        assert torch.equal(loading.state[p]["exp_avg"], saving.state[p]["exp_avg"])
    assert [group["lr"] for group in loading.param_groups] == [0.02] * 3


@pytest.mark.parametrize(
    ("group", "options", "expected"),
    [
        ({}, {}, "tensor"),
        ({}, {"granularity": "neuron"}, "neuron"),
        ({"granularity": "neuron"}, {}, "neuron"),
        ({"granularity": "group", "group_size": 2}, {}, "group"),
        ({}, {"tangent": True}, "neuron"),
        ({"mode": "equilibrium"}, {}, "neuron"),
    ],
)
def test_matrices_are_whole_unless_a_granularity_is_given(group, options, expected):
    inner = torch.optim.AdamW([{"params": [weight(4, 6)], **group}], lr=0.1, weight_decay=0.1)
    assert Rotational(inner, mode="hyperball", **options).param_groups[0]["granularity"] == expected


def test_tangent_is_the_rotation_by_a_given_angle_bit_for_bit():
    p, other = weight(4, 12, dtype=torch.float32), weight(4, 12, dtype=torch.float32)
    grads = gradients((4, 12), 5, torch.float32)
    layca = Rotational(torch.optim.SGD([p], lr=0.03, momentum=0.9), mode="hyperball", tangent=True)
    turned = Rotational(torch.optim.SGD([other], lr=0.03, momentum=0.9), angular_update=0.03, beta=0.0, centre=False)
    assert torch.equal(stepped(layca, p, grads), stepped(turned, other, grads))


@compiles
@pytest.mark.parametrize("shape", [(8, 40), (3, 5, 7)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_a_compiled_step_is_the_eager_step(shape, dtype, tolerance):
    results = []
    for compiled in (False, True):
        p = weight(*shape, dtype=dtype)
        inner = torch.optim.AdamW([p], lr=0.05, weight_decay=0.0)
        optimizer = Rotational(inner, mode="hyperball", compile=compiled)
        results.append(stepped(optimizer, p, gradients(shape, 10, dtype)))
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)


def test_a_zero_matrix_takes_plain_steps_until_it_has_a_radius_and_a_warning_says_so():
    p, plain = nn.Parameter(torch.zeros(4, 6)), nn.Parameter(torch.zeros(4, 6))
    inner = torch.optim.AdamW([p, weight(3, 3)], lr=0.01, weight_decay=0.0)
    with pytest.warns(UserWarning, match=r"1 of 2 weights are zero \(the first has shape \(4, 6\)\)"):
        optimizer = Rotational(inner, mode="hyperball")
    adamw = torch.optim.AdamW([plain], lr=0.01, weight_decay=0.0)
    grads = gradients((4, 6), 4, torch.float32)
    first = stepped(optimizer, p, grads[:1]).clone()
    torch.testing.assert_close(first, stepped(adamw, plain, grads[:1]))
    stepped(optimizer, p, grads[1:])
    torch.testing.assert_close(p.detach().norm(), first.norm())
    assert not torch.allclose(p.detach(), first)


def test_no_update_and_a_learning_rate_of_zero_change_nothing():
    p = weight(4, 6, dtype=torch.float32)
    before = p.detach().clone()
    optimizer = Rotational(torch.optim.SGD([p], lr=0.1), mode="hyperball")
    assert torch.equal(stepped(optimizer, p, [torch.zeros(4, 6)]), before)
    optimizer.param_groups[0]["lr"] = 0.0
    assert torch.equal(stepped(optimizer, p, gradients((4, 6), 2, torch.float32)), before)


def test_weights_that_something_else_has_set_keep_their_own_norm():
    p = weight(4, 6)
    optimizer = Rotational(torch.optim.SGD([p], lr=0.1), mode="hyperball")
    stepped(optimizer, p, gradients((4, 6), 2))
    with torch.no_grad():
        p.mul_(3.0)
    norm = p.detach().norm().clone()
    torch.testing.assert_close(stepped(optimizer, p, gradients((4, 6), 2)).norm(), norm)


@pytest.mark.parametrize("copied", ["state_dict", "deepcopy"])
def test_a_copy_goes_on_bit_for_bit(copied):
    p = weight(4, 6, dtype=torch.float32)
    grads = gradients((4, 6), 6, torch.float32)
    optimizer = Rotational(torch.optim.AdamW([p], lr=0.1, weight_decay=0.0), mode="hyperball")
    stepped(optimizer, p, grads[:3])
    if copied == "deepcopy":
        again = copy.deepcopy(optimizer)
        q = again.param_groups[0]["params"][0]
    else:
        q = nn.Parameter(p.detach().clone())
        again = Rotational(torch.optim.AdamW([q], lr=0.5), mode="hyperball")
        again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert torch.equal(stepped(again, q, grads[3:]), stepped(optimizer, p, grads[3:]))


def test_bfloat16_weights_keep_their_norm_with_stochastic_rounding():
    p = weight(32, 64, dtype=torch.bfloat16)
    norm = float(p.detach().float().norm())
    inner = torch.optim.SGD([p], lr=0.01, momentum=0.9)
    optimizer = Rotational(inner, mode="hyperball", stochastic_rounding=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stepped(optimizer, p, gradients((32, 64), 30, torch.bfloat16))
    assert float(p.detach().float().norm()) == pytest.approx(norm, rel=1e-2)


def test_a_first_step_of_sgd_rotates_by_the_published_angle():
    """The gradient is orthogonal to the weight, so tan η = lr."""
    p = weight(4, 6)
    before = p.detach().clone()
    g = gradients((4, 6), 1)[0]
    g = g - (g * before).sum() / (before * before).sum() * before
    after = stepped(Rotational(torch.optim.SGD([p], lr=0.03), mode="hyperball"), p, [g])
    cosine = float((before * after).sum() / before.norm() / after.norm())
    assert math.acos(cosine) == pytest.approx(math.atan(0.03), rel=1e-6)
