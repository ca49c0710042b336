"""Rates and noise of the norm's approach, against the maps of SMD (42), (66) and against vectors."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from gyroscope_lab.smd import _norm_statistics as statistics
from numpy.typing import NDArray

Array = NDArray[np.float64]
L = 2.0  # mean squared unit gradient norm of every simulation


def fixed_point(lr: float, wd: float, alpha: float) -> float:
    """||w||^2 of SMD Theorem 2, the exact fixed point of the map; Theorem 1 to leading order when alpha = 0."""
    return math.sqrt(L * lr / (wd * (1 - alpha) * (2 - lr * wd / (1 + alpha))))


def norm_map(x: Array, lr: float, wd: float, alpha: float, draw: Callable[[], Array | float]) -> Iterator[list[Array]]:
    """SMD (66): yields [||w_t||^2, <w_t, w_{t-1}>, ||w_{t-1}||^2] after each step from rest."""
    a, b, c, s = x, x, x, 1 + alpha - lr * wd
    while True:
        a, b, c = s**2 * a - 2 * alpha * s * b + alpha**2 * c + draw() * lr**2 / a, s * a - alpha * b, a
        yield [a, b, c]


def norms(start: float, lr: float, wd: float, alpha: float, steps: int) -> Array:
    """||w||^2 over the steps without noise, from `start` times the fixed point."""
    walk = norm_map(np.asarray(start * fixed_point(lr, wd, alpha)), lr, wd, alpha, lambda: L)
    return np.array([next(walk)[0] for _ in range(steps)])


def factor_per_step(error: Array) -> float:
    return float((error[-1] / error[0]) ** (1 / (len(error) - 1)))


# lr * weight_decay at most a hundredth of SMD's limit (1 - sqrt(alpha))^2, where the leading order holds to about 1 %.
SETTINGS = [(0.1, 0.02, 0.0), (0.1, 8e-3, 0.5), (0.1, 2.6e-4, 0.9)]


@pytest.mark.parametrize(("lr", "wd", "alpha"), SETTINGS)
@pytest.mark.parametrize("start", [0.99, 1.01])
def test_near_equilibrium_the_error_shrinks_at_the_stated_rate_to_two_percent(lr, wd, alpha, start):
    skip = round(10 / (1 - alpha))  # the momentum has filled
    x = norms(start, lr, wd, alpha, skip + round((1 - alpha) / (4 * lr * wd)))
    measured = factor_per_step(x[skip:] - fixed_point(lr, wd, alpha))
    assert 1 - measured == pytest.approx(1 - statistics.contraction_near_equilibrium(lr, wd, alpha), rel=0.02)


@pytest.mark.parametrize(("lr", "wd", "alpha"), SETTINGS)
def test_far_above_equilibrium_the_norm_falls_at_the_stated_rate_to_two_percent(lr, wd, alpha):
    skip = round(10 / (1 - alpha))
    x = norms(1e3, lr, wd, alpha, skip + round((1 - alpha) / (4 * lr * wd)))
    measured = factor_per_step(x[skip:])
    assert 1 - measured == pytest.approx(1 - statistics.contraction_far_above(lr, wd, alpha), rel=0.02)


@pytest.mark.parametrize(("lr", "wd", "alpha"), SETTINGS)
@pytest.mark.parametrize("start", [0.3, 3.0])
def test_the_fourth_power_of_the_norm_closes_in_at_the_near_rate_from_any_distance(lr, wd, alpha, start):
    skip = round(10 / (1 - alpha))
    x = norms(start, lr, wd, alpha, skip + round((1 - alpha) / (2 * lr * wd)))
    measured = factor_per_step((x[skip:] / fixed_point(lr, wd, alpha)) ** 2 - 1)
    assert 1 - measured == pytest.approx(1 - statistics.contraction_near_equilibrium(lr, wd, alpha), rel=0.03)


def test_the_rate_of_the_bound_is_kept_from_far_above_and_beaten_twofold_near():
    lr, wd = 0.1, 0.02
    rate = 1 - statistics.contraction_of_bound(lr, wd)
    for start, times in ((1e3, 1.0), (1.01, 2.0)):
        squared_error = (norms(start, lr, wd, 0.0, 120) - fixed_point(lr, wd, 0.0)) ** 2
        assert 1 - factor_per_step(squared_error) == pytest.approx(times * rate, rel=0.02)


@pytest.fixture(scope="module", params=[(0.1, 0.02, 0.0), (0.1, 5e-4, 0.9)], ids=["SGD", "SGDM"])
def noisy(request):
    """(lr, wd, alpha, E(x - x*)^2, variance of the angle): 4,000 chains, 2,000 steps, L_t uniform in (1.5, 2.5)."""
    lr, wd, alpha = request.param
    rng = np.random.default_rng(0)
    x = np.full(4000, fixed_point(lr, wd, alpha))
    walk = norm_map(x, lr, wd, alpha, lambda: rng.uniform(1.5, 2.5, len(x)))
    for _ in range(1000):
        next(walk)
    square = angle = angle_square = 0.0
    for _ in range(2000):
        a, b, c = next(walk)
        square += np.mean((a - x) ** 2) / 2000
        delta = np.sqrt(1 - b**2 / (a * c))
        angle += np.mean(delta) / 2000
        angle_square += np.mean(delta**2) / 2000
    return lr, wd, alpha, square, angle_square - angle**2


def test_the_variance_of_the_norm_is_ours_to_three_percent_and_under_the_papers_bound(noisy):
    lr, _, alpha, measured, _ = noisy
    assert measured == pytest.approx(statistics.norm_variance(lr, alpha, variance=1 / 12, mean=L), rel=0.03)
    assert measured < statistics.norm_variance_bound(lr, alpha, variance=1 / 12, lower=1.5)


def test_the_variance_of_the_angle_is_ours_to_three_percent_and_under_the_papers_bound(noisy):
    lr, wd, alpha, _, measured = noisy
    assert measured == pytest.approx(statistics.angle_variance(lr, wd, alpha, variance=1 / 12, mean=L), rel=0.03)
    assert measured < statistics.angle_variance_bound(alpha, variance=1 / 12, mean=L, lower=1.5)


def test_vectors_under_sgdm_have_the_variances_of_norm_and_angle_that_their_measured_h_predicts():
    """500 vectors of 32 entries, gradients tangent and inversely proportional to the norm; 6 % tolerance."""
    lr, wd, alpha, rng = 0.1, 1e-3, 0.9, np.random.default_rng(1)
    w = rng.standard_normal((500, 32))
    w *= (fixed_point(lr, wd, alpha) ** 0.5) / np.linalg.norm(w, axis=1, keepdims=True)
    v, records = np.zeros_like(w), []
    for t in range(4000):
        x = np.sum(w**2, axis=1, keepdims=True)
        g = rng.standard_normal(w.shape) * math.sqrt(L / 31)
        g = (g - np.sum(g * w, axis=1, keepdims=True) * w / x) / x**0.5
        h = np.sum(g**2 + 2 * alpha * v * g, axis=1) * x[:, 0]
        v = alpha * v + g + wd * w
        w = w - lr * v
        if t >= 1000:
            radial = np.sum(v * w, axis=1) ** 2 / np.sum(w**2, axis=1)
            turned = lr * np.sqrt((np.sum(v**2, axis=1) - radial) / x[:, 0])  # sine of the angle
            records.append((h, x[:, 0], turned))
    h, x, turned = np.array(records).transpose(1, 0, 2)
    moments = {"variance": float(np.var(h)), "mean": float(np.mean(h))}
    assert np.var(x) == pytest.approx(statistics.norm_variance(lr, alpha, **moments), rel=0.06)
    assert np.var(turned) == pytest.approx(statistics.angle_variance(lr, wd, alpha, **moments), rel=0.06)


@pytest.mark.parametrize("k", [2, 10])
@pytest.mark.parametrize(("lr", "wd", "alpha"), SETTINGS)
def test_after_a_division_of_lr_the_norm_has_not_arrived_before_the_stated_steps(k, lr, wd, alpha):
    steps = statistics.steps_to_new_equilibrium(k, lr, wd, alpha)
    x = norms(math.sqrt(k), lr, wd, alpha, 2 * steps)  # the old equilibrium lies sqrt(k) above the new one
    ratio = x / fixed_point(lr, wd, alpha)
    assert ratio[steps - 1] ** 2 == pytest.approx(2 - 1 / k, rel=0.03)
    assert np.argmax(np.sqrt(ratio) < 1.1) + 1 > steps  # within a tenth only later ...
    assert np.sqrt(ratio[-1]) < 1.1  # ... but within twice the steps: the bound is of the right size


def test_the_bounds_of_sgdm_do_not_reduce_to_those_of_sgd():
    of_norm = {"variance": 0.3, "lower": 1.0}
    small = statistics.norm_variance_bound(0.1, 1e-6, **of_norm)
    assert small == pytest.approx(3 * statistics.norm_variance_bound(0.1, **of_norm), rel=1e-5)
    of_angle = {"variance": 0.3, "lower": 1.0, "mean": 2.0}
    ratio = statistics.angle_variance_bound(1e-3, **of_angle) / statistics.angle_variance_bound(**of_angle)
    assert ratio == pytest.approx(1e12 / 4, rel=1e-5)


def test_the_bound_on_the_norm_is_as_loose_as_the_docstring_says():
    for alpha, looseness in ((0.0, 4.0), (0.9, 5900.0)):
        bound = statistics.norm_variance_bound(0.1, alpha, variance=0.3, lower=0.5)
        value = statistics.norm_variance(0.1, alpha, variance=0.3, mean=2.0)
        assert bound / value == pytest.approx(looseness * 2.0 / 0.5, rel=0.01)


def test_arrays_give_what_floats_give_entry_by_entry():
    lr, moments = np.array([0.1, 0.01, 0.0]), {"variance": np.array([0.1, 0.2, 0.3]), "mean": 2.0}
    rates = statistics.contraction_near_equilibrium(lr, 5e-4, 0.9)
    variances = statistics.angle_variance(lr, 5e-4, 0.9, **moments)
    for i in range(3):
        assert rates[i] == statistics.contraction_near_equilibrium(lr[i], 5e-4, 0.9)
        assert variances[i] == statistics.angle_variance(lr[i], 5e-4, 0.9, variance=moments["variance"][i], mean=2.0)
    assert rates[2] == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: statistics.contraction_near_equilibrium(-0.1, 0.1), "lr=-0.1 must be finite, 0 or above"),
        (lambda: statistics.contraction_far_above(0.1, math.nan), "weight_decay=nan must be finite, 0 or above"),
        (lambda: statistics.contraction_of_bound(0.1, 0.1, 1.0), "momentum=1.0 must be at least 0 and below 1"),
        (lambda: statistics.contraction_of_bound(0.1, 0.1, math.nan), "momentum=nan"),
        (
            lambda: statistics.contraction_near_equilibrium(2.0, 0.5),
            "lr=2.0 times weight_decay=0.5 .* under 0.25 .*lower",
        ),
        (lambda: statistics.contraction_far_above(0.1, 0.03, 0.9), "under 0.00263 at momentum=0.9"),
        (lambda: statistics.norm_variance(math.inf, variance=0.1, mean=1.0), "lr=inf must be finite"),
        (lambda: statistics.norm_variance(0.1, variance=-0.1, mean=1.0), "variance=-0.1"),
        (lambda: statistics.norm_variance(0.1, variance=0.1, mean=0.0), "mean=0.0 must be finite and above 0"),
        (
            lambda: statistics.norm_variance_bound(0.1, variance=0.1, lower=0.0),
            "lower=0.0 must be finite and above 0",
        ),
        (
            lambda: statistics.angle_variance_bound(variance=0.1, mean=1.0, lower=2.0),
            "lower=2.0 exceeds mean=1.0",
        ),
        (lambda: statistics.angle_variance(0.1, 0.1, variance=np.array([0.1, -1.0]), mean=1.0), "variance=.*-1"),
        (lambda: statistics.steps_to_new_equilibrium(1.0, 0.1, 0.1), "k=1.0 .* such as 10"),
        (lambda: statistics.steps_to_new_equilibrium(math.nan, 0.1, 0.1), "k=nan"),
        (
            lambda: statistics.steps_to_new_equilibrium(10, 0.1, 0.0),
            "weight_decay=0.0 must be finite and above 0",
        ),
        (lambda: statistics.steps_to_new_equilibrium(10, 0.0, 0.1), "lr=0.0 must be finite and above 0"),
    ],
)
def test_bad_input_is_quoted_with_the_remedy(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_share_that_the_theorems_need_is_where_their_contraction_stops_being_positive():
    # Assumption 3 is 1 - 2ηλ - 2ηλ·sqrt(2L/l) > 0 (SMD 45, 46).
    lr, weight_decay = 0.1, 0.01
    share = statistics.least_gradient_share(lr, weight_decay)
    assert 1 - 2 * lr * weight_decay * (1 + math.sqrt(2 / share)) == pytest.approx(0, abs=1e-12)
    # Assumption 6: ε of Lemma 3, 2·sqrt(2L/l)/(1-α)², meets its bound ((1-α²)/(ηλ) - 8/(1-α))/3.
    alpha = 0.9
    share = statistics.least_gradient_share(lr, 1e-3, alpha)
    bound = ((1 - alpha**2) / (lr * 1e-3) - 8 / (1 - alpha)) / 3
    assert 2 * math.sqrt(2 / share) / (1 - alpha) ** 2 == pytest.approx(bound)


def test_no_sequence_is_inside_the_theorem_where_the_decay_is_too_large():
    assert statistics.least_gradient_share(0.1, 0.1, 0.9) == math.inf
    assert statistics.least_gradient_share(0.2, 1e-3, 0.9) > 0.9
