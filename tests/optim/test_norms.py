"""Norms that take part in the step: their drift under noise is removed, they settle, and nothing breaks them."""

import copy

import pytest
import torch
from torch import nn

from gyroscope.optim import Rotational, RotationalAdamW, RotationalLion, RotationalSGD, follow
from gyroscope.theory import AdamW
from gyroscope.theory.norm_drift import noise_drift
from tests.optim.torch_walk import noise_gradient

ADAMW = {"lr": 5e-3, "weight_decay": 1.0}
NUMBER = 0.02


def vectors(count=64, fan_in=128, dtype=torch.float64):
    w = torch.randn(count, fan_in, generator=torch.Generator().manual_seed(0), dtype=dtype)
    w -= w.mean(1, keepdim=True)
    return nn.Parameter(w / w.norm(dim=1, keepdim=True))


def growth(p, optimizer, steps=700, start=300, matrix=False):
    """Mean growth of log n per step under noise that is tangent to the vectors, from step `start` on."""
    generator = torch.Generator().manual_seed(1)
    before = p.detach().clone()
    for step in range(steps + start):
        if step == start:
            before = p.detach().clone()
        rows = p.detach().view(1, -1) if matrix else p.detach()
        p.grad = noise_gradient(rows, generator).view_as(p)
        optimizer.step()
    ratio = p.detach().norm(dim=1) / before.norm(dim=1) if not matrix else p.detach().norm() / before.norm()
    return float(ratio.log().mean()) / steps


def special(p, **options):
    return Rotational(torch.optim.Adam(p, lr=5e-3, weight_decay=1e-4), angular_update=AdamW(5e-3, 1.0), **options)


def nadam(p, **options):
    inner = torch.optim.NAdam(p, lr=5e-3, weight_decay=1.0, decoupled_weight_decay=True, momentum_decay=0.0)
    return Rotational(inner, **options)


def by_a_number(p, **options):
    return Rotational(torch.optim.AdamW(p, lr=1e-3), angular_update=NUMBER, **options)


# With the decay per step, of which the drift is nearly all at usual momenta: (τ-1)/τ.
RULES = {
    "AdamW at β1 = 0.5": (lambda p, **options: RotationalAdamW(p, betas=(0.5, 0.999), **ADAMW, **options), 5e-3),
    "AdamW": (lambda p, **options: RotationalAdamW(p, **ADAMW, **options), 5e-3),
    "AdamW at β1 = 0.95": (lambda p, **options: RotationalAdamW(p, betas=(0.95, 0.999), **ADAMW, **options), 5e-3),
    "SGD": (lambda p, **options: RotationalSGD(p, 0.1, 0.9, weight_decay=5e-3, **options), 5e-3),
    "Nesterov": (lambda p, **options: RotationalSGD(p, 0.1, 0.9, True, weight_decay=5e-3, **options), 5e-3),
    "Lion": (lambda p, **options: RotationalLion(p, 1e-3, **options), 1e-3),
    "NAdam": (nadam, 5e-3),
    "special": (special, 5e-3),
    "a number": (by_a_number, NUMBER**2 * 19 / 2),
}


@pytest.mark.parametrize("name", RULES)
def test_a_free_norm_does_not_drift_under_noise(name):
    make, decay = RULES[name]
    p = vectors()
    assert abs(growth(p, make([p], norms="free"))) < 0.01 * decay


def test_muons_matrix_does_not_drift_under_noise():
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(64, 64))
    inner = torch.optim.Muon([p], lr=5e-3, weight_decay=1.0)
    optimizer = Rotational(inner, granularity="tensor", norms="free")
    # The theory knows τ of orthogonalised noise to 2 %.
    assert abs(growth(p, optimizer, matrix=True)) < 0.02 * 5e-3


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_drift_is_that_of_the_angle_that_a_vector_has(factor):
    p = vectors()
    optimizer = RotationalAdamW([p], norms="free", **ADAMW)
    optimizer.angle_factors = {p: torch.cat([torch.ones(32), factor * torch.ones(32)])}
    assert abs(growth(p, optimizer)) < 0.01 * 5e-3 * factor**2


def test_a_follower_and_a_schedule_change_the_angle_and_with_it_the_drift():
    layer = nn.Linear(128, 64, bias=False, dtype=torch.float64)
    layer.weight = vectors()
    optimizer = RotationalAdamW(layer, norms="free", **ADAMW)
    follow(optimizer, layer)
    assert abs(growth(layer.weight, optimizer)) < 0.01 * 5e-3
    p = vectors()
    inner = torch.optim.AdamW([p], **ADAMW)
    inner.param_groups[0]["angle_schedule"] = lambda t: 0.5
    assert abs(growth(p, Rotational(inner, norms="free"))) < 0.01 * 5e-3 / 4


def test_the_drift_that_is_subtracted_is_what_a_literal_walk_shows():
    """d ← n(d + k·Δ⊥) of an average Δ of tangent noise."""
    generator = torch.Generator().manual_seed(0)
    d = torch.randn(64, 128, generator=generator, dtype=torch.float64)
    d /= d.norm(dim=1, keepdim=True)
    delta = torch.zeros_like(d)
    outwards, tangents = [], []
    for _ in range(1200):
        x = torch.randn(d.shape, generator=generator, dtype=d.dtype)
        x -= (x * d).sum(1, keepdim=True) * d
        delta = 0.9 * delta + 0.1 * x
        along = (delta * d).sum(1, keepdim=True)
        across = 0.01 * (delta - along * d)
        outwards.append(0.01 * along.mean())
        tangents.append(across.square().sum(1).mean())
        d = d + across
        d /= d.norm(dim=1, keepdim=True)
    drift = noise_drift(float(torch.stack(tangents[200:]).mean()), 18.0, 10.0)
    assert float(torch.stack(outwards[200:]).mean()) == pytest.approx(drift, rel=0.01)


@pytest.mark.parametrize("start", [0.3, 3.0])
def test_a_settling_norm_comes_to_that_of_adamws_equilibrium(start):
    # v forgets the gradients of the initial norm in 100 steps.
    betas = (0.9, 0.99)
    settled = AdamW(betas=betas, **ADAMW).equilibrium(fan_in=128).norm
    p = vectors()
    with torch.no_grad():
        p.mul_(start * settled)
    growth(p, RotationalAdamW([p], betas=betas, norms="settling", update_average="noise", **ADAMW), steps=900)
    assert float(p.detach().norm(dim=1).mean()) == pytest.approx(settled, rel=0.03)


def test_a_settling_norm_comes_to_that_of_sgds_equilibrium():
    settled = 0.1 / (2 * 5e-3 * 0.1)  # ‖ω‖⁴ = lr·g̃²/(2λ(1-α)), g̃ = 1
    p = vectors()
    with torch.no_grad():
        p.mul_(settled**0.25 / 2)
    growth(p, RotationalSGD([p], 0.1, 0.9, weight_decay=5e-3, norms="settling"), steps=900)
    assert float(p.detach().norm(dim=1).mean()) == pytest.approx(settled**0.25, rel=0.05)


@pytest.mark.parametrize("norms", ["free", "settling"])
def test_one_step_changes_a_norm_by_the_angle_at_most(norms):
    p = vectors(8, 32)
    optimizer = RotationalAdamW([p], norms=norms, **ADAMW)
    angle = AdamW(**ADAMW).equilibrium(leading_order=True).angular_update
    for step in range(30):
        before = p.detach().norm(dim=1)
        p.grad = (-1) ** (step // 10) * 100 * p.detach()
        p.grad += torch.randn_like(p)
        optimizer.step()
        changes = (p.detach().norm(dim=1) / before).log().abs()
        assert float(changes.max()) <= angle * (1 + 1e-9)
    assert float(changes.max()) > angle / 2


@pytest.mark.parametrize("norms", ["free", "settling"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("outward", [1.0, -1.0])
@pytest.mark.filterwarnings("ignore:the angular update is below")
def test_a_norm_neither_overflows_nor_dies(norms, dtype, outward):
    p = vectors(4, 16, dtype)
    # A twentieth per step, and thousands of steps outwards or inwards.
    optimizer = Rotational(torch.optim.SGD([p], 1.0, weight_decay=1e-6), angular_update=0.2, norms=norms, centre=False)
    generator = torch.Generator().manual_seed(0)
    for _ in range(900):
        with torch.no_grad():
            direction = p.float() / p.float().norm(dim=1, keepdim=True)
            p.grad = (torch.randn(p.shape, generator=generator) - 100 * outward * direction).to(dtype)
        optimizer.step()
    assert p.isfinite().all()
    assert (p.detach().float().norm(dim=1) > 0).all()
    for _ in range(20):
        p.grad = torch.randn(p.shape, generator=generator).to(dtype)
        before = p.detach().clone()
        optimizer.step()
        assert p.isfinite().all()
        assert not torch.equal(p, before)


def test_vectors_without_gradients_keep_their_norm():
    p = vectors(8, 32)
    optimizer = RotationalAdamW([p], norms="settling", **ADAMW)
    before = p.detach().clone()
    for _ in range(20):
        p.grad = torch.zeros_like(p)
        optimizer.step()
    torch.testing.assert_close(p.detach(), before)


@pytest.mark.parametrize("norms", ["free", "settling"])
def test_zero_rows_and_rows_of_one_entry_take_the_plain_step(norms):
    torch.manual_seed(0)
    shapes = ((3, 1), (3, 8))
    made = {}
    for option in ({"norms": norms}, {"granularity": "none"}):
        params = [nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(2))) for shape in shapes]
        with torch.no_grad():
            params[1][1] = 0
        optimizer = RotationalAdamW([{"params": params, **option}], **ADAMW)
        generator = torch.Generator().manual_seed(3)
        for _ in range(4):
            for p in params:
                p.grad = torch.randn(p.shape, generator=generator)
            optimizer.step()
        made[next(iter(option))] = params
    torch.testing.assert_close(made["norms"][0], made["granularity"][0])
    torch.testing.assert_close(made["norms"][1][1], made["granularity"][1][1])


@pytest.mark.parametrize("norms", ["free", "settling"])
@pytest.mark.parametrize("lr", [0.0, torch.tensor(0.0)])
def test_lr_zero_moves_nothing(norms, lr):
    for make in (
        lambda p: RotationalAdamW(p, lr=lr, weight_decay=1.0, norms=norms),
        lambda p: Rotational(torch.optim.AdamW(p, lr=lr, weight_decay=1.0), norms=norms),
    ):
        p = vectors(8, 32)
        optimizer = make([p])
        before = p.detach().clone()
        for _ in range(3):
            p.grad = torch.randn_like(p)
            optimizer.step()
        assert torch.equal(p, before)


@pytest.mark.parametrize(("saved", "present"), [("fixed", "settling"), ("free", "fixed"), ("settling", "free")])
def test_states_load_into_other_norms_and_go_on(saved, present):
    """The saved option is loaded, as all options are, and may be set again."""
    p, q = vectors(8, 32), vectors(8, 32)
    first = RotationalAdamW([p], norms=saved, **ADAMW)
    growth(p, first, steps=5, start=5)
    second = RotationalAdamW([q], norms=present, **ADAMW)
    second.load_state_dict(first.state_dict())
    assert second.param_groups[0]["norms"] == saved
    with torch.no_grad():
        q.copy_(p)
    second.param_groups[0]["norms"] = present
    straight, r = copy.deepcopy((first, p))
    straight = RotationalAdamW([r], norms=present, **ADAMW)
    straight.load_state_dict(copy.deepcopy(first.state_dict()))
    straight.param_groups[0]["norms"] = present
    assert growth(q, second, steps=5, start=0) == growth(r, straight, steps=5, start=0)
    norms = q.detach().norm(dim=1)
    torch.testing.assert_close(second.state[q]["radius"], norms, rtol=1e-9, atol=0.0)


def test_averaged_weights_that_are_put_in_place_are_stepped_from_their_own_norm():
    p = vectors(8, 32)
    optimizer = RotationalAdamW([p], norms="settling", **ADAMW)
    average = torch.optim.swa_utils.AveragedModel(nn.ParameterList([p]))
    for _ in range(30):
        growth(p, optimizer, steps=1, start=0)
        average.update_parameters(nn.ParameterList([p]))
    with torch.no_grad():
        p.copy_(average.module[0] * 0.5)
    norms = p.detach().norm(dim=1)
    growth(p, optimizer, steps=1, start=0)
    assert float((p.detach().norm(dim=1) / norms).log().abs().max()) < 0.03


def test_the_radius_is_the_norm_in_float32_also_of_bfloat16_weights():
    p = vectors(16, 64, torch.bfloat16)
    optimizer = RotationalAdamW([p], norms="settling", stochastic_rounding=True, **ADAMW)
    for _ in range(200):
        p.grad = torch.randn_like(p)
        optimizer.step()
    radius = optimizer.state[p]["radius"]
    assert radius.dtype == torch.float32
    torch.testing.assert_close(p.detach().float().norm(dim=1), radius, rtol=2e-3, atol=0.0)


def test_an_unknown_form_is_an_error_with_the_choices():
    with pytest.raises(ValueError, match="norms='loose' is unknown: choose 'fixed'"):
        RotationalAdamW([vectors(2, 8)], norms="loose")


def test_settling_without_an_equilibrium_is_refused():
    p = vectors(2, 8)
    with pytest.raises(ValueError, match="weight_decay=0 in a group that rotates"):
        RotationalAdamW([p], weight_decay=0.0, norms="settling")
    inner = torch.optim.AdamW([p], weight_decay=0.0)
    with pytest.raises(ValueError, match=r"weight_decay=0 and angular_update=0.01: without decay .* norms='free'"):
        Rotational(inner, angular_update=0.01, norms="settling")


@pytest.mark.parametrize("norms", ["free", "settling"])
def test_hyperball_keeps_its_norms(norms):
    inner = torch.optim.AdamW([vectors(2, 8)], weight_decay=0.0)
    with pytest.raises(ValueError, match=rf"norms='{norms}' with mode='hyperball', which keeps the norms"):
        Rotational(inner, mode="hyperball", norms=norms)


def test_updates_whose_correlation_is_unknown_are_refused():
    inner = torch.optim.Adafactor([vectors(2, 8)], lr=1e-2, weight_decay=0.1)
    with pytest.raises(ValueError, match="needs the correlation of updates, which is unknown for Adafactor"):
        Rotational(inner, angular_update=0.01, norms="free")
