"""The average of update lengths under noise: expected squares against simulation, and rotation that does not lag."""

import math

import pytest
import torch
from torch import nn

from gyroscope.optim import Lion, Rotational, RotationalAdamW, RotationalLion, RotationalSGD, follow
from gyroscope.optim.update_average import noise_average
from tests import reference
from tests.optim.test_reference import distance, recorded, run

STEPS = 60
ANGLE = math.sqrt(2 * 1e-2 * 0.5 * 0.1 / 1.9)
ADAMW = {"lr": 1e-2, "weight_decay": 0.5}


@pytest.mark.parametrize(
    ("formula", "make"),
    [
        ("adam", lambda p: torch.optim.AdamW(p, lr=1.0, weight_decay=0.0, betas=(0.8, 0.999))),
        ("sgd", lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.8)),
        ("sgd", lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.8, nesterov=True)),
        ("sgd", lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.8, dampening=0.5)),
        ("sgd", lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.0, dampening=0.5)),
        ("lion", lambda p: Lion(p, lr=1.0)),
    ],
    ids=["adam", "sgd", "nesterov", "dampening", "no momentum", "lion"],
)
def test_updates_of_noise_have_the_expected_square(formula, make):
    torch.manual_seed(0)
    w = nn.Parameter(torch.zeros(40_000))
    optimizer = make([w])
    group = {**optimizer.param_groups[0], "beta": 0.99}
    for t in range(1, 13):
        before = w.detach().clone()
        # Signs: their squares are 1, so that Adam's v is exact from the first step on.
        w.grad = torch.randn_like(w).sign()
        optimizer.step()
        measured = float((w.detach() - before).square().mean())
        # Squares of 40,000 entries: a standard error of 0.7 %.
        assert measured == pytest.approx(noise_average(formula, group, t).square, rel=0.04)


def test_the_average_forgets_as_fast_as_squared_updates_can_shrink_and_never_slower_than_beta():
    assert noise_average("adam", {"betas": (0.9, 0.999), "beta": 0.99}, 5).beta == pytest.approx(0.81)
    assert noise_average("adam", {"betas": (0.9, 0.999), "beta": 0.5}, 5).beta == 0.5
    assert noise_average("k_adam", {"beta": 0.99}, 5) == (0.99, 1.0)


def rotation_over_angle(optimizer, w, grads):
    """RMS angle of each step over the equilibrium angle."""
    ratios = []
    for grad in grads:
        before = w.detach() / w.detach().norm(dim=1, keepdim=True)
        w.grad = grad
        optimizer.step()
        chord = (w.detach() / w.detach().norm(dim=1, keepdim=True) - before).norm(dim=1)
        ratios.append(float((2 * torch.asin(chord / 2)).square().mean().sqrt()) / ANGLE)
    return torch.tensor(ratios)


def centred_weight(fan_in=128):
    torch.manual_seed(0)
    w = torch.randn(64, fan_in)
    return nn.Parameter(w - w.mean(1, keepdim=True))


@pytest.mark.parametrize(
    ("half_life", "plain", "noise"),
    [
        (None, (0.80, 0.96), (1.00, 1.00)),
        (100, (0.68, 0.62), (0.98, 0.98)),
        (50, (0.55, 0.27), (0.96, 0.95)),
    ],
)
def test_rotation_keeps_to_its_angle_where_the_plain_average_lags(half_life, plain, noise):
    for average, expected in (("plain", plain), ("noise", noise)):
        w = centred_weight()
        sizes = [1.0 if half_life is None else 0.5 ** (t / half_life) for t in range(250)]
        optimizer = RotationalAdamW([w], **ADAMW, update_average=average)
        ratios = rotation_over_angle(optimizer, w, (size * torch.randn(64, 128) for size in sizes))
        assert float(ratios[50:100].mean()) == pytest.approx(expected[0], abs=0.015)
        assert float(ratios[200:250].mean()) == pytest.approx(expected[1], abs=0.015)


def test_aligned_gradients_rotate_too_far_only_while_the_momentum_fills():
    w = centred_weight()
    aligned = torch.randn(64, 128)
    optimizer = RotationalAdamW([w], **ADAMW, update_average="noise")
    ratios = rotation_over_angle(optimizer, w, [aligned] * 40)
    assert float(ratios[:30].mean()) == pytest.approx(1.08, abs=0.02)
    assert float(ratios[:30].max()) == pytest.approx(1.20, abs=0.02)
    assert float(ratios[30:].mean()) < 1.05


@pytest.mark.parametrize(
    ("make", "direction", "lr", "wd", "l2"),
    [
        (
            lambda p: RotationalSGD(p, 0.1, weight_decay=1e-3, update_average="noise"),
            reference.SGDDirection(), 0.1, 1e-3, True,
        ),
        (lambda p: RotationalLion(p, 2e-4, update_average="noise"), reference.LionDirection(), 2e-4, 1.0, False),
        (
            lambda p: Rotational(torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-3), update_average="noise"),
            reference.SGDDirection(), 0.1, 1e-3, True,
        ),
        (
            lambda p: Rotational(torch.optim.AdamW(p, 2e-3, weight_decay=0.1), update_average="noise"),
            reference.AdamWDirection(), 2e-3, 0.1, False,
        ),
    ],
    ids=["RotationalSGD", "RotationalLion", "Rotational(SGD)", "Rotational(AdamW)"],
)  # fmt: skip
def test_each_step_is_the_twins_step(make, direction, lr, wd, l2):
    weights, grads = recorded()
    twin = reference.RotationalTwin([w.clone() for w in weights], direction, lr, wd, l2=l2, noise=True)
    for now, stepped in zip(grads, run(make, torch.float64), strict=True):
        twin.step(now)
        for p, expected in zip(stepped, twin.weights, strict=True):
            assert distance(p, expected) <= 1e-12


@pytest.mark.parametrize("rotational", [RotationalAdamW, Rotational])
def test_the_state_of_an_adamw_goes_on_with_the_momentum_that_it_has(rotational):
    w = centred_weight()
    adamw = torch.optim.AdamW([w], **ADAMW)
    for _ in range(50):
        w.grad = torch.randn(64, 128)
        adamw.step()
    if rotational is Rotational:
        optimizer = Rotational(torch.optim.AdamW([w], **ADAMW), update_average="noise")
    else:
        optimizer = RotationalAdamW([w], **ADAMW, update_average="noise")
    optimizer.load_state_dict(adamw.state_dict())
    optimizer.param_groups[0]["centre"] = False
    ratios = rotation_over_angle(optimizer, w, (torch.randn(64, 128) for _ in range(10)))
    assert float(ratios.min()) > 0.9
    assert float(ratios.max()) < 1.1


def test_a_follower_undoes_the_average_that_the_optimizer_has():
    angles = []
    for average in ("plain", "noise"):
        w = centred_weight()
        layer = nn.Linear(128, 64, bias=False)
        layer.weight = w
        optimizer = RotationalAdamW(layer, **ADAMW, update_average=average)
        follow(optimizer, layer)
        angles.append(rotation_over_angle(optimizer, w, (torch.randn(64, 128) for _ in range(40))))
    torch.testing.assert_close(*angles, rtol=0.03, atol=0.0)


def test_an_unknown_average_is_an_error_with_the_choices():
    with pytest.raises(ValueError, match=r"update_average='longer' is unknown: choose 'plain' \(RE's\) or 'noise'"):
        RotationalAdamW([nn.Parameter(torch.ones(2, 8))], update_average="longer")
