"""The laws of k-Adam and Hyperball against literal simulations of their published steps."""

from itertools import product

import numpy as np
import pytest

from gyroscope.optimizers.group_rules import correlation_time
from gyroscope.theory import AdamW, Hyperball, KAdam, Muon, forecast, match
from gyroscope.theory.rules.k_adam import noise_response
from gyroscope.theory.stability import STRATEGIES


def angles(before, after):
    """Return the angle between rows, from their difference, which keeps all digits of a small one."""
    d = after - before
    square = (before * before).sum(-1)
    along = (before * d).sum(-1) / square
    across = np.linalg.norm(d - along[..., None] * before, axis=-1)
    return np.arctan2(across, (1 + along) * np.sqrt(square))


def tangent_noise(generator, w):
    g = generator.standard_normal(w.shape)
    return g - w * (g * w).sum(-1, keepdims=True) / (w * w).sum(-1, keepdims=True)


def k_adam_walk(rule, fan_in=1000, steps=4500):
    """Follow CT's Algorithm 1 with decoupled decay from equilibrium: RMS angle and RMS norm of the last half."""
    generator = np.random.default_rng(7)
    w = generator.standard_normal((2, fan_in))
    w *= rule.equilibrium(fan_in=fan_in).norm / np.linalg.norm(w, axis=1, keepdims=True)
    m, v = np.zeros((2, rule.k, *w.shape))
    squares = []
    for t in range(1, steps + 1):
        ghat = tangent_noise(generator, w)
        for stage, (beta1, beta2) in enumerate(rule.stages):
            m[stage] = beta1 * m[stage] + (1 - beta1) * ghat
            v[stage] = beta2 * v[stage] + (1 - beta2) * ghat**2
            ghat = (1 - beta2**t) ** 0.5 / (1 - beta1**t) * m[stage] / (np.sqrt(v[stage]) + 1e-30)
        after = w - rule.lr * (ghat + rule.weight_decay * w)
        if t > steps // 2:  # after two memories of v
            squares.append((angles(w, after) ** 2, (after**2).sum(1)))
        w = after
    return np.sqrt(np.mean(squares, axis=(0, 2)))


@pytest.mark.slow
@pytest.mark.parametrize(("k", "strategy"), [(1, "naive"), *product(range(2, 6), STRATEGIES)])  # with k = 1 all are one
def test_k_adam_settles_where_the_law_says(k, strategy):
    rule = KAdam(1e-2, 1.0, k=k, strategy=strategy)
    settled = rule.equilibrium(fan_in=1000)
    angle, norm = k_adam_walk(rule)
    assert angle == pytest.approx(settled.angular_update, rel=0.02)
    assert norm == pytest.approx(settled.norm, rel=0.03)


def test_one_stage_is_adamw():
    settled = KAdam(1e-3, 0.1, k=1).equilibrium(fan_in=64)
    plain = AdamW(1e-3, 0.1).equilibrium(fan_in=64)
    for name in ("angular_update", "norm", "update_rms", "timescale"):
        assert getattr(settled, name) == pytest.approx(getattr(plain, name), rel=1e-6)


def test_a_cascade_has_the_response_of_its_filters():
    # Two averages: V_2 by the sum over the impulse response Σ c_i², written out.
    t = np.arange(4000)
    c = 0.1 * 0.2 * (0.9 ** (t + 1) - 0.8 ** (t + 1)) / 0.1
    response = noise_response(((0.9, 0.999), (0.8, 0.99)))
    assert response.correlation.time() == pytest.approx(1 / (c @ c), rel=1e-6)
    assert response.mean_square == pytest.approx((c @ c) / (0.1 / 1.9), rel=1e-6)


def test_pairs_of_betas_are_taken_and_the_rule_stays_hashable():
    rule = KAdam(1e-3, 0.1, k=2, betas=[[0.9, 0.99], [0.8, 0.99]])
    assert rule.stages == ((0.9, 0.99), (0.8, 0.99))
    assert hash(rule) == hash(KAdam(1e-3, 0.1, k=2, betas=((0.9, 0.99), (0.8, 0.99))))


def test_k_adam_is_matched_and_forecast():
    found = match(AdamW(1e-3, 0.1), KAdam, k=2, fan_in=64)
    assert found.kept == ("memory", "norm")
    run = forecast(KAdam(1e-2, 0.5, k=2), steps=2000, norm=1.0, fan_in=64)
    assert run.norm[-1] == pytest.approx(run.equilibrium_norm[-1], rel=1e-3)


def test_layers_forecast_together_are_those_forecast_alone():
    rule = KAdam(1e-2, 0.5, k=2, strategy="naive")
    together = forecast(rule, steps=50, norm=[1.0, 3.0], fan_in=[64, 256])
    for layer, (norm, fan_in) in enumerate([(1.0, 64), (3.0, 256)]):
        alone = forecast(rule, steps=50, norm=norm, fan_in=fan_in)
        assert together.norm[:, layer] == pytest.approx(alone.norm)
        assert together.angular_update[:, layer] == pytest.approx(alone.angular_update)


def orthogonalised_nesterov(m, g, beta, rows=48):
    """Return Muon's update: Nesterov's momentum after five Newton–Schulz iterations."""
    x = ((1 - beta) * g + beta * m).reshape(rows, -1)
    x /= np.linalg.norm(x)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (2.0315 * gram @ gram - 4.7750 * gram) @ x
    return x.reshape(m.shape)


def hyperball_walk(rule, beta, size=3000, steps=5000, update=None):
    """Follow W <- n(W - lr·n(u)) with an averaged momentum. Return the angle of each step and all weights."""
    generator = np.random.default_rng(3)
    w = generator.standard_normal((1, size))
    w /= np.linalg.norm(w)
    m = np.zeros_like(w)
    track = np.empty((steps, size))
    turned = []
    for t in range(steps):
        g = tangent_noise(generator, w)
        m = beta * m + (1 - beta) * g
        u = m if update is None else update(m, g, beta)
        u = u / np.linalg.norm(u)
        if rule.tangent:
            u = u - w * (u * w).sum()
            u /= np.linalg.norm(u)
        after = w - rule.lr * u
        after /= np.linalg.norm(after)
        turned.append(angles(w, after)[0])
        w = after
        track[t] = w
    return np.array(turned), track


def forgetting_time(track, lag):
    """Return the steps after which a direction is forgotten, from overlaps at two lags beyond the momentum's memory."""
    overlaps = [(track[: -2 * lag] * track[k : k - 2 * lag or None]).sum(1).mean() for k in (lag, 2 * lag)]
    return lag / np.log(overlaps[0] / overlaps[1])


@pytest.mark.slow
@pytest.mark.parametrize("lr", [0.01, 0.018, 0.03])
def test_hyperball_turns_and_forgets_as_the_law_says(lr):
    rule = Hyperball(lr, momentum=0.95)
    turned, track = hyperball_walk(rule, 0.95)
    settled = rule.equilibrium()
    assert turned[500:].mean() == pytest.approx(settled.angular_update, rel=0.01)
    assert forgetting_time(track[500:], 60) == pytest.approx(settled.timescale, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("lr", [0.018, 0.03])
def test_muonh_turns_and_forgets_as_the_law_says(lr):
    rule = Hyperball(lr, momentum=0.95, correlation_time=correlation_time(Muon(lr, 0.0), [(48, 48)]))
    turned, track = hyperball_walk(rule, 0.95, size=48 * 48, steps=6000, update=orthogonalised_nesterov)
    settled = rule.equilibrium()
    assert turned[500:].mean() == pytest.approx(settled.angular_update, rel=0.01)
    assert forgetting_time(track[500:], 60) == pytest.approx(settled.timescale, rel=0.05)


def test_the_published_numbers_of_muonh():
    settled = Hyperball(0.018, momentum=0.95, correlation_time=22.5).equilibrium()
    assert settled.angular_update == pytest.approx(0.0176, abs=5e-5)
    assert settled.timescale == pytest.approx(290, rel=0.02)


def test_tangent_hyperball_turns_by_the_arctangent():
    rule = Hyperball(0.1, tangent=True)
    turned, _ = hyperball_walk(rule, 0.9, size=500, steps=100)
    assert turned == pytest.approx(np.full(100, np.arctan(0.1)), rel=1e-9)
    assert rule.timescale is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Hyperball(0.01, momentum=0.9, betas=(0.9, 0.999)), "momentum and betas describe the same momentum"),
        (lambda: Hyperball(0.01, correlation_time=0.5), "correlation_time=0.5 must be 1"),
        (lambda: KAdam(1e-3, 0.1, coupled=True), "coupled=True, k=2 and weight_decay=0.1 is not covered"),
        (lambda: KAdam(1e-3, 0.1, k=1, coupled=True), "or use AdamL2, which is k=1"),
        (lambda: KAdam(1e-3, 0.1, k=3, betas=[(0.9, 0.99)]), "one pair per stage, and k=3"),
        (lambda: KAdam(1e-3, 0.1, betas=[0.9, (0.9, 0.99)]), r"betas=\(0.9, \(0.9, 0.99\)\) must be one pair"),
        (lambda: KAdam(1e-3, 0.1, betas=(0.9, 0.99, 0.999)), "must be one pair, or one pair per stage, and k=2"),
    ],
)
def test_what_is_not_covered_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
