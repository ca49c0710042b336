"""Cautious decay: its average on Gaussian entries, and equilibria and forecasts against literal walks."""

import numpy as np
import pytest
import torch
from gyroscope_lab.simulate import random_walk
from torch import nn

from gyroscope.theory import AdamW, Lion, Muon, NAdam, constant, cosine, forecast
from gyroscope.theory.cautious import masked_decay
from tests import walk

C = 128
STEPS = 900


def cautious(literal, weight_decay):
    """A literal rule made without decay, and the decay beside it: mask = [u·w ≥ 0]."""

    def step(w, g, state, lr, t):
        moved = literal(w, g, state, lr, t)
        return moved - lr * weight_decay * np.where((w - moved) * w >= 0, w, 0.0)

    return step


RULES = {
    "AdamW": (AdamW(0.02, 0.25, cautious_decay=True), cautious(walk.adamw(0.0), 0.25)),
    "AdamW, corrected": (AdamW(0.02, 0.25, corrected_decay=True, cautious_decay=True), None),
    "NAdam": (NAdam(0.02, 0.25, cautious_decay=True), cautious(walk.nadam(0.0), 0.25)),
    "Lion": (Lion(0.002, 2.0, cautious_decay=True), cautious(walk.lion(0.0), 2.0)),
}
WALKED = [name for name, (_, literal) in RULES.items() if literal is not None]


def test_of_gaussian_entries_the_masked_weight_is_as_stated():
    rng = np.random.default_rng(0)
    for r in (-0.6, -0.1, 0.0, 0.4):
        w, other = rng.standard_normal((2, 1_000_000))
        u = 0.5 * (r * w + (1 - r * r) ** 0.5 * other)
        masked = np.where(u * w >= 0, w, 0.0)
        decay, push, noise, overlap = masked_decay(1.0, r, 2.0)
        left = masked - decay * w - (push - 1) * u
        assert np.mean(left * w) == pytest.approx(0, abs=0.005)
        assert np.mean(left * u) == pytest.approx(0, abs=0.005)
        assert np.mean(left**2) == pytest.approx(noise, rel=0.01)
        assert np.mean(left * np.sign(u)) == pytest.approx(overlap, abs=0.003)


@pytest.mark.parametrize("name", WALKED)
def test_the_equilibrium_is_within_two_percent_of_a_random_walk(name):
    rule, literal = RULES[name]
    eq = rule.equilibrium(fan_in=C)
    seen = walk.walk(literal, np.full(1500, rule.lr), eq.norm, dim=C)
    assert np.sqrt((seen.norm[500:] ** 2).mean()) == pytest.approx(eq.norm, rel=0.02)
    assert seen.angle[500:].mean() == pytest.approx(eq.angular_update, rel=0.02)
    # Half of the decay alone would be seen to be wrong.
    half = rule.replace(weight_decay=rule.weight_decay / 2, cautious_decay=False).equilibrium(fan_in=C)
    assert abs(np.sqrt((seen.norm[500:] ** 2).mean()) / half.norm - 1) > 0.05


# Largest error of a forecast's norm and rotation at a = 0.001. Its decay is that of equilibrium from the start.
ERRORS = {"AdamW": (0.015, 0.13), "NAdam": (0.015, 0.13), "Lion": (0.045, 0.25)}


@pytest.mark.parametrize("start", [0.3, 3.0])
@pytest.mark.parametrize("name", WALKED)
def test_the_forecast_is_near_a_random_walk_on_the_way_to_equilibrium(name, start):
    rule = RULES[name][0]
    rule = rule.replace(weight_decay=1e-3 / rule.lr)
    literal = cautious({"AdamW": walk.adamw, "NAdam": walk.nadam, "Lion": walk.lion}[name](0.0), rule.weight_decay)
    norm = start * rule.equilibrium(fan_in=C).norm
    course = forecast(rule, cosine(STEPS, warmup=60), norm=norm, fan_in=C)
    seen = walk.walk(literal, course.lr, norm, dim=C)
    norm_error, angle_error = ERRORS[name]
    assert seen.norm[50:] == pytest.approx(course.norm[50:], rel=norm_error)
    blocks = np.s_[50:STEPS]
    angles, predicted = (values[blocks].reshape(-1, 50).mean(1) for values in (seen.angle, course.angular_update))
    assert angles == pytest.approx(predicted, rel=angle_error)


def test_muon_is_within_two_percent_of_torchs_with_cautious_decay_beside_it():
    rule = Muon(0.02, 0.25, cautious_decay=True)
    shape = (64, 64)
    eq = rule.equilibrium(shape=shape)
    start = 0.5 * eq.norm
    course = forecast(rule, constant(1500), norm=start, shape=shape)
    generator = torch.Generator().manual_seed(0)
    w = nn.Parameter(torch.randn(shape, generator=generator))
    w.data *= start / w.data.norm()
    optimizer = torch.optim.Muon([w], lr=rule.lr, weight_decay=0.0)
    norms, angles = [], []
    for _ in range(1500):
        old = w.detach().clone()
        noise = torch.randn(shape, generator=generator)
        w.grad = noise - old * (noise * old).sum() / old.square().sum()
        optimizer.step()
        w.data -= rule.lr * rule.weight_decay * old * ((old - w.data) * old >= 0)
        norms.append(w.detach().norm().item())
        angles.append(walk.angle_between(*(x.detach().double().numpy().reshape(1, -1) for x in (old, w)))[0])
    assert norms[100:] == pytest.approx(course.norm[100:], rel=0.055)
    assert np.sqrt(np.mean(np.square(norms[700:]))) == pytest.approx(eq.norm, rel=0.02)
    assert np.mean(angles[700:]) == pytest.approx(eq.angular_update, rel=0.02)


@pytest.mark.parametrize("name", RULES)
def test_a_small_decay_acts_by_half(name):
    rule = RULES[name][0].replace(weight_decay=1e-8)
    eq = rule.equilibrium(fan_in=C)
    half = rule.replace(weight_decay=0.5e-8, cautious_decay=False).equilibrium(fan_in=C)
    for quantity in ("norm", "angular_update", "timescale"):
        assert getattr(eq, quantity) == pytest.approx(getattr(half, quantity), rel=1e-3)
    leading = rule.equilibrium(fan_in=C, leading_order=True)
    assert leading.norm == pytest.approx(half.norm, rel=1e-3)


@pytest.mark.parametrize("name", RULES)
def test_a_long_run_ends_in_equilibrium_also_where_lr_was_zero(name):
    rule = RULES[name][0]
    schedule = [0.0] * 3 + [1.0] * 12_000
    course = forecast(rule, schedule, norm=1.0, fan_in=np.array([64.0, C]))
    assert course.norm[2] == pytest.approx([1.0, 1.0])
    assert course.norm[-1] == pytest.approx(course.equilibrium_norm[-1], rel=5e-3)
    # The plain law at the same norm and timescale: 1 % below at these decays of 0.004 and 0.005.
    assert course.angular_update[-1] == pytest.approx(course.equilibrium_angular_update[-1], rel=0.01)


@pytest.mark.parametrize("name", ["AdamW", "Lion"])
def test_the_simulators_own_cautious_decay_is_the_literal_one(name):
    rule, _ = RULES[name]
    eq = rule.equilibrium(fan_in=C)
    end = random_walk([rule], steps=2500, norm=eq.norm, shape=(64, C), every=20, seed=1).averages(after=1000)
    assert end.layer_norm[0] == pytest.approx(eq.norm, rel=0.02)
    plain = rule.replace(cautious_decay=False).equilibrium(fan_in=C)
    assert end.layer_norm[0] > 1.2 * plain.norm


def test_a_decay_schedule_is_followed():
    rule, literal = RULES["AdamW"]
    doubled = cautious(walk.adamw(0.0), 0.5)
    norm = rule.equilibrium(fan_in=C).norm
    course = forecast(rule, steps=600, norm=norm, fan_in=C, weight_decay_schedule=lambda t: 1.0 if t < 200 else 2.0)
    seen = walk.walk(lambda *step: (literal if step[-1] <= 200 else doubled)(*step), course.lr, norm, dim=C)
    assert seen.norm[50:] == pytest.approx(course.norm[50:], rel=0.02)
