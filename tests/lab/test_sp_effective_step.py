"""The step on the sphere that an actual step amounts to (SP Theorem 2)."""

import numpy as np
import pytest
from gyroscope_lab.sp import compare_schemes, effective_step
from hypothesis import given, settings
from hypothesis import strategies as st

ROWS, DIM, STEPS = 7, 12, 9
seeds = st.integers(0, 2**32 - 1)


def dot(a, b):
    return np.sum(a * b, axis=-1, keepdims=True)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def tangent(v, x):
    """The part of v orthogonal to x, taken twice: one pass leaves a rounding error that is not small against itself."""
    for _ in range(2):
        v = v - dot(v, unit(x)) * unit(x)
    return v


def angle(x, y):
    """Angle between vectors, accurate when it is small (theory.md, trap 1)."""
    d = y - x
    radial = dot(x, d) / dot(x, x)
    return np.arctan2(
        np.linalg.norm(d - radial * x, axis=-1), ((1 + radial) * np.linalg.norm(x, axis=-1, keepdims=True))[..., 0]
    )


def sgd(rng, momentum=0.0, weight_decay=0.0):
    """Yields (x, a, b, x') of steps with tangent gradients, as a scale-invariant loss has them; lr = 0.05."""
    x, m = rng.standard_normal((ROWS, DIM)), 0.0
    for _ in range(STEPS):
        m = momentum * m + tangent(rng.standard_normal(x.shape), x) + weight_decay * x
        yield x, m, np.ones_like(x), (x := x - 0.05 * m)


def adam(rng, weight_decay=0.0, srt=False, beta1=0.9, beta2=0.99, eps=1e-8):
    """Adam with L2 in the gradient, or Adam-SRT from SP's Algorithm 1, whose line 10 has a stray factor."""
    x, m, v = rng.standard_normal((ROWS, DIM)), 0.0, 0.0
    for k in range(1, STEPS + 1):
        g = tangent(rng.standard_normal(x.shape), x) + weight_decay * x
        m, v = (
            beta1 * m + (1 - beta1) * g,
            beta2 * v + (1 - beta2) * (np.mean(g * g, -1, keepdims=True) if srt else g * g),
        )
        denominator = np.broadcast_to(np.sqrt(v / (1 - beta2**k)) + eps, x.shape)
        new = x - 0.05 * m / (1 - beta1**k) / denominator
        yield x, m / (1 - beta1), denominator * (1 - beta1**k) / (1 - beta1), new
        if srt:
            m = (dot(new, x) * m - dot(new, m) * x) / dot(new, new)
            v = v * dot(x, x) / dot(new, new)
        x = new


SCHEMES = {
    "SGD": lambda rng: sgd(rng),
    "SGD + L2": lambda rng: sgd(rng, weight_decay=0.3),
    "SGD-M": lambda rng: sgd(rng, momentum=0.9, weight_decay=0.3),
    "Adam": lambda rng: adam(rng, weight_decay=0.3),
    "Adam-SRT": lambda rng: adam(rng, weight_decay=0.3, srt=True),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_direction_radius_and_angle_are_exactly_those_of_the_actual_step(scheme):
    for x, a, b, new in SCHEMES[scheme](np.random.default_rng(1)):
        step = effective_step(x, a, b, lr=0.05)
        assert step.next_direction == pytest.approx(unit(new), abs=1e-14)
        ratio = np.linalg.norm(new, axis=-1) / np.linalg.norm(x, axis=-1)
        assert step.radius_ratio == pytest.approx(ratio, rel=1e-13)
        assert step.angle == pytest.approx(angle(x, new), rel=1e-12)
        assert np.all(step.angle > 1e-3)


@settings(deadline=None)
@given(seed=seeds, size=st.floats(1e-5, 1e-2))
def test_theorem_2_holds_for_any_step_even_without_scale_invariance(seed, size):
    rng = np.random.default_rng(seed)
    x, a = rng.standard_normal((2, ROWS, DIM)) * np.exp(rng.standard_normal((2, ROWS, 1)))
    b = np.exp(rng.standard_normal((ROWS, DIM)))
    lr = size * np.linalg.norm(x, axis=-1) / np.linalg.norm(a, axis=-1)
    step, new = effective_step(x, a, b, lr), x - lr[:, None] * a / b
    assert step.next_direction == pytest.approx(unit(new), abs=1e-14)
    assert step.angle == pytest.approx(angle(x, new), rel=1e-8)
    assert dot(step.direction, x) == pytest.approx(0, abs=1e-12 * np.max(np.abs(x)) * np.max(np.abs(step.direction)))


def test_a_step_may_have_a_single_vector_or_a_learning_rate_per_row():
    x, a = np.random.default_rng(3).standard_normal((2, 4, 6))
    lr = np.array([0.01, 0.02, 0.03, 0.04])
    rows = effective_step(x, a, 1.0, lr)
    one = effective_step(x[2], a[2], 1.0, 0.03)
    assert rows.angle.shape == (4,)
    assert one.angle.shape == ()
    assert rows.angle[2] == one.angle
    assert np.array_equal(rows.next_direction[2], one.next_direction)


@pytest.mark.parametrize("weight", [[0.0, 0.0], [[1.0, 2.0], [0.0, 0.0]]])
def test_a_zero_weight_has_no_direction(weight):
    with pytest.raises(ValueError, match=r"weight contains a vector of norm 0\.0, .* leave such vectors out"):
        effective_step(weight, np.ones(2), 1.0, 0.1)


@pytest.mark.parametrize(("lr", "factor"), [(2.0, "0"), (5.0, "-1.5")])
def test_a_step_through_the_origin_says_by_how_much_to_lower_lr(lr, factor):
    x = np.array([3.0, 4.0])
    with pytest.raises(
        ValueError, match=rf"u> = {factor} is not above 0: lr={lr} .* by more than {1 - float(factor):g}"
    ):
        effective_step(x, 0.5 * x, 1.0, lr)
    assert effective_step(x, 0.5 * x, 1.0, 1.99).radius_ratio == pytest.approx(0.005)


def test_a_zero_divisor_asks_for_eps():
    with pytest.raises(ValueError, match=r"b contains a zero.* add the optimizer's eps"):
        effective_step([1.0, 2.0], [0.1, 0.1], [1.0, 0.0], 0.1)


def follow_sgd(lr, weight_decay, steps=40):
    """SGD on a loss of directions alone, ½uᵀMu, with a rate for each step: its steps on the sphere, and its weights."""
    rng = np.random.default_rng(6)
    x = rng.standard_normal((ROWS, DIM))
    M = rng.standard_normal((DIM, DIM))
    M = M @ M.T / DIM
    on_sphere, weights = [], [x]
    for rate in np.broadcast_to(lr, steps):
        g = tangent(unit(x) @ M, x) / np.linalg.norm(x, axis=-1, keepdims=True) + weight_decay * x
        on_sphere.append(effective_step(x, g, 1.0, rate))
        x = x - rate * g
        weights.append(x)
    return on_sphere, np.array(weights)


def test_lemma_3_finds_the_two_schemes_of_eq_44_equivalent_as_their_weights_show():
    growing = 0.1 * (1 - 0.1 * 0.2) ** (-2.0 * np.arange(40) - 1)
    (decayed, first), (plain, second) = follow_sgd(0.1, 0.2), follow_sgd(growing, 0.0)
    compared = compare_schemes(decayed, plain)
    assert compared.are_equivalent(1e-12)
    assert compared.path <= 1e-12
    assert unit(first) == pytest.approx(unit(second), abs=1e-12)
    assert np.abs(first[-1] / second[-1] - 1).min() > 0.1  # the weights themselves differ


@pytest.mark.parametrize("exponent", [-2.0, -1.0])
def test_lemma_3_sees_a_learning_rate_that_grows_too_slowly(exponent):
    growing = 0.1 * (1 - 0.1 * 0.2) ** (exponent * np.arange(40))
    (decayed, first), (plain, second) = follow_sgd(0.1, 0.2), follow_sgd(growing, 0.0)
    compared = compare_schemes(decayed, plain)
    assert not compared.are_equivalent(1e-3)
    assert compared.start == 0.0
    assert compared.path == pytest.approx(np.linalg.norm(unit(first[1:]) - unit(second[1:]), axis=-1).max(), rel=1e-9)


def test_schemes_without_steps_or_with_different_numbers_of_them_are_refused():
    steps, _ = follow_sgd(0.1, 0.2, steps=2)
    with pytest.raises(ValueError, match="at least one"):
        compare_schemes([], [])
    with pytest.raises(ValueError, match="shorter"):
        compare_schemes(steps, steps[:1])
