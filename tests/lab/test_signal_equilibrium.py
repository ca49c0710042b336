"""Where weights settle whose gradients have a signal, against walks."""

from math import exp, inf

import numpy as np
import pytest
from gyroscope_lab.beyond._signal_equilibrium import aligned_equilibrium, equilibrium_with_signal, expected_alignment

from gyroscope.theory import SGDM, AdamW, Lion, signal
from gyroscope.tools import Array
from tests.walk import adamw, angle_between, row_dot, sgdm


@pytest.mark.parametrize("kappa2", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("step", [None, 30])
def test_a_planted_signal_comes_back_from_adams_state_within_5_percent(kappa2, step):
    rng = np.random.default_rng(0)
    mean = np.sqrt(kappa2) * rng.standard_normal(400_000)
    steps = 60 if step is None else step
    beta1, beta2 = 0.9, 0.999
    m, v = np.zeros_like(mean), np.zeros_like(mean)
    for _ in range(steps):
        g = mean + rng.standard_normal(mean.size)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
    first = float(np.sum((m / (1 - beta1**steps)) ** 2))
    second = float(np.sum(v / (1 - beta2**steps)))
    # After 30 steps β1^t is 0.04 and still counts: with the q of long ago 0.01 would come back as 0.014.
    assert signal.signal_ratio(first, second, beta1, steps) == pytest.approx(kappa2, rel=0.05)
    expected = expected_alignment(kappa2, beta1)
    if step is None:
        assert signal.alignment(first, second, beta1, steps) == pytest.approx(expected, rel=0.02)


def test_pure_noise_has_no_signal_and_an_alignment_of_1():
    q = signal.noise_share(0.9)
    assert signal.signal_ratio(q, 1.0, 0.9) == 0.0
    assert signal.alignment(q, 1.0, 0.9) == 1.0
    assert expected_alignment(0.0, 0.9) == 1.0


def walk_with_signal(
    step, lr: float, norm: float, kappa2: float, *, correlation_time=inf, target=False, steps=5000
) -> tuple[float, float, float]:
    """RMS norm and angle, and Adam's M/V, of vectors that feel noise and a tangent signal of share κ².

    The signal keeps its direction on the sphere, or with `target` points to one place at all times. Gradients are
    tangent and fall with the norm, as those of a scale-invariant weight do.
    """
    rng = np.random.default_rng(0)
    vectors, dim = 48, 128
    w = rng.standard_normal((vectors, dim))
    w *= norm / np.linalg.norm(w, axis=1, keepdims=True)
    direction = rng.standard_normal((vectors, dim))
    kept = exp(-1 / correlation_time)

    def tangent(x: Array) -> Array:
        return x - w * (row_dot(x, w) / row_dot(w, w))[:, None]

    def norm_of(x: Array) -> Array:
        return np.sqrt(row_dot(x, x))[:, None]

    state: dict[str, Array] = {}
    norms, angles, first, second = [], [], [], []
    for t in range(1, steps + 1):
        moved = kept * direction + np.sqrt(1 - kept**2) * rng.standard_normal((vectors, dim))
        towards = tangent(moved)
        towards *= np.sqrt(dim) / norm_of(towards)
        direction = direction if target else towards
        noise = tangent(rng.standard_normal((vectors, dim))) / np.sqrt(dim - 1)
        g = (noise + np.sqrt(kappa2 / dim) * towards) / norm_of(w)
        new = step(w, g, state, lr, t)
        if t > steps // 2:
            norms.append((new * new).sum(1).mean())
            angles.append((angle_between(w, new) ** 2).mean())
            first.append((state["m"] ** 2).sum())
            second.append(state["v"].sum() / (1 - 0.999**t) if "v" in state else 1.0)
        w = new
    return float(np.mean(norms) ** 0.5), float(np.mean(angles) ** 0.5), float(np.mean(first) / np.mean(second))


@pytest.mark.slow
@pytest.mark.parametrize("kappa2", [0.1, 1.0])
def test_adamw_in_a_walk_with_a_signal_settles_as_the_law_says_within_3_percent(kappa2):
    rule = AdamW(lr=0.005, weight_decay=1.0)
    eq = equilibrium_with_signal(rule, kappa2, correlation_time=30, fan_in=128)
    norm, angle, _ = walk_with_signal(adamw(1.0), rule.lr, eq.norm, kappa2, correlation_time=30)
    assert norm == pytest.approx(eq.norm, rel=0.03)
    assert angle == pytest.approx(eq.angular_update, rel=0.005)


@pytest.mark.slow
@pytest.mark.parametrize(("kappa2", "correlation_time"), [(0.1, inf), (1.0, 30), (1.0, inf)])
def test_sgdm_in_a_walk_with_a_signal_settles_as_the_law_says_within_1_percent(kappa2, correlation_time):
    rule = SGDM(lr=0.05, weight_decay=0.01, momentum=0.9)
    eq = equilibrium_with_signal(rule, kappa2, correlation_time=correlation_time, unit_grad_norm=(1 + kappa2) ** 0.5)
    norm, angle, _ = walk_with_signal(sgdm(0.01, 0.9), rule.lr, eq.norm, kappa2, correlation_time=correlation_time)
    assert norm == pytest.approx(eq.norm, rel=0.01)
    assert angle == pytest.approx(eq.angular_update, rel=0.005)


@pytest.mark.slow
def test_a_signal_towards_one_place_in_a_walk_changes_the_norm_by_the_alignment_of_the_state():
    """Near its target a signal undoes what noise did: updates agree less than noise, s < 1, and the norm is smaller."""
    rule = AdamW(lr=0.005, weight_decay=1.0)
    noise = rule.equilibrium(fan_in=128)
    norm, angle, ratio = walk_with_signal(adamw(1.0), rule.lr, noise.norm, kappa2=1.0, target=True)
    s = ratio / signal.noise_share(0.9)
    assert s < 1
    assert norm == pytest.approx(aligned_equilibrium(rule, s, fan_in=128).norm, rel=0.03)
    assert angle == pytest.approx(noise.angular_update, rel=0.01)


def test_rules_whose_update_is_not_their_momentum_are_refused_by_name():
    for rule in (Lion(1e-4, 1.0), SGDM(0.1, 1e-3, 0.9, nesterov=True)):
        with pytest.raises(ValueError, match=f"{rule.name} has no equilibrium with a signal"):
            equilibrium_with_signal(rule, 0.1, fan_in=64)
    with pytest.raises(ValueError, match="correlation_time=0"):
        equilibrium_with_signal(AdamW(1e-3, 0.1), 0.1, correlation_time=0)
