"""SP's closed forms on the sphere, against actual steps."""

import numpy as np
import pytest
from gyroscope_lab.sp import _sphere as forms
from gyroscope_lab.sp._effective_step import effective_step
from hypothesis import given, settings

from gyroscope.theory import sphere
from tests.lab.test_sp_effective_step import DIM, ROWS, SCHEMES, adam, angle, dot, seeds, sgd, st, tangent, unit


def gradients_of(rng, weights):
    """The gradients that `adam` and `sgd` drew at these weights, with a generator that begins as theirs did."""
    rng.standard_normal(weights[0].shape)
    return [tangent(rng.standard_normal(x.shape), x) for x in weights]


TABLE_1 = {
    "SGD": lambda r, nu, radial: forms.sgd_learning_rate(0.05, r),
    "SGD + L2": lambda r, nu, radial: forms.sgd_learning_rate(0.05, r, weight_decay=0.3),
    "SGD-M": lambda r, nu, radial: forms.sgdm_learning_rate(0.05, r, radial),
    "Adam": lambda r, nu, radial: forms.adam_learning_rate(0.05, r, nu, radial),
    "Adam-SRT": lambda r, nu, radial: forms.adam_srt_learning_rate(0.05, r, nu, weight_decay=0.3),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_table_1_equals_the_generic_effective_learning_rate_on_actual_steps(scheme):
    for x, a, b, _ in SCHEMES[scheme](np.random.default_rng(2)):
        r = np.linalg.norm(x, axis=-1)
        rms_b = np.sqrt(np.mean(b * b, axis=-1))
        radial = np.sum(r[:, None] * a / (b / rms_b[:, None]) * unit(x), axis=-1)
        generic = effective_step(x, a, b, lr=0.05).learning_rate
        assert TABLE_1[scheme](r, r * rms_b, radial) == pytest.approx(generic, rel=1e-12)


def test_the_step_on_the_sphere_is_the_exponential_map_to_second_order():
    """SP 10: the distance of the two falls 8 times when the step is halved."""
    x, a = np.random.default_rng(4).standard_normal((2, DIM))
    sizes = 0.1 * 2.0 ** -np.arange(6)
    steps = [effective_step(x, tangent(a, x), 1.0, lr) for lr in sizes]
    ends = [forms.exponential_map(x, -s.learning_rate * s.direction) for s in steps]
    gaps = [np.linalg.norm(s.next_direction - end) for s, end in zip(steps, ends, strict=True)]
    assert np.polyfit(np.log(sizes), np.log(gaps), 1)[0] == pytest.approx(3.0, abs=0.05)


@settings(deadline=None)
@given(seed=seeds, size=st.floats(1e-5, 3.1))
def test_the_exponential_map_turns_by_the_norm_of_the_velocity(seed, size):
    rng = np.random.default_rng(seed)
    x = 3 * rng.standard_normal((ROWS, DIM))
    velocity = size * unit(tangent(rng.standard_normal(x.shape), x))
    end = forms.exponential_map(x, velocity)
    assert np.linalg.norm(end, axis=-1) == pytest.approx(1.0, rel=1e-14)
    assert angle(unit(x), end) == pytest.approx(size, rel=1e-9)
    assert np.all(dot(end, velocity) > 0)


def test_the_exponential_map_of_no_velocity_is_the_point_itself():
    assert forms.exponential_map([3.0, 4.0], [0.0, 0.0]).tolist() == [0.6, 0.8]


@settings(deadline=None)
@given(seed=seeds)
def test_rescaling_and_transport_commute_and_make_the_papers_rt(seed):
    """SP 18, by sums over entries: RT(m)_j = Σ_i (x'_i·x_i·m_j - x'_i·m_i·x_j)/Σ_i x'_i²."""
    rng = np.random.default_rng(seed)
    x, new, m = rng.standard_normal((3, ROWS, DIM))
    expected = np.empty_like(m)
    for row in range(ROWS):
        xx, mm, nn = x[row].tolist(), m[row].tolist(), new[row].tolist()
        for j in range(DIM):
            turned = sum(n * a * mm[j] - n * b * xx[j] for n, a, b in zip(nn, xx, mm, strict=True))
            expected[row, j] = turned / sum(n * n for n in nn)
    assert forms.rescale_transport(m, x, new) == pytest.approx(expected, rel=1e-11, abs=1e-12)
    assert forms.transport(forms.rescale(m, x, new), x, new) == pytest.approx(expected, rel=1e-11, abs=1e-12)


def test_rescaling_alone_takes_the_radii_out_of_the_momentum():
    """SP 71: r_k·a_k = Σ β^(k-i)·∇L(u_i), whatever radii the weights had."""
    rng = np.random.default_rng(9)
    directions, gradients = unit(rng.standard_normal((5, DIM))), rng.standard_normal((5, DIM))
    momenta = []
    for radii in (np.ones(5), np.array([1.0, 3.0, 0.5, 2.0, 0.7])):
        a, old = np.zeros(DIM), directions[0] * radii[0]
        for r, u, unit_gradient in zip(radii, directions, gradients, strict=True):
            a = 0.9 * forms.rescale(a, old, r * u) + unit_gradient / r
            old = r * u
        momenta.append(radii[-1] * a)
    literal = sum(0.9 ** (4 - i) * gradients[i] for i in range(5))
    assert momenta == [pytest.approx(literal, rel=1e-12)] * 2


def test_transport_alone_drops_the_decay_and_keeps_what_lies_along_the_geodesic():
    """SP 74, and the norm of what is along the geodesic; what is across it shrinks by cosθ."""
    x, new, across = np.eye(3)[0], np.array([np.cos(0.4), np.sin(0.4), 0.0]), np.eye(3)[2]
    along = np.eye(3)[1]
    assert forms.transport(along + 0.3 * x, x, new) == pytest.approx(forms.transport(along, x, new), abs=1e-15)
    assert forms.transport(along, x, new) == pytest.approx([-np.sin(0.4), np.cos(0.4), 0.0])
    assert forms.transport(across, x, new) == pytest.approx(np.cos(0.4) * across)


@settings(deadline=None)
@given(seed=seeds)
def test_rescale_transport_is_tangent_and_keeps_or_shrinks_by_a_known_factor(seed):
    """‖RT(m)‖² = (r/r')²·(‖m∥‖² + cos²θ‖m⊥‖²): m∥ is the tangent part along the geodesic, m⊥ the one across it."""
    rng = np.random.default_rng(seed)
    x, step, m = rng.standard_normal((3, ROWS, DIM))
    new = 1.7 * (x + 0.3 * step)
    moved = forms.rescale_transport(m, x, new)
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
    assert forms.rescale_transport(m, x, new) == pytest.approx(rescale * forms.parallel_transport(m, x, new), abs=1e-12)


def test_rescale_transport_drops_the_radial_part():
    x, new, m = np.random.default_rng(5).standard_normal((3, DIM))
    assert forms.rescale_transport(m + 4 * x, x, new) == pytest.approx(forms.rescale_transport(m, x, new), abs=1e-12)


@settings(deadline=None)
@given(seed=seeds)
def test_parallel_transport_keeps_norms_angles_and_tangency(seed):
    rng = np.random.default_rng(seed)
    u = unit(rng.standard_normal((ROWS, DIM)))
    end = unit(u + 0.3 * rng.standard_normal(u.shape))
    m, other = (tangent(v, u) for v in rng.standard_normal((2, ROWS, DIM)))
    moved, moved_other = (forms.parallel_transport(v, u, end) for v in (m, other))
    assert dot(moved, end) == pytest.approx(0, abs=1e-13)
    assert dot(moved, moved) == pytest.approx(dot(m, m), rel=1e-12)
    assert dot(moved, moved_other) == pytest.approx(dot(m, other), abs=1e-12)


def test_parallel_transport_carries_the_velocity_of_a_geodesic_to_its_end():
    u = np.array([1.0, 0.0, 0.0])
    velocity = np.array([0.0, 0.7, 0.0])
    moved = forms.parallel_transport(velocity, u, forms.exponential_map(u, velocity))
    assert moved == pytest.approx(0.7 * np.array([-np.sin(0.7), np.cos(0.7), 0.0]), abs=1e-15)


def test_the_first_effective_learning_rate_of_adam_g_star_is_that_of_sgd():
    radius = np.array([0.5, 1.0, 3.0])
    star = sphere.adam_g_star(0.1, 0.2, radius)
    assert star.lr / np.sqrt(star.v0) == pytest.approx(forms.sgd_learning_rate(0.1, radius, 0.2), rel=1e-12)
    assert star.beta == pytest.approx(0.98**4)


def test_opposite_points_have_no_one_geodesic():
    with pytest.raises(ValueError, match=r"1 \+ <start, end> = 0\.0: opposite points"):
        forms.parallel_transport([0.0, 1.0], [1.0, 0.0], [-2.0, 0.0])


@pytest.mark.parametrize(
    "call", [lambda: forms.exponential_map([0.0], [1.0]), lambda: forms.rescale_transport([1.0], [1.0], [0.0])]
)
def test_the_sphere_has_no_point_for_a_zero_vector(call):
    with pytest.raises(ValueError, match=r"contains a vector of norm 0\.0"):
        call()


def test_the_radius_of_a_step_without_decay_is_that_of_the_weight_itself():
    for x, m, _, new in sgd(np.random.default_rng(0)):
        r2, g_unit = dot(x, x)[:, 0], np.linalg.norm(m, axis=-1) * np.linalg.norm(x, axis=-1)
        np.testing.assert_allclose(forms.next_radius2(r2, 0.05, g_unit), dot(new, new)[:, 0], rtol=1e-12)


def test_the_solution_of_the_radius_is_off_by_its_next_order():
    g_unit = np.random.default_rng(0).uniform(0.5, 1.5, 200)
    errors = []
    for lr in (0.2, 0.1):
        exact = [1.0]
        for g in g_unit:
            exact.append(forms.next_radius2(exact[-1], lr, g))
        errors.append(np.abs(forms.radii2(1.0, lr, g_unit) / exact - 1).max())
    assert errors[0] < 0.01
    # The error of each step is of fourth order in lr, most of all in the first, at the smallest radius.
    assert errors[0] / errors[1] > 4


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_sgd_has_the_learning_rates_of_its_adam_g_star_which_are_those_of_a_growing_rate_over_the_radius(weight_decay):
    g_unit, lr, radius = np.random.default_rng(0).uniform(0.5, 1.5, 50), 0.1, 1.3
    star = sphere.adam_g_star(lr, weight_decay, radius)
    growing = sphere.lr_without_decay(lr, weight_decay, np.arange(51))  # SP 44
    first_line_of_47 = growing / forms.radii2(radius, growing[:-1], g_unit)
    np.testing.assert_allclose(forms.adam_g_star_learning_rates(star, g_unit), first_line_of_47, rtol=1e-12)


def test_learning_rates_of_adam_g_star_have_a_column_for_each_weight():
    norms = np.array([[1.0, 2.0], [3.0, 4.0]])
    rates = forms.adam_g_star_learning_rates(sphere.AdamGStar(lr=0.7, beta=0.9, v0=np.array([1.0, 5.0])), norms)
    second = forms.adam_g_star_learning_rates(sphere.AdamGStar(lr=0.7, beta=0.9, v0=5.0), norms[:, 1])
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
            nu = forms.adam_nu(
                radius[: k + 1, row], unit_norms, fan_in=DIM, betas=betas, weight_decay=weight_decay, rescaled=srt
            )
            assert nu == pytest.approx(measured, rel=1e-9)


def test_past_gradients_and_past_l2_make_up_the_direction_of_actual_steps():
    momentum, weight_decay = 0.9, 0.3
    steps = list(sgd(np.random.default_rng(0), momentum, weight_decay))
    weights = np.array([x for x, *_ in steps])
    gradients = np.array(gradients_of(np.random.default_rng(0), list(weights)))
    b = np.random.default_rng(1).uniform(0.5, 2.0, DIM)
    for k, (x, a, _, _) in enumerate(steps):
        split = forms.momentum_on_sphere(weights[: k + 1, 0], gradients[: k + 1, 0], momentum)
        c = split.direction(weight_decay, b)
        np.testing.assert_allclose(
            c - np.dot(c, unit(x[0])) * unit(x[0]), effective_step(x[0], a[0], b, 0.01).direction
        )
        np.testing.assert_allclose(c, np.linalg.norm(x[0]) * a[0] / (b / np.sqrt(np.mean(b * b))), rtol=1e-9)


def test_without_momentum_the_direction_is_the_gradient_on_the_sphere():
    split = forms.momentum_on_sphere([[1.0, 0.0], [0.0, 2.0]], [[0.0, 5.0], [3.0, 0.0]], beta=0.0)
    assert split.gradient.tolist() == [6.0, 0.0]
    assert split.l2.tolist() == [0.0, 1.0]
