"""Many steps that are solved at once against single steps."""

import numpy as np
import pytest

from gyroscope.theory import (
    SGDM,
    Adafactor,
    AdamL2,
    AdamSRT,
    AdamW,
    Lion,
    Muon,
    NAdam,
    cosine,
    step,
)
from gyroscope.theory.law import Weights
from gyroscope.theory.linear_motion import LinearMotion
from gyroscope.theory.recursion import FILLING, MAX_LENGTH, filtered

STEPS = 800
# A warmup, a smooth fall and a jump.
SCHEDULE = cosine(STEPS, 100)(np.arange(STEPS)) * step(STEPS, (500,), 0.3)(np.arange(STEPS))
RULES = [
    AdamW(1e-2, 0.5, betas=(0.9, 0.99)),
    AdamW(3e-2, 0.5, betas=(0.9, 0.95), cautious_decay=True),
    AdamL2(1e-2, 0.5),
    AdamSRT(1e-3, 1e-2),
    Adafactor(1e-2, 0.1),
    NAdam(1e-2, 0.5, momentum_decay=4e-3),
    SGDM(0.3, 5e-3, 0.9),
    SGDM(0.5, 0.2, 0.9),
    Lion(1e-3, 2.0),
    Lion(1e-3, 2.0, betas=(0.0, 0.99)),
    Muon(1e-2, 0.2),
    Muon(1e-2, 0.2, cautious_decay=True),
]
WEIGHTS = Weights(np.array([64.0, 1024.0]), np.array([0.2, 1.0]), (256, 256))


def courses(rule, lr, pieces):
    """Norms and angles of a motion that advances by so many steps at a time."""
    motion = rule.motion(np.array([0.25, 16.0]))
    norms, angles = [], []
    for first in range(0, len(lr), pieces):
        before2 = motion.norm2
        taken = motion.advance(lr[first : first + pieces], WEIGHTS)
        norms.append(np.sqrt(taken.norm2))
        angles.append(taken.angles(before2))
    return np.concatenate(norms), np.concatenate(angles)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_steps_that_are_solved_at_once_are_single_steps(rule):
    lr = rule.lr * SCHEDULE
    for solved, single in zip(courses(rule, lr, STEPS), courses(rule, lr, 1), strict=True):
        np.testing.assert_allclose(solved, single, rtol=5e-6)


def test_a_slow_run_is_solved_in_few_rounds(monkeypatch):
    rounds = []
    improve = LinearMotion._improve

    def counted(self, lr, weights):
        better = improve(self, lr, weights)
        return lambda part, *guess: rounds.append(part.stop - part.start) or better(part, *guess)

    monkeypatch.setattr(LinearMotion, "_improve", counted)
    AdamW(1e-3, 0.1).motion(np.ones(2)).advance(np.full(50_000, 1e-3), WEIGHTS)
    assert max(rounds) == MAX_LENGTH
    assert len(rounds) < 12 * 50_000 / MAX_LENGTH


def test_a_start_far_below_one_step_is_solved():
    motion = SGDM(0.3, 5e-3, 0.9).motion(np.full(2, 1e-8))
    single = SGDM(0.3, 5e-3, 0.9).motion(np.full(2, 1e-8))
    solved = motion.advance(np.full(200, 0.3), WEIGHTS)
    for taken in solved.norm2:
        assert single.advance(np.full(1, 0.3), WEIGHTS).norm2[0] == pytest.approx(taken, rel=1e-6)


@pytest.mark.parametrize("keep", [0.0, 1e-30, 0.5, 0.999999, 1.0])
def test_a_filter_is_its_recursion(keep):
    added = np.random.default_rng(0).uniform(size=(2_000, 3))
    factors = np.full((2_000, 1), keep)
    factors[700] = 0.0
    expected = [np.ones(3)]
    for each, factor in zip(added, factors, strict=True):
        expected.append(factor * expected[-1] + each)
    found = filtered(np.ones(3), factors, added)
    np.testing.assert_allclose(found.before, expected[:-1], rtol=1e-12)
    np.testing.assert_allclose(found.after, expected[1:], rtol=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_averages_that_are_filled_at_once_are_those_of_single_steps(rule):
    at_once, one_by_one = (rule.motion(np.array([1.0, 0.04])) for _ in range(2))
    at_once.fill(rule.lr, WEIGHTS)
    for _ in range(FILLING):
        one_by_one.advance(np.array([rule.lr]), WEIGHTS)
        one_by_one.moments["norm2"] = np.array([1.0, 0.04])
    assert at_once.done == one_by_one.done
    for name, values in one_by_one.moments.items():
        np.testing.assert_allclose(at_once.moments[name], values, rtol=1e-6, err_msg=name)
