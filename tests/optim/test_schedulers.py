import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    StepLR,
)

from gyroscope import theory
from gyroscope.model.groups import param_groups
from gyroscope.optim.adamw import RotationalAdamW
from gyroscope.optim.equilibrium_init import to_equilibrium_
from gyroscope.optim.schedulers import CorrectedDecay, EquilibriumRescale
from gyroscope.optim.torch_rules import rule_of
from tests.needs import needs_muon
from tests.optim.torch_walk import angle, walk

ROWS, FAN_IN = 128, 64


class Vectors(nn.Module):
    """Weight vectors with nothing around them."""

    def __init__(self, rows=ROWS, fan_in=FAN_IN, dtype=torch.float32):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.w = nn.Parameter(torch.randn(rows, fan_in, generator=generator, dtype=dtype))


def generator():
    return torch.Generator().manual_seed(1)


WALKERS = {
    "AdamW": lambda w: AdamW([w], lr=1e-2, weight_decay=0.3, betas=(0.9, 0.99), foreach=False),
    "SGD": lambda w: SGD([w], lr=1e-2, momentum=0.9, weight_decay=0.02, foreach=False),
    "SGD, Nesterov": lambda w: SGD([w], lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.02, foreach=False),
    "Adam": lambda w: Adam([w], lr=1e-2, weight_decay=0.05, betas=(0.9, 0.99), foreach=False),
}


def drop(make, rescale, k=16, before=400, after=150):
    """Angles and norms after lr fell by k, over those of the new equilibrium."""
    model = Vectors()
    optimizer = make(model.w)
    to_equilibrium_(model, optimizer, unit_grad_norm=1.0)
    schedule = StepLR(optimizer, before, 1 / k)
    schedule = EquilibriumRescale(optimizer, schedule) if rescale else schedule
    angles, norms = walk(model.w, optimizer, before + after, generator(), schedule=schedule)
    expected = rule_of(optimizer.param_groups[0], optimizer).equilibrium(fan_in=FAN_IN, unit_grad_norm=1.0)
    return np.array(angles[before:]) / expected.angular_update, np.array(norms[before:]) / expected.norm


@pytest.mark.parametrize("name", WALKERS)
def test_after_a_drop_of_lr_weights_turn_at_the_new_equilibriums_angle_at_once(name):
    angles, norms = drop(WALKERS[name], rescale=True)
    assert angles[:20].mean() == pytest.approx(1, abs=0.02)
    assert angles.mean() == pytest.approx(1, abs=0.02)
    assert norms == pytest.approx(np.ones_like(norms), abs=0.03)


@pytest.mark.parametrize("name", WALKERS)
def test_without_rescaling_they_turn_too_slowly_for_a_long_time(name):
    angles, norms = drop(WALKERS[name], rescale=False)
    assert np.all(angles < 0.5)
    assert np.all(norms > 1.8)


def test_weights_and_moments_are_rescaled_by_the_powers_of_the_theory():
    model = Vectors()
    adamw = AdamW([model.w], lr=1e-2, weight_decay=0.1)
    schedule = EquilibriumRescale(adamw, StepLR(adamw, 1, 1 / 16))
    walk(model.w, adamw, 3, generator())
    before, state = model.w.detach().clone(), copy.deepcopy(adamw.state[model.w])
    schedule.step()
    after = adamw.state[model.w]
    assert adamw.param_groups[0]["lr"] == pytest.approx(1e-2 / 16)
    assert torch.equal(model.w.detach(), before / 4)
    assert torch.equal(after["exp_avg"], state["exp_avg"] * 4)
    assert torch.equal(after["exp_avg_sq"], state["exp_avg_sq"] * 16)
    assert after["step"] == state["step"] == 3


def test_sgd_rescales_by_the_fourth_root_and_its_buffer_by_the_inverse():
    model = Vectors()
    sgd = SGD([model.w], lr=1e-2, momentum=0.9, dampening=0.5, weight_decay=0.1)
    schedule = EquilibriumRescale(sgd, StepLR(sgd, 1, 1 / 16))
    walk(model.w, sgd, 3, generator())
    before, buffer = model.w.detach().clone(), sgd.state[model.w]["momentum_buffer"].clone()
    schedule.step()
    assert torch.equal(model.w.detach(), before / 2)
    assert torch.equal(sgd.state[model.w]["momentum_buffer"], buffer * 2)


def test_nothing_changes_while_lr_does_not():
    model = Vectors()
    adamw = AdamW([model.w], lr=1e-2, weight_decay=0.1)
    schedule = EquilibriumRescale(adamw, StepLR(adamw, 10_000, 0.1))
    walk(model.w, adamw, 1, generator())
    before, state = model.w.detach().clone(), copy.deepcopy(adamw.state[model.w])
    for _ in range(1000):
        schedule.step()
    assert torch.equal(model.w.detach(), before)
    assert all(torch.equal(state[name], adamw.state[model.w][name]) for name in state)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.03)])
def test_many_small_changes_add_up_whatever_the_dtype(dtype, tolerance):
    """In bfloat16 each factor of a slow cosine would be rounded to 1."""
    model = Vectors(dtype=dtype)
    adamw = AdamW([model.w], lr=1e-2, weight_decay=0.1)
    schedule = EquilibriumRescale(adamw, CosineAnnealingLR(adamw, 2000, eta_min=1e-4))
    before = model.w.detach().clone()
    adamw.step()
    for _ in range(2000):
        schedule.step()
    assert (model.w.detach().norm() / before.norm()).item() == pytest.approx(0.1, rel=tolerance)


def test_lr_of_zero_leaves_weights_and_remembers_the_equilibrium_they_stand_at():
    model = Vectors()
    adamw = AdamW([model.w], lr=1e-2, weight_decay=0.1)
    schedule = EquilibriumRescale(adamw, LambdaLR(adamw, lambda step: [1.0, 0.0, 0.0, 0.25][step]))
    before = model.w.detach().clone()
    adamw.step()
    for expected in (1.0, 1.0, 0.5):
        schedule.step()
        assert torch.equal(model.w.detach(), before * expected)


def test_only_what_rotates_by_design_is_rescaled():
    model = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Embedding(3, 4), nn.Linear(4, 1), nn.Linear(1, 4))
    model[3].weight.requires_grad_(False)
    adamw = AdamW(param_groups(model, weight_decay=0.1), lr=1e-2)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    schedule = EquilibriumRescale(adamw, StepLR(adamw, 1, 0.25))
    adamw.step()
    schedule.step()
    changed = [name for name, p in model.named_parameters() if not torch.equal(p.detach(), before[name])]
    assert changed == ["0.weight"]


def test_with_the_model_embeddings_stay_and_without_it_bare_groups_are_rescaled_whole():
    def changed(with_model):
        model = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 4), nn.LayerNorm(4))
        adamw = AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        before = copy.deepcopy(model.state_dict())
        schedule = EquilibriumRescale(adamw, StepLR(adamw, 1, 0.25), model=model if with_model else None)
        adamw.step()
        schedule.step()
        return [name for name, p in model.state_dict().items() if not torch.equal(p, before[name])]

    assert changed(with_model=True) == ["1.weight"]
    assert changed(with_model=False) == ["0.weight", "1.weight"]


def test_a_weight_that_is_thawed_is_rescaled_from_then_on_and_a_copy_holds_no_weights():
    model = nn.Linear(4, 3, bias=False).requires_grad_(False)
    adamw = AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    schedule = EquilibriumRescale(adamw, StepLR(adamw, 1, 0.25), model=model)
    copied = {id(adamw): adamw}
    copy.deepcopy(schedule, copied)
    assert id(model.weight) not in copied
    before = model.weight.detach().clone()
    adamw.step()
    schedule.step()
    assert torch.equal(model.weight, before)
    model.requires_grad_(True)
    schedule.step()
    assert torch.equal(model.weight.detach(), before / 2)


def test_a_group_without_decay_or_of_other_lr_is_its_own_matter():
    a, b, c = (Vectors().w for _ in range(3))
    adamw = AdamW(
        [{"params": [a], "lr": 1e-2}, {"params": [b], "lr": 1e-3}, {"params": [c], "weight_decay": 0}], weight_decay=0.1
    )
    fall = LambdaLR(adamw, [lambda step: 0.25**step, lambda step: 1.0, lambda step: 0.25**step])
    schedule, before = EquilibriumRescale(adamw, fall), a.detach().clone()
    adamw.step()
    schedule.step()
    assert torch.equal(a.detach(), before / 2)
    assert torch.equal(b.detach(), before)
    assert torch.equal(c.detach(), before)


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_a_resumed_run_continues_as_if_it_had_not_stopped(name):
    def make(model):
        adamw = WALKERS[name](model.w)
        return adamw, EquilibriumRescale(adamw, CosineAnnealingLR(adamw, 40))

    whole, noise = Vectors(), generator()
    adamw, schedule = make(whole)
    walk(whole.w, adamw, 15, noise, schedule=schedule)
    saved = copy.deepcopy((whole.state_dict(), adamw.state_dict(), schedule.state_dict(), noise.get_state()))
    walk(whole.w, adamw, 15, noise, schedule=schedule)

    resumed, noise = Vectors(), torch.Generator()
    again, its_schedule = make(resumed)
    resumed.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    its_schedule.load_state_dict(saved[2])
    noise.set_state(saved[3])
    walk(resumed.w, again, 15, noise, schedule=its_schedule)
    assert torch.equal(resumed.w, whole.w)
    assert its_schedule.get_last_lr() == schedule.get_last_lr()


def test_a_plateau_scheduler_gets_its_metric():
    model = Vectors()
    adamw = AdamW([model.w], lr=1e-2, weight_decay=0.1)
    schedule = EquilibriumRescale(adamw, ReduceLROnPlateau(adamw, factor=0.25, patience=0))
    before = model.w.detach().clone()
    for metric in (1.0, 2.0):
        schedule.step(metric)
    assert torch.equal(model.w.detach(), before / 2)


def test_rescaling_refuses_what_it_cannot_do():
    w = Vectors().w
    unknown = torch.optim.Adamax([w], weight_decay=0.1)
    with pytest.raises(ValueError, match="Adamax is not among the known optimizers"):
        EquilibriumRescale(unknown, StepLR(unknown, 1))
    rotational = RotationalAdamW([w])
    with pytest.raises(ValueError, match=r"RotationalAdamW keeps norms fixed.*use the scheduler alone"):
        EquilibriumRescale(rotational, StepLR(rotational, 1))


SMALL_DECAY = {
    "AdamW": lambda w: AdamW([w], lr=1e-2, weight_decay=0.1, betas=(0.9, 0.99), foreach=False),
    "SGD": lambda w: SGD([w], lr=1e-2, momentum=0.9, weight_decay=0.01, foreach=False),
    "Adam": lambda w: Adam([w], lr=1e-3, weight_decay=0.05, betas=(0.9, 0.99), foreach=False),
}


@pytest.mark.parametrize("name", SMALL_DECAY)
def test_a_model_put_at_equilibrium_stays_there_within_two_percent(name):
    model = Vectors()
    optimizer = SMALL_DECAY[name](model.w)
    to_equilibrium_(model, optimizer, unit_grad_norm=0.5)
    start = model.w.detach().norm(dim=1)
    assert start.numpy() == pytest.approx(np.full(ROWS, start[0].item()), rel=1e-5)
    _, norms = walk(model.w, optimizer, 1000, generator(), unit_grad_norm=0.5)
    assert np.array(norms) / start[0].item() == pytest.approx(np.ones(1000), abs=0.02)


@needs_muon
def test_muon_brings_the_whole_matrix_to_its_norm():
    model = Vectors()
    muon = torch.optim.Muon([model.w], lr=1e-2, weight_decay=0.1)
    before = model.w.detach().clone()
    to_equilibrium_(model, muon)
    expected = theory.Muon(1e-2, 0.1).equilibrium(shape=(ROWS, FAN_IN)).norm
    assert model.w.detach().norm().item() == pytest.approx(expected, rel=1e-5)
    assert angle(before.view(1, -1), model.w.detach().view(1, -1)).item() < 1e-3


def test_each_layer_has_its_own_norm_by_fan_in_and_axis_and_the_rest_stays():
    model = nn.Sequential(nn.Conv2d(3, 4, 5), nn.ConvTranspose2d(4, 6, 3), nn.BatchNorm2d(6), nn.Linear(1, 2))
    model.add_module("frozen", nn.Linear(8, 8).requires_grad_(False))
    before = copy.deepcopy(model.state_dict())
    adamw = AdamW(param_groups(model, weight_decay=0.1), lr=1e-2)
    to_equilibrium_(model, adamw)
    norm = {n: theory.AdamW(1e-2, 0.1).equilibrium(fan_in=n).norm for n in (75, 36)}
    assert model[0].weight.detach().flatten(1).norm(dim=1).numpy() == pytest.approx(np.full(4, norm[75]), rel=1e-5)
    columns = model[1].weight.detach().movedim(1, 0).flatten(1).norm(dim=1)
    assert columns.numpy() == pytest.approx(np.full(6, norm[36]), rel=1e-5)
    rest = set(before) - {"0.weight", "1.weight"}
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in rest)


def batch_norm_network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(10, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3, bias=False), nn.BatchNorm1d(3)
    )


def regression():
    x = torch.randn(256, 10, generator=torch.Generator().manual_seed(2))
    return lambda model: (model(x) - x[:, :3]).square().mean()


def test_a_loss_measures_each_vectors_gradient_and_leaves_function_buffers_and_gradients_alone():
    model, loss = batch_norm_network(), regression()
    sgd = SGD(param_groups(model, weight_decay=1e-3), lr=0.1, momentum=0.9)
    buffers, value = copy.deepcopy(dict(model.named_buffers())), loss(copy.deepcopy(model)).item()
    to_equilibrium_(model, sgd, loss=loss, batches=1)
    assert all(torch.equal(model.get_buffer(name), buffers[name]) for name in buffers)
    assert all(p.grad is None for p in model.parameters())
    assert loss(model).item() == pytest.approx(value, rel=1e-3)
    loss(model).backward()
    for layer in (model[0], model[3]):
        norm, grad = layer.weight.detach().norm(dim=1), layer.weight.grad.norm(dim=1)
        expected = theory.SGDM(0.1, 1e-3, 0.9).equilibrium(unit_grad_norm=(norm * grad).double().numpy()).norm
        assert norm.numpy() == pytest.approx(expected, rel=0.02)


def test_a_vector_without_gradient_or_of_norm_zero_stays_as_it_is():
    def loss(model):
        return nn.functional.normalize(model.w[:2], dim=1).sum()

    model = Vectors(rows=3, fan_in=4)
    with torch.no_grad():
        model.w[0] = 0.0
    sgd, before = SGD([model.w], lr=0.1, weight_decay=1e-3), model.w.detach().clone()
    to_equilibrium_(model, sgd, loss=loss)
    assert torch.equal(model.w[[0, 2]].detach(), before[[0, 2]])
    assert not torch.equal(model.w[1].detach(), before[1])
    assert torch.isfinite(model.w).all()
    with torch.no_grad():
        model.w.zero_()
    to_equilibrium_(model, sgd, unit_grad_norm=1.0)
    assert torch.equal(model.w.detach(), torch.zeros(3, 4))


def test_a_missing_gradient_norm_names_the_parameter_and_the_remedy():
    model = batch_norm_network()
    sgd = SGD(param_groups(model, weight_decay=1e-3), lr=0.1)
    with pytest.raises(ValueError, match=r"SGDM needs unit_grad_norm for '0\.weight'.*loss="):
        to_equilibrium_(model, sgd)
    with pytest.raises(ValueError, match=r"needs unit_grad_norm for '3\.weight'"):
        to_equilibrium_(model, sgd, unit_grad_norm={"0.weight": 0.1})
    to_equilibrium_(model, sgd, unit_grad_norm={"0.weight": 0.1, "3.weight": 0.2})
    first, last = (model[i].weight.detach().norm(dim=1).mean().item() for i in (0, 3))
    assert last / first == pytest.approx(2**0.5, rel=1e-4)


def test_equilibrium_needs_a_fresh_optimizer_and_an_lr():
    model = Vectors()
    adamw = AdamW([model.w], lr=0.0, weight_decay=0.1)
    with pytest.raises(ValueError, match="lr=0 has no equilibrium for 'w'"):
        to_equilibrium_(model, adamw)
    walk(model.w, adamw, 1, generator())
    with pytest.raises(ValueError, match="before the first step"):
        to_equilibrium_(model, adamw)


def test_corrected_decay_follows_lr_so_that_the_product_falls_with_its_square():
    w = Vectors().w
    adamw = AdamW([{"params": [w]}, {"params": [Vectors().w], "weight_decay": 0.0}], lr=1e-2, weight_decay=0.3)
    schedule = CorrectedDecay(adamw, LambdaLR(adamw, lambda step: [0.1, 1.0, 0.5, 0.0][step]))
    adamw.step()
    for share in (0.1, 1.0, 0.5, 0.0):
        group, other = adamw.param_groups
        assert group["lr"] * group["weight_decay"] == pytest.approx(0.3 * 1e-2 * share**2)
        assert other["weight_decay"] == 0.0
        if share:
            schedule.step()


def test_under_corrected_decay_norms_stay_and_rotation_follows_lr():
    model = Vectors()
    adamw = AdamW([model.w], lr=1e-2, weight_decay=0.3, betas=(0.9, 0.99), foreach=False)
    to_equilibrium_(model, adamw)
    schedule = CorrectedDecay(adamw, StepLR(adamw, 400, 0.25))
    angles, norms = walk(model.w, adamw, 800, generator(), schedule=schedule)
    peak = theory.AdamW(1e-2, 0.3, (0.9, 0.99), corrected_decay=True).equilibrium(fan_in=FAN_IN)
    assert np.array(norms) / peak.norm == pytest.approx(np.ones(800), abs=0.03)
    assert np.mean(angles[450:]) / np.mean(angles[50:400]) == pytest.approx(0.25, rel=0.02)
    assert rule_of(adamw.param_groups[0], adamw).equilibrium(fan_in=FAN_IN).norm == pytest.approx(peak.norm, rel=0.02)


def test_rescaling_on_top_of_corrected_decay_has_nothing_to_do():
    model = Vectors()
    adamw = AdamW([model.w], lr=1e-2, weight_decay=0.3)
    schedule = EquilibriumRescale(adamw, CorrectedDecay(adamw, StepLR(adamw, 1, 0.5)))
    before = model.w.detach().clone()
    adamw.step()
    for _ in range(5):
        schedule.step()
    assert adamw.param_groups[0]["weight_decay"] == pytest.approx(0.3 / 32)
    assert torch.equal(model.w.detach(), before)


def test_corrected_decay_knows_the_peak_of_one_cycle_and_survives_a_checkpoint():
    def make():
        adamw = AdamW([Vectors().w], lr=1e-2, weight_decay=0.3)
        return adamw, CorrectedDecay(adamw, OneCycleLR(adamw, max_lr=0.1, total_steps=20, cycle_momentum=False))

    adamw, schedule = make()
    adamw.step()
    for _ in range(12):
        schedule.step()
        group = adamw.param_groups[0]
        assert group["weight_decay"] == pytest.approx(0.3 * group["lr"] / 0.1)
    resumed, its_schedule = make()
    resumed.load_state_dict(adamw.state_dict())
    its_schedule.load_state_dict(schedule.state_dict())
    for each, its in ((adamw, schedule), (resumed, its_schedule)):
        each.step()
        its.step()
    assert resumed.param_groups[0]["weight_decay"] == adamw.param_groups[0]["weight_decay"]


@pytest.mark.parametrize("make", [lambda w: SGD([w], 0.1, weight_decay=0.1), lambda w: Adam([w], weight_decay=0.1)])
def test_corrected_decay_refuses_decay_in_the_gradient(make):
    optimizer = make(Vectors().w)
    with pytest.raises(ValueError, match=r"puts weight decay into the gradient.*decoupled"):
        CorrectedDecay(optimizer, StepLR(optimizer, 1))


SCHEDULES = {
    "none": lambda o: None,
    "LinearLR": lambda o: LinearLR(o, start_factor=1 / 30, total_iters=50),
    "OneCycleLR": lambda o: OneCycleLR(o, max_lr=1e-2, total_steps=100, cycle_momentum=False),
    "LambdaLR": lambda o: LambdaLR(o, lambda step: min(1.0, (step + 1) / 100)),
    "EquilibriumRescale": lambda o: EquilibriumRescale(o, LambdaLR(o, lambda step: min(1.0, (step + 1) / 100))),
}


@pytest.mark.parametrize("scheduler", SCHEDULES)
@pytest.mark.parametrize("start_first", [True, False])
def test_a_start_is_that_of_the_peak_rate_whichever_was_made_first(scheduler, start_first):
    model = Vectors()
    adamw = AdamW([model.w], lr=1e-2, weight_decay=0.1)
    if start_first:
        to_equilibrium_(model, adamw)
    SCHEDULES[scheduler](adamw)
    if not start_first:
        to_equilibrium_(model, adamw)
    at_peak = theory.AdamW(1e-2, 0.1).equilibrium(fan_in=FAN_IN).norm
    assert model.w.detach().norm(dim=1).numpy() == pytest.approx(np.full(ROWS, at_peak), rel=1e-5)


def test_rescaling_begins_at_the_peak_and_then_follows_the_rate():
    model = Vectors()
    adamw = AdamW([model.w], lr=1e-2, weight_decay=0.1)
    shares = [0.1, 0.5, 1.0, 0.25, 1.0, 0.25]
    schedule = EquilibriumRescale(adamw, LambdaLR(adamw, lambda step: shares[step]))
    before = model.w.detach().clone()
    adamw.step()
    for expected in (1.0, 1.0, 0.5, 1.0, 0.5):
        schedule.step()
        assert torch.allclose(model.w.detach(), before * expected, rtol=1e-6)


def test_rescaling_begins_when_the_rate_falls_where_it_passes_over_its_peak():
    """OneCycleLR reaches its max_lr between two steps if pct_start·total_steps is not whole."""
    model = Vectors()
    adamw = AdamW([model.w], lr=1e-2, weight_decay=0.1)
    one_cycle = OneCycleLR(adamw, max_lr=1e-2, total_steps=21, pct_start=0.31, cycle_momentum=False)
    schedule = EquilibriumRescale(adamw, one_cycle)
    before = model.w.detach().norm().item()
    adamw.step()
    for _ in range(19):
        schedule.step()
    expected = (adamw.param_groups[0]["lr"] / 1e-2) ** 0.5
    assert model.w.detach().norm().item() / before == pytest.approx(expected, rel=1e-5)


def test_a_start_reports_what_it_changed_and_the_loss():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        model[2].weight.zero_()
    x = torch.randn(32, 16)
    adamw = AdamW(param_groups(model, weight_decay=0.1), lr=1e-2)
    before = [layer.weight.detach().norm(dim=1).square().mean().sqrt().item() for layer in (model[0], model[2])]
    loss_before = model(x).square().mean().item()
    start = to_equilibrium_(model, adamw, loss=lambda m: m(x).square().mean())
    assert [layer.name for layer in start.layers] == ["0.weight", "2.weight"]
    assert [layer.before for layer in start.layers] == pytest.approx(before)
    assert start.layers[0].after == pytest.approx(model[0].weight.detach().norm(dim=1)[0].item(), rel=1e-5)
    assert start.layers[0].factor == pytest.approx(start.layers[0].after / before[0])
    assert (start.layers[1].after, start.layers[1].factor) == (0.0, 1.0)
    assert start.loss_before == pytest.approx(loss_before)
    assert start.loss_after == pytest.approx(model(x).square().mean().item())
    assert "0.weight" in str(start)
    assert "loss" in str(start)


def test_embeddings_start_at_equilibrium_only_on_request_and_only_where_they_decay():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Embedding(12, 16)
            self.hidden = nn.Linear(16, 16)
            self.head = nn.Linear(16, 12, bias=False)
            self.head.weight = self.token.weight

    equilibrium = theory.AdamW(1e-2, 0.1).equilibrium(fan_in=16).norm
    for make, embeddings, moves in (
        (lambda m: m.parameters(), False, False),
        (lambda m: m.parameters(), True, True),
        (lambda m: param_groups(m, weight_decay=0.1), True, False),
    ):
        model = Tied()
        before = model.token.weight.detach().clone()
        adamw = AdamW(make(model), lr=1e-2, weight_decay=0.1)
        left_out = embeddings and not moves
        with pytest.warns(UserWarning, match="token.weight") if left_out else nullcontext():
            start = to_equilibrium_(model, adamw, embeddings=embeddings)
        assert ("token.weight" in [layer.name for layer in start.layers]) == moves
        assert torch.equal(model.token.weight.detach(), before) != moves
        norms = model.token.weight.detach().norm(dim=1)
        assert not moves or norms.numpy() == pytest.approx(np.full(12, equilibrium), rel=1e-5)


def two_optimizers():
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.Linear(8, 4, bias=False), "b": nn.Linear(8, 4, bias=False)})
    muon = torch.optim.Muon(model.a.parameters(), lr=1e-2, weight_decay=0.1)
    adamw = torch.optim.AdamW(model.b.parameters(), lr=1e-3, weight_decay=0.1)
    return model, muon, adamw


@needs_muon
def test_two_optimizers_are_rescaled_each_by_its_own_rate():
    model, muon, adamw = two_optimizers()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    inner = [ExponentialLR(muon, 0.25), ExponentialLR(adamw, 0.81)]
    schedule = EquilibriumRescale([muon, adamw], inner, model=model)
    assert schedule.get_last_lr() == [1e-2, 1e-3]
    muon.step()
    adamw.step()
    schedule.step()
    torch.testing.assert_close(model.a.weight.detach(), 0.5 * before["a.weight"])
    torch.testing.assert_close(model.b.weight.detach(), 0.9 * before["b.weight"])
    assert schedule.get_last_lr() == pytest.approx([2.5e-3, 0.81e-3])


@needs_muon
def test_a_schedule_of_two_optimizers_is_saved_and_loaded():
    _, muon, adamw = two_optimizers()
    schedule = CorrectedDecay([muon, adamw], [ExponentialLR(each, 0.5) for each in (muon, adamw)])
    muon.step()
    adamw.step()
    schedule.step()
    saved = schedule.state_dict()
    _, *others = two_optimizers()
    again = CorrectedDecay(others, [ExponentialLR(each, 0.5) for each in others])
    again.load_state_dict(saved)
    for old, new in zip((muon, adamw), others, strict=True):
        new.load_state_dict(old.state_dict())
        new.step()
    schedule.step()
    again.step()
    rates = [[(group["lr"], group["weight_decay"]) for group in each.param_groups] for each in (muon, adamw)]
    assert rates == [[(2.5e-3, 0.025)], [(2.5e-4, 0.025)]]
    assert rates == [[(group["lr"], group["weight_decay"]) for group in each.param_groups] for each in others]


@needs_muon
def test_two_optimizers_start_at_equilibrium_together():
    model, muon, adamw = two_optimizers()
    started = to_equilibrium_(model, [muon, adamw])
    assert [layer.name for layer in started.layers] == ["a.weight", "b.weight"]
    expected = theory.Muon(1e-2, 0.1).equilibrium(shape=(4, 8)).norm
    assert model.a.weight.norm().item() == pytest.approx(expected, rel=1e-5)
    expected = theory.AdamW(1e-3, 0.1).equilibrium(fan_in=8).norm
    torch.testing.assert_close(model.b.weight.detach().norm(dim=1), torch.full((4,), expected))


def test_each_matrix_of_a_stack_starts_at_equilibrium():
    model = nn.Module()
    model.experts = nn.Parameter(torch.randn(3, 6, 4) * torch.tensor([0.1, 1.0, 10.0])[:, None, None])
    group = {"params": [model.experts], "use_muon": True, "lr": 0.02, "momentum": 0.95, "weight_decay": 0.1}
    single = type("SingleDeviceMuonWithAuxAdam", (torch.optim.Optimizer,), {"__module__": "muon"})
    to_equilibrium_(model, single([group], {}))
    expected = theory.Muon(0.02, 0.1).equilibrium(shape=(6, 4)).norm
    torch.testing.assert_close(model.experts.detach().norm(dim=(1, 2)), torch.full((3,), expected))


def test_corrected_decay_with_a_decay_of_lr_is_palms():
    adamw = AdamW([nn.Parameter(torch.ones(2, 8))], lr=0.01, weight_decay=0.01)
    schedule = CorrectedDecay(adamw, ExponentialLR(adamw, 0.5))
    (group,) = adamw.param_groups
    for lr in (0.01, 0.005, 0.0025):
        assert group["lr"] * group["weight_decay"] == pytest.approx(lr**2)
        adamw.step()
        schedule.step()


DECAYS = {
    "PaLM's, lr²": (
        theory.AdamW(0.02, 0.02, (0.9, 0.99), corrected_decay=True),
        lambda w: AdamW([w], lr=0.02, weight_decay=0.02, betas=(0.9, 0.99)),
        True,
    ),
    "independent of lr, by the schedule": (
        theory.AdamW(0.02, 4e-3 / 0.02, (0.9, 0.99)),
        lambda w: AdamW([w], lr=0.02, weight_decay=4e-3 / 0.02, betas=(0.9, 0.99)),
        False,
    ),
}


@pytest.mark.parametrize("name", DECAYS)
def test_a_run_with_another_decay_is_forecast_within_two_percent(name):
    rule, make, corrected = DECAYS[name]
    generator = torch.Generator().manual_seed(0)
    w = nn.Parameter(torch.randn(128, 64, generator=generator))
    w.data *= 2.0 / w.data.norm(dim=1, keepdim=True)
    optimizer = make(w)
    schedule = theory.cosine(900, warmup=60)
    scheduler = LambdaLR(optimizer, schedule)
    # Made at the first step of the warmup: lr_max is the rate that the schedule multiplies.
    angles, norms = walk(
        w, optimizer, 900, generator, schedule=CorrectedDecay(optimizer, scheduler) if corrected else scheduler
    )
    course = theory.forecast(rule, schedule, norm=2.0, fan_in=64)
    decays = [rule.weight_decay * lr * (lr / rule.lr if corrected else 1.0) for lr in course.lr]
    assert decays == pytest.approx(course.lr**2 if corrected else 4e-3 * schedule(np.arange(900)), rel=1e-9)
    assert norms[50:] == pytest.approx(course.norm[50:], rel=0.02)
    seen, predicted = (np.array(values)[50:].reshape(-1, 50).mean(1) for values in (angles, course.angular_update))
    assert seen == pytest.approx(predicted, rel=0.02)


def test_weights_without_a_norm_to_settle_at_are_left_as_they_are_and_it_is_said():
    model = nn.Linear(8, 4, bias=False)
    before = model.weight.detach().clone()
    grows = torch.optim.Adafactor(model.parameters(), lr=0.1, weight_decay=0.01)
    with pytest.raises(ValueError, match="Adafactor with these settings has no equilibrium norm for 'weight'"):
        to_equilibrium_(model, grows)
    assert torch.equal(model.weight, before)


def test_a_start_that_changes_nothing_warns_and_names_the_embeddings_left_out():
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4))
    groups = param_groups(model, weight_decay=0.1)
    before = model[0].weight.detach().clone()
    with pytest.warns(
        UserWarning, match=r"did not change 0.weight, which has no weight decay .*'0.weight': \{'weight_decay'"
    ):
        start = to_equilibrium_(model, RotationalAdamW(groups, lr=1e-3), embeddings=True)
    assert [layer.name for layer in start.layers] == ["1.weight"]
    assert torch.equal(model[0].weight, before)
    with pytest.warns(UserWarning, match="changed nothing, because no weight of the model both rotates and decays"):
        to_equilibrium_(model, torch.optim.AdamW(model.parameters(), weight_decay=0.0))


def test_embeddings_that_decay_start_at_equilibrium_by_the_remedy_of_the_warning():
    model = nn.Sequential(nn.Embedding(9, 512), nn.Linear(512, 4))
    groups = param_groups(model, weight_decay=0.1, overrides={"0.weight": {"weight_decay": 0.1}})
    start = to_equilibrium_(model, RotationalAdamW(groups, lr=1e-3), embeddings=True)
    assert [(layer.name, round(layer.after, 3)) for layer in start.layers] == [("0.weight", 1.599), ("1.weight", 1.599)]
