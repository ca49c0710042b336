"""Adafactor's closed forms and forecast, against torch's own."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from gyroscope.theory import Adafactor, AdamW, constant, cosine, forecast
from gyroscope.theory.law import Weights
from tests.optim.torch_walk import angle, walk

C = 64
BLOCK = 50
# lr, weight decay, initial norm: grows, grows against decay, falls until eps2 holds it, starts there, and a rate so
# large that 1/sqrt(t) limits it from step 25 on.
COURSES = {
    "grows": (0.03, 0.0, 2.0, constant(1000)),
    "grows against decay, warmup and cosine": (0.05, 0.005, 2.0, cosine(1000, warmup=50)),
    "falls to eps2": (0.02, 0.5, 1.0, constant(600)),
    "falls below eps2, cosine": (0.02, 0.5, 0.02, cosine(600, warmup=50)),
    "limited by 1/sqrt(t)": (0.2, 0.0, 1.0, constant(400)),
}


def torch_walk(lr, weight_decay, norm, schedule):
    generator = torch.Generator().manual_seed(0)
    w = nn.Parameter(torch.randn(96, C, generator=generator))
    w.data *= norm / w.data.norm(dim=1, keepdim=True)
    optimizer = torch.optim.Adafactor([w], lr=lr, weight_decay=weight_decay)
    angles, norms = walk(w, optimizer, schedule.steps, generator, schedule=LambdaLR(optimizer, schedule))
    return np.array(angles), np.array(norms)


@pytest.mark.parametrize("name", COURSES)
def test_norm_and_rotation_are_within_two_percent_of_torchs_adafactor(name):
    lr, weight_decay, start, schedule = COURSES[name]
    angles, norms = torch_walk(*COURSES[name])
    course = forecast(Adafactor(lr, weight_decay), schedule, norm=start, fan_in=C)
    assert norms == pytest.approx(course.norm, rel=0.02)
    seen, predicted = (values.reshape(-1, BLOCK).mean(1) for values in (angles, course.angular_update))
    assert seen == pytest.approx(predicted, rel=0.02)


def test_the_comparison_tells_a_step_that_is_not_relative_to_the_norm_apart():
    lr, weight_decay, start, schedule = COURSES["grows"]
    _, norms = torch_walk(*COURSES["grows"])
    other = forecast(Adafactor(lr, weight_decay, scale_parameter=False), schedule, norm=start, fan_in=C)
    assert abs(norms[-1] / other.norm[-1] - 1) > 0.2


def test_with_decay_that_wins_a_walk_of_torchs_stays_at_the_equilibrium_below_eps2():
    rule = Adafactor(0.02, 0.5)
    eq = rule.equilibrium(fan_in=C)
    assert eq.norm / C**0.5 < rule.eps2
    angles, norms = torch_walk(rule.lr, rule.weight_decay, eq.norm, constant(600))
    assert np.sqrt(np.mean(norms**2)) == pytest.approx(eq.norm, rel=0.01)
    assert np.mean(angles) == pytest.approx(eq.angular_update, rel=0.01)


def test_a_scale_invariant_layer_turns_as_forecast():
    """Behind batch norm, on random labels: noise that never fades, whose gradients differ from row to row."""
    torch.manual_seed(0)
    layer = nn.Linear(32, 64, bias=False)
    network = nn.Sequential(layer, nn.BatchNorm1d(64, affine=False), nn.ReLU(), nn.Linear(64, 10).requires_grad_(False))
    start = layer.weight.detach().norm(dim=1).square().mean().sqrt().item()
    optimizer = torch.optim.Adafactor([layer.weight], lr=0.03)
    angles, norms = [], []
    for _ in range(400):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(torch.randn(64, 32)), torch.randint(10, (64,))).backward()
        before = layer.weight.detach().clone()
        optimizer.step()
        angles.append(angle(before, layer.weight.detach()).square().mean().sqrt().item())
        norms.append(layer.weight.detach().norm(dim=1).square().mean().sqrt().item())
    course = forecast(Adafactor(0.03), steps=400, norm=start, fan_in=32)
    assert norms[-1] == pytest.approx(course.norm[-1], rel=0.02)
    assert np.mean(angles[100:]) == pytest.approx(course.angular_update[100:].mean(), rel=0.05)


def test_a_vector_is_unfactored_and_turns_alike():
    generator = torch.Generator().manual_seed(0)
    w = nn.Parameter(torch.randn(4096, generator=generator))
    optimizer = torch.optim.Adafactor([w], lr=0.03)
    angles = []
    for _ in range(200):
        before = w.detach().clone()[None]
        g = torch.randn(4096, generator=generator)
        w.grad = g - before[0] * (g @ before[0]) / before.square().sum()
        optimizer.step()
        angles.append(angle(before, w.detach()[None]).item())
    course = forecast(Adafactor(0.03), steps=200, norm=64.0, fan_in=4096)
    assert np.mean(angles) == pytest.approx(course.angular_update.mean(), rel=0.02)


def test_rows_of_different_norms_become_alike():
    """‖w_i‖² over its mean goes to 1 by e^(-rate²·t): rows share a step that is relative to the RMS of all.

    Somewhat later, for v lags most in the rows that grow fastest.
    """
    generator = torch.Generator().manual_seed(0)
    w = nn.Parameter(torch.randn(64, C, generator=generator))
    w.data *= torch.where(torch.arange(64) < 32, 0.5, 1.5)[:, None] / w.data.norm(dim=1, keepdim=True)
    optimizer = torch.optim.Adafactor([w], lr=0.05)
    squares = w.detach().square().sum(1)
    before = 1 - squares[:32].mean() / squares.mean()
    walk(w, optimizer, 300, generator)
    squares = w.detach().square().sum(1)
    course = forecast(Adafactor(0.05), steps=300, norm=1.0, fan_in=C)
    left = math.exp(-np.log1p(np.tan(course.angular_update) ** 2).sum())
    assert 1 < (1 - squares[:32].mean() / squares.mean()).item() / (before.item() * left) < 1.2


def test_growth_and_decay_meet_at_one_angle():
    wd = 0.1
    lr = 2 * wd / (1 + wd**2)  # where lr² = a(2-a)
    below, above = (Adafactor(factor * lr, wd).equilibrium(fan_in=C) for factor in (1 - 1e-9, 1 + 1e-9))
    assert below.angular_update == pytest.approx(above.angular_update, rel=1e-6)
    assert below.norm == pytest.approx(1e-3 * C**0.5, rel=1e-6)
    assert above.norm == math.inf
    assert math.cos(below.angular_update) == pytest.approx(1 - lr * wd)


def test_without_scale_it_is_adamw_without_momentum():
    mine, known = Adafactor(1e-2, 0.5, scale_parameter=False), AdamW(1e-2, 0.5, (0.0, 0.999))
    for name in ("angular_update", "norm", "update_rms", "timescale"):
        expected = getattr(known.equilibrium(fan_in=C), name)
        assert getattr(mine.equilibrium(fan_in=C), name) == pytest.approx(expected, rel=1e-9)
    course = forecast(mine, steps=3000, norm=0.1, fan_in=C)
    assert course.norm[-1] == pytest.approx(mine.equilibrium(fan_in=C).norm, rel=0.01)


def test_the_rate_is_limited_by_the_number_of_steps_taken():
    course = forecast(Adafactor(0.1), steps=400, norm=1.0, fan_in=C)
    assert np.tan(course.equilibrium_angular_update[[0, 99, 399]]) == pytest.approx([0.1, 0.1, 0.05], rel=1e-6)
    later = Adafactor(0.1, steps_done=399)
    assert later.equilibrium().angular_update == pytest.approx(course.equilibrium_angular_update[399])
    assert forecast(later, steps=2, norm=1.0, fan_in=C).angular_update[0] == pytest.approx(0.05, rel=1e-3)
    free = forecast(Adafactor(0.1, capped=False), steps=400, norm=1.0, fan_in=C)
    assert np.ptp(free.equilibrium_angular_update) == 0


def test_what_the_inputs_do_not_determine_is_none_and_bad_input_is_quoted():
    eq = Adafactor(0.1).at(0.1, Weights())
    assert eq.norm is None
    assert eq.update_rms is None
    for wrong in ({"d": 0.5}, {"beta2_decay": 0.1}, {"eps2": -1.0}, {"steps_done": -1}):
        ((name, value),) = wrong.items()
        with pytest.raises(ValueError, match=f"{name}={value!r}"):
            Adafactor(0.1, **wrong)
    with pytest.raises(ValueError, match="Adafactor needs fan_in"):
        forecast(Adafactor(0.1), steps=10, norm=1.0)
