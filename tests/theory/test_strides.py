"""Stretches that are solved at a few of their steps against all steps."""

import numpy as np
import pytest

from gyroscope.theory import (
    SGDM,
    SGDMRT,
    AdamL2,
    AdamSRT,
    AdamW,
    KAdam,
    Lion,
    Muon,
    NAdam,
    constant,
    cosine,
    forecast,
    linear,
    step,
)
from gyroscope.theory.recursion import Motion, filtered
from gyroscope.theory.strides import MIN_STRIDE, stretch

STEPS = 20_000
LAYERS = {"norm": np.array([0.25, 4.0]), "fan_in": np.array([64, 1024]), "unit_grad_norm": np.array([0.2, 1.0])}
RULES = [
    AdamW(1e-3, 0.1),
    AdamW(1e-2, 0.5, betas=(0.9, 0.95), cautious_decay=True),
    AdamW(1e-3, 0.1, corrected_decay=True),
    NAdam(1e-3, 0.1),
    AdamL2(1e-3, 0.01),
    AdamSRT(1e-3, 0.01),
    KAdam(1e-3, 0.1, strategy="naive"),
    SGDM(0.1, 5e-4, 0.9),
    SGDMRT(0.1, 1e-3),
    Lion(1e-4, 1.0),
    Muon(1e-3, 0.1),
]


def compare(monkeypatch, rule, schedule, **options):
    """Check a forecast against that without strides. Return the number of steps that strides took."""
    taken = []
    stride = Motion.stride

    def counted(self, grid, lr, weights):
        course = stride(self, grid, lr, weights)
        taken.append(0 if course is None else len(lr))
        return course

    shape = (256, 256) if "shape" in rule.needs else None
    monkeypatch.setattr(Motion, "stride", counted)
    found = forecast(rule, schedule, **LAYERS, shape=shape, **options)
    monkeypatch.setattr(Motion, "stride", lambda *args: None)
    expected = forecast(rule, schedule, **LAYERS, shape=shape, **options)
    for name in ("norm", "angular_update", "forgotten"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, err_msg=name)
    return sum(taken)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule!r}{' cautious' if rule.cautious_decay else ''}")
def test_strides_give_the_steps(rule, monkeypatch):
    assert compare(monkeypatch, rule, cosine(STEPS, 500)) >= MIN_STRIDE


def test_strides_give_the_steps_of_a_changing_decay(monkeypatch):
    assert compare(monkeypatch, RULES[0], cosine(STEPS), weight_decay_schedule=linear(STEPS, final=0.1)) >= MIN_STRIDE


def test_a_stride_ends_where_the_rate_jumps(monkeypatch):
    assert compare(monkeypatch, RULES[0], step(STEPS, (12_345,), 0.3)) >= MIN_STRIDE


def test_a_stride_does_not_miss_a_single_step(monkeypatch):
    rates = constant(STEPS)(np.arange(STEPS))
    rates[10_001] = 30.0
    assert compare(monkeypatch, RULES[0], rates) >= MIN_STRIDE


def test_a_rate_without_a_smooth_stretch_takes_no_stride(monkeypatch):
    rates = np.random.default_rng(0).uniform(0.5, 1.0, STEPS)
    assert compare(monkeypatch, RULES[0], rates) == 0


@pytest.mark.parametrize("keep", [0.0, 0.9, 0.9999])
@pytest.mark.parametrize("layers", [1, 3])
def test_a_filter_at_the_nodes_is_its_recursion(keep, layers):
    grid = stretch(MIN_STRIDE)
    t = np.arange(MIN_STRIDE)[:, None]
    added = np.cos(t / 2000) + np.arange(1, 4)
    # From the value that x has followed for long, so that no fast part is left.
    start = filtered(np.zeros(3), keep, np.cos((t - MIN_STRIDE) / 2000) + np.arange(1, 4)).after[-1]
    expected = filtered(start, keep, added)
    found = grid.filtered(start, np.full((len(grid.nodes), layers), keep), added[grid.nodes])
    np.testing.assert_allclose(found.before, expected.before[grid.nodes], rtol=1e-9)
    np.testing.assert_allclose(found.after, expected.after[grid.nodes], rtol=1e-9)
