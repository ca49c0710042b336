import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyroscope.theory import sphere
from gyroscope.theory.sphere import effective_step

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
TABLE_1 = {
    "SGD": lambda r, nu, radial: sphere.sgd_learning_rate(0.05, r),
    "SGD + L2": lambda r, nu, radial: sphere.sgd_learning_rate(0.05, r, weight_decay=0.3),
    "SGD-M": lambda r, nu, radial: sphere.sgdm_learning_rate(0.05, r, radial),
    "Adam": lambda r, nu, radial: sphere.adam_learning_rate(0.05, r, nu, radial),
    "Adam-SRT": lambda r, nu, radial: sphere.adam_srt_learning_rate(0.05, r, nu, weight_decay=0.3),
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


@pytest.mark.parametrize("scheme", SCHEMES)
def test_table_1_equals_the_generic_effective_learning_rate_on_actual_steps(scheme):
    for x, a, b, _ in SCHEMES[scheme](np.random.default_rng(2)):
        r = np.linalg.norm(x, axis=-1)
        rms_b = np.sqrt(np.mean(b * b, axis=-1))
        radial = np.sum(r[:, None] * a / (b / rms_b[:, None]) * unit(x), axis=-1)
        generic = effective_step(x, a, b, lr=0.05).learning_rate
        assert TABLE_1[scheme](r, r * rms_b, radial) == pytest.approx(generic, rel=1e-12)


def test_a_step_may_have_a_single_vector_or_a_learning_rate_per_row():
    x, a = np.random.default_rng(3).standard_normal((2, 4, 6))
    lr = np.array([0.01, 0.02, 0.03, 0.04])
    rows = effective_step(x, a, 1.0, lr)
    one = effective_step(x[2], a[2], 1.0, 0.03)
    assert rows.angle.shape == (4,)
    assert one.angle.shape == ()
    assert rows.angle[2] == one.angle
    assert np.array_equal(rows.next_direction[2], one.next_direction)


def test_the_step_on_the_sphere_is_the_exponential_map_to_second_order():
    """SP 10: the distance of the two falls 8 times when the step is halved."""
    x, a = np.random.default_rng(4).standard_normal((2, DIM))
    sizes = 0.1 * 2.0 ** -np.arange(6)
    steps = [effective_step(x, tangent(a, x), 1.0, lr) for lr in sizes]
    ends = [sphere.exponential_map(x, -s.learning_rate * s.direction) for s in steps]
    gaps = [np.linalg.norm(s.next_direction - end) for s, end in zip(steps, ends, strict=True)]
    assert np.polyfit(np.log(sizes), np.log(gaps), 1)[0] == pytest.approx(3.0, abs=0.05)


@settings(deadline=None)
@given(seed=seeds, size=st.floats(1e-5, 3.1))
def test_the_exponential_map_turns_by_the_norm_of_the_velocity(seed, size):
    rng = np.random.default_rng(seed)
    x = 3 * rng.standard_normal((ROWS, DIM))
    velocity = size * unit(tangent(rng.standard_normal(x.shape), x))
    end = sphere.exponential_map(x, velocity)
    assert np.linalg.norm(end, axis=-1) == pytest.approx(1.0, rel=1e-14)
    assert angle(unit(x), end) == pytest.approx(size, rel=1e-9)
    assert np.all(dot(end, velocity) > 0)


def test_the_exponential_map_of_no_velocity_is_the_point_itself():
    assert sphere.exponential_map([3.0, 4.0], [0.0, 0.0]).tolist() == [0.6, 0.8]


@settings(deadline=None)
@given(seed=seeds)
def test_rescale_transport_is_tangent_and_keeps_or_shrinks_by_a_known_factor(seed):
    """‖RT(m)‖² = (r/r')²·(‖m∥‖² + cos²θ‖m⊥‖²): m∥ is the tangent part along the geodesic, m⊥ the one across it."""
    rng = np.random.default_rng(seed)
    x, step, m = rng.standard_normal((3, ROWS, DIM))
    new = 1.7 * (x + 0.3 * step)
    moved = sphere.rescale_transport(m, x, new)
    rescale = np.linalg.norm(x, axis=-1) / np.linalg.norm(new, axis=-1)
    along = dot(m, unit(tangent(new, x)))[..., 0]
    across = np.linalg.norm(tangent(tangent(m, x), tangent(new, x)), axis=-1)
    norm = rescale * np.hypot(along, np.cos(angle(x, new)) * across)
    assert dot(moved, unit(new)) == pytest.approx(0, abs=1e-13)
    assert np.linalg.norm(moved, axis=-1) == pytest.approx(norm, rel=1e-10)


@settings(deadline=None)
@given(seed=seeds)
def test_rescale_transport_of_a_momentum_along_the_geodesic_is_parallel_transport_times_the_ratio_of_radii(seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((ROWS, DIM))
    m = tangent(rng.standard_normal(x.shape), x)
    new = 0.8 * (x - 0.2 * m)
    rescale = np.linalg.norm(x, axis=-1, keepdims=True) / np.linalg.norm(new, axis=-1, keepdims=True)
    assert sphere.rescale_transport(m, x, new) == pytest.approx(
        rescale * sphere.parallel_transport(m, x, new), abs=1e-12
    )


def test_rescale_transport_drops_the_radial_part():
    x, new, m = np.random.default_rng(5).standard_normal((3, DIM))
    assert sphere.rescale_transport(m + 4 * x, x, new) == pytest.approx(sphere.rescale_transport(m, x, new), abs=1e-12)


@settings(deadline=None)
@given(seed=seeds)
def test_parallel_transport_keeps_norms_angles_and_tangency(seed):
    rng = np.random.default_rng(seed)
    u = unit(rng.standard_normal((ROWS, DIM)))
    end = unit(u + 0.3 * rng.standard_normal(u.shape))
    m, other = (tangent(v, u) for v in rng.standard_normal((2, ROWS, DIM)))
    moved, moved_other = (sphere.parallel_transport(v, u, end) for v in (m, other))
    assert dot(moved, end) == pytest.approx(0, abs=1e-13)
    assert dot(moved, moved) == pytest.approx(dot(m, m), rel=1e-12)
    assert dot(moved, moved_other) == pytest.approx(dot(m, other), abs=1e-12)


def test_parallel_transport_carries_the_velocity_of_a_geodesic_to_its_end():
    u = np.array([1.0, 0.0, 0.0])
    velocity = np.array([0.0, 0.7, 0.0])
    moved = sphere.parallel_transport(velocity, u, sphere.exponential_map(u, velocity))
    assert moved == pytest.approx(0.7 * np.array([-np.sin(0.7), np.cos(0.7), 0.0]), abs=1e-15)


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


def test_the_first_effective_learning_rate_of_adam_g_star_is_that_of_sgd():
    radius = np.array([0.5, 1.0, 3.0])
    star = sphere.adam_g_star(0.1, 0.2, radius)
    assert star.lr / np.sqrt(star.v0) == pytest.approx(sphere.sgd_learning_rate(0.1, radius, 0.2), rel=1e-12)
    assert star.beta == pytest.approx(0.98**4)


def test_a_growing_learning_rate_beyond_the_range_of_a_float_is_inf_without_a_warning():
    assert sphere.lr_without_decay(0.1, 1.0, 10**5) == np.inf
    assert sphere.lr_without_decay(0.1, 0.0, 10**5) == 0.1


@pytest.mark.parametrize("weight", [[0.0, 0.0], [[1.0, 2.0], [0.0, 0.0]]])
def test_a_zero_weight_has_no_direction(weight):
    with pytest.raises(ValueError, match=r"weight holds a vector of norm 0\.0, .* leave such vectors out"):
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
    with pytest.raises(ValueError, match=r"b holds a zero.* add the optimizer's eps"):
        effective_step([1.0, 2.0], [0.1, 0.1], [1.0, 0.0], 0.1)


def test_opposite_points_have_no_one_geodesic():
    with pytest.raises(ValueError, match=r"1 \+ <start, end> = 0\.0: opposite points"):
        sphere.parallel_transport([0.0, 1.0], [1.0, 0.0], [-2.0, 0.0])


@pytest.mark.parametrize(
    "call", [lambda: sphere.exponential_map([0.0], [1.0]), lambda: sphere.rescale_transport([1.0], [1.0], [0.0])]
)
def test_the_sphere_has_no_point_for_a_zero_vector(call):
    with pytest.raises(ValueError, match=r"holds a vector of norm 0\.0"):
        call()


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


def test_the_radius_of_a_step_without_decay_is_that_of_the_weight_itself():
    for x, m, _, new in sgd(np.random.default_rng(0)):
        r2, g_unit = dot(x, x)[:, 0], np.linalg.norm(m, axis=-1) * np.linalg.norm(x, axis=-1)
        np.testing.assert_allclose(sphere.next_radius2(r2, 0.05, g_unit), dot(new, new)[:, 0], rtol=1e-12)


def test_the_solution_of_the_radius_is_off_by_its_next_order():
    g_unit = np.random.default_rng(0).uniform(0.5, 1.5, 200)
    errors = []
    for lr in (0.2, 0.1):
        exact = [1.0]
        for g in g_unit:
            exact.append(sphere.next_radius2(exact[-1], lr, g))
        errors.append(np.abs(sphere.radii2(1.0, lr, g_unit) / exact - 1).max())
    assert errors[0] < 0.01
    # The error of each step is of fourth order in lr, most of all in the first, at the smallest radius.
    assert errors[0] / errors[1] > 4


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_sgd_has_the_learning_rates_of_its_adam_g_star_which_are_those_of_a_growing_rate_over_the_radius(weight_decay):
    g_unit, lr, radius = np.random.default_rng(0).uniform(0.5, 1.5, 50), 0.1, 1.3
    star = sphere.adam_g_star(lr, weight_decay, radius)
    growing = sphere.lr_without_decay(lr, weight_decay, np.arange(51))  # SP 44
    first_line_of_47 = growing / sphere.radii2(radius, growing[:-1], g_unit)
    np.testing.assert_allclose(star.learning_rates(g_unit), first_line_of_47, rtol=1e-12)


def test_learning_rates_of_adam_g_star_have_a_column_for_each_weight():
    norms = np.array([[1.0, 2.0], [3.0, 4.0]])
    rates = sphere.AdamGStar(lr=0.7, beta=0.9, v0=np.array([1.0, 5.0])).learning_rates(norms)
    second = sphere.AdamGStar(lr=0.7, beta=0.9, v0=5.0).learning_rates(norms[:, 1])
    np.testing.assert_allclose(rates[:, 1], second, rtol=1e-12)


@pytest.mark.parametrize("srt", [False, True])
def test_nu_is_the_second_moment_of_actual_steps_on_the_sphere(srt):
    weight_decay, betas = 0.3, (0.9, 0.99)
    steps = list(adam(np.random.default_rng(0), weight_decay, srt, *betas, eps=0.0))
    radius = np.array([np.linalg.norm(x, axis=-1) for x, *_ in steps])
    gradient = np.array(gradients_of(np.random.default_rng(0), [x for x, *_ in steps]))
    for row in range(ROWS):
        for k, (x, _, b, _) in enumerate(steps):
            measured = np.linalg.norm(x[row]) * np.sqrt(np.mean(b[row] ** 2))
            unit_norms = np.linalg.norm(gradient[: k + 1, row], axis=-1) * radius[: k + 1, row]
            nu = sphere.adam_nu(
                radius[: k + 1, row], unit_norms, fan_in=DIM, betas=betas, weight_decay=weight_decay, rescaled=srt
            )
            assert nu == pytest.approx(measured, rel=1e-9)


def gradients_of(rng, weights):
    """The gradients that `adam` and `sgd` drew at these weights, with a generator that begins as theirs did."""
    rng.standard_normal(weights[0].shape)
    return [tangent(rng.standard_normal(x.shape), x) for x in weights]


def test_past_gradients_and_past_l2_make_up_the_direction_of_actual_steps():
    momentum, weight_decay = 0.9, 0.3
    steps = list(sgd(np.random.default_rng(0), momentum, weight_decay))
    weights = np.array([x for x, *_ in steps])
    gradients = np.array(gradients_of(np.random.default_rng(0), list(weights)))
    b = np.random.default_rng(1).uniform(0.5, 2.0, DIM)
    for k, (x, a, _, _) in enumerate(steps):
        split = sphere.momentum_on_sphere(weights[: k + 1, 0], gradients[: k + 1, 0], momentum)
        c = split.direction(weight_decay, b)
        np.testing.assert_allclose(
            c - np.dot(c, unit(x[0])) * unit(x[0]), effective_step(x[0], a[0], b, 0.01).direction
        )
        np.testing.assert_allclose(c, np.linalg.norm(x[0]) * a[0] / (b / np.sqrt(np.mean(b * b))), rtol=1e-9)


def test_without_momentum_the_direction_is_the_gradient_on_the_sphere():
    split = sphere.momentum_on_sphere([[1.0, 0.0], [0.0, 2.0]], [[0.0, 5.0], [3.0, 0.0]], beta=0.0)
    assert split.gradient.tolist() == [6.0, 0.0]
    assert split.l2.tolist() == [0.0, 1.0]
