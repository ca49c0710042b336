"""Schemes on the sphere with the directions of SGD with weight decay, against actual steps."""

import numpy as np
import pytest

from gyroscope.theory import sphere

DIM = 12


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


A = np.random.default_rng(6).standard_normal((DIM, DIM))
A = (A + A.T) / np.linalg.norm(A + A.T, 2)
START = 1.3 * unit(np.random.default_rng(7).standard_normal(DIM))


def gradient(x):
    """Of the scale-invariant L(x) = xᵀAx/xᵀx."""
    return 2 * (A @ x - (x @ A @ x) / (x @ x) * x) / (x @ x)


def sgd_directions(lrs, weight_decay):
    x = START
    for lr in lrs:
        x = x - lr * (gradient(x) + weight_decay * x)
        yield unit(x)


def adam_g_star_direction(star, steps):
    u, v = unit(START), star.v0
    for _ in range(steps):
        g = gradient(u)
        u, v = unit(u - star.lr * g / np.sqrt(v)), star.beta * v + g @ g
    return u


def test_sgd_with_decay_has_the_directions_of_sgd_without_decay_and_a_growing_learning_rate():
    lr, weight_decay, steps = 0.05, 0.1, 200
    with_decay = np.array(list(sgd_directions([lr] * steps, weight_decay)))
    growing = sphere.lr_without_decay(lr, weight_decay, np.arange(steps))
    without = np.array(list(sgd_directions(growing, 0.0)))
    one_late = np.array(list(sgd_directions(growing * (1 - lr * weight_decay), 0.0)))
    assert np.max(np.linalg.norm(with_decay - without, axis=-1)) < 1e-9
    assert np.max(np.linalg.norm(with_decay - one_late, axis=-1)) > 1e-4


def test_sgd_differs_from_its_adam_g_star_by_the_third_power_of_the_learning_rate():
    time, weight_decay = 2.0, 0.3
    lrs = 0.05 * 2.0 ** -np.arange(5)
    errors = []
    for lr in lrs:
        steps = round(time / lr)
        star = sphere.adam_g_star(lr, weight_decay, float(np.linalg.norm(START)))
        *_, expected = sgd_directions([lr] * steps, weight_decay)
        errors.append(np.linalg.norm(adam_g_star_direction(star, steps) - expected))
    order = np.polyfit(np.log(lrs), np.log(errors), 1)[0]
    assert order == pytest.approx(3.0, abs=0.2)
    assert errors[0] < 1e-3


def test_a_growing_learning_rate_beyond_the_range_of_a_float_is_inf_without_a_warning():
    assert sphere.lr_without_decay(0.1, 1.0, 10**5) == np.inf
    assert sphere.lr_without_decay(0.1, 0.0, 10**5) == 0.1


def test_equivalences_refuse_a_decay_that_removes_the_whole_weight():
    for call in (lambda: sphere.lr_without_decay(2.0, 0.5, 3), lambda: sphere.adam_g_star(2.0, 0.5, 1.0)):
        with pytest.raises(ValueError, match=r"lr=2\.0.*weight_decay=0\.5.*below 1"):
            call()


def test_equivalences_quote_a_step_or_radius_that_cannot_be():
    with pytest.raises(ValueError, match="k=-1 is not a step: the first is 0"):
        sphere.lr_without_decay(0.1, 0.1, -1)
    with pytest.raises(ValueError, match=r"radius=0\.0"):
        sphere.adam_g_star(0.1, 0.1, 0.0)
    with pytest.raises(ValueError, match=r"lr=0\.0"):
        sphere.adam_g_star(0.0, 0.1, 1.0)
