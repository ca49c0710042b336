"""Leaps of a long forecast against single steps."""

import numpy as np
import pytest

from gyroscope.theory import SGDM, AdamW, Lion, Muon, constant, cosine, forecast, leaps, linear, step
from gyroscope.theory.recursion import BLOCK, LinearMotion

STEPS = 16_000
RULES = [
    AdamW(1e-2, 0.5, betas=(0.9, 0.99)),
    AdamW(3e-2, 0.5, betas=(0.9, 0.95), cautious_decay=True),
    SGDM(0.3, 5e-3, 0.9),
    Lion(1e-3, 2.0),
    Muon(1e-2, 0.2),
]
SCHEDULES = {
    "cosine": cosine(STEPS, 500),
    "step": step(STEPS, (6_000, 12_000), 0.3),
    "constant": constant(STEPS),
}


def predicted(rule, schedule, **options):
    layers = {"norm": np.array([0.5, 4.0]), "fan_in": np.array([64, 1024]), "unit_grad_norm": np.array([0.2, 1.0])}
    shape = (256, 256) if "shape" in rule.needs else None
    return forecast(rule, schedule, **layers, shape=shape, **options)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("name", ["cosine", "step"])
def test_a_forecast_with_leaps_is_that_of_single_steps(rule, name, monkeypatch):
    single = predicted(rule, SCHEDULES[name])
    monkeypatch.setattr(leaps, "LONG_RUN", 1000)
    leaping = predicted(rule, SCHEDULES[name])
    for quantity in ("norm", "angular_update"):
        np.testing.assert_allclose(getattr(leaping, quantity), getattr(single, quantity), rtol=1e-3)


@pytest.mark.parametrize("make", [cosine, linear, constant])
def test_leaps_leave_out_most_steps_of_a_slow_run(make, monkeypatch):
    blocks = []
    single = LinearMotion._block
    monkeypatch.setattr(LinearMotion, "_block", lambda *args: blocks.append(0) or single(*args))
    predicted(AdamW(1e-2, 0.5, betas=(0.9, 0.99)), make(150_000, 500))
    assert len(blocks) * BLOCK < 75_000


def test_a_noisy_schedule_is_followed_step_by_step(monkeypatch):
    noisy = np.random.default_rng(0).uniform(0.5, 1, STEPS).tolist()
    single = predicted(RULES[0], noisy)
    monkeypatch.setattr(leaps, "LONG_RUN", 1000)
    assert np.array_equal(predicted(RULES[0], noisy).norm, single.norm)


def test_a_change_of_betas_is_followed_step_by_step(monkeypatch):
    def betas(t):
        return 0.9 - 1e-6 * t, 0.99

    single = predicted(RULES[0], SCHEDULES["constant"], betas_schedule=betas)
    monkeypatch.setattr(leaps, "LONG_RUN", 1000)
    leaping = predicted(RULES[0], SCHEDULES["constant"], betas_schedule=betas)
    assert np.array_equal(leaping.norm, single.norm)
