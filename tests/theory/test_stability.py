import numpy as np
import pytest
from hypothesis import example, given, settings, target
from hypothesis import strategies as st

from gyroscope.theory import stability
from gyroscope.theory.stability import exact_margin, growth_rate, level_curve, margin, normal_curve, update_bound

beta1s = st.floats(0.0, 0.999)
positive_beta1s = st.floats(0.05, 0.999)
beta2s = st.floats(0.02, 0.9999)


def adam_updates(gradients, beta1, beta2):
    """Literal Adam without eps along the first axis; an average of ones is 1 - beta^(n+1) without its cancellation."""
    m = v = m_one = v_one = 0.0
    for g in gradients:
        m, m_one = beta1 * m + (1 - beta1) * g, beta1 * m_one + (1 - beta1)
        v, v_one = beta2 * v + (1 - beta2) * g * g, beta2 * v_one + (1 - beta2)
        yield (m / m_one) / np.sqrt(v / v_one)


def last_update(gradients, beta1, beta2):
    return list(adam_updates(gradients, beta1, beta2))[-1]


def extremal_gradients(n, beta1, beta2):
    log_g = np.arange(n, -1, -1) * np.log(beta1 / beta2)
    return np.exp(log_g - log_g.max())


@settings(max_examples=200, deadline=None)
@given(n=st.integers(0, 100), beta1=positive_beta1s, beta2=beta2s)
@example(n=100, beta1=0.9, beta2=0.999)
@example(n=100, beta1=0.99, beta2=0.9)  # unstable
@example(n=100, beta1=0.5, beta2=0.25)  # ratio 1
@example(n=100, beta1=0.7, beta2=0.49 * (1 + 1e-12))  # ratio near 1
def test_the_exact_bound_is_attained_by_its_extremal_gradients(n, beta1, beta2):
    attained = last_update(extremal_gradients(n, beta1, beta2), beta1, beta2)
    assert attained == pytest.approx(update_bound(n, beta1, beta2, exact=True), rel=1e-9)


SEQUENCES_PER_EXAMPLE = 200


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(0, 60),
    beta1=beta1s,
    beta2=beta2s,
    spread=st.floats(0.0, 4.0),
    nearness=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_random_gradients_exceed_the_exact_bound(n, beta1, beta2, spread, nearness, seed):
    """100 examples of 200 sequences are 20,000: heavy tails, sparse ones, and neighbours of the extremal sequence."""
    rng = np.random.default_rng(seed)
    shape = (n + 1, SEQUENCES_PER_EXAMPLE)
    g = rng.standard_normal(shape) * np.exp(spread * rng.standard_normal(shape))
    g[:, ::4] *= rng.random((n + 1, SEQUENCES_PER_EXAMPLE // 4)) < 0.3
    g[0, :] += 1e-3  # a sequence of zeros has no update
    if beta1 > 0.05:
        g[:, 1::4] = extremal_gradients(n, beta1, beta2)[:, None] * np.exp((1 - nearness) * g[:, 1::4].clip(-5, 5))
    bounds = update_bound(np.arange(n + 1), beta1, beta2, exact=True)
    excess = [np.max(np.abs(u)) / bound for u, bound in zip(adam_updates(g, beta1, beta2), bounds, strict=True)]
    assert max(excess) <= 1 + 1e-12


@settings(max_examples=300, deadline=None)
@given(
    g=st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e3), st.floats(-1e3, -1e-3)), min_size=1, max_size=12),
    beta1=beta1s,
    beta2=beta2s,
)
def test_a_search_for_gradients_that_exceed_the_exact_bound_finds_none(g, beta1, beta2):
    g = [1.0, *g]
    ratio = abs(last_update(g, beta1, beta2)) / update_bound(len(g) - 1, beta1, beta2, exact=True)
    target(float(ratio))
    assert ratio <= 1 + 1e-12


@given(n=st.integers(0, 300), beta1=positive_beta1s, beta2=beta2s)
def test_the_papers_bound_lies_above_the_exact_one_in_the_papers_stable_region(n, beta1, beta2):
    """C > 0 implies β1²C ≤ β2 - β1², that is (β2 - β1)² ≥ 0."""
    if margin(beta1, beta2) > 1e-12:
        assert update_bound(n, beta1, beta2) >= update_bound(n, beta1, beta2, exact=True) * (1 - 1e-12)


def test_the_papers_bound_is_below_a_real_first_update_far_in_the_unstable_region():
    assert update_bound(0, 0.9, 0.1, exact=True) == pytest.approx(1.0, rel=1e-15)
    assert update_bound(0, 0.9, 0.1) < 0.2


@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.999), (0.99, 0.9)])
def test_the_papers_bound_is_equation_5(beta1, beta2):
    n, c = 40, 2 / beta1 - 1 / beta2 - 1
    b_n = (1 if c > 0 else np.exp(n * abs(c) / 2)) / np.sqrt(abs(c))
    unbias = np.sqrt(1 - beta2 ** (n + 1)) / (1 - beta1 ** (n + 1))
    expected = unbias * (1 - beta1) / beta1 * np.sqrt(beta2 / (1 - beta2)) * b_n
    assert update_bound(n, beta1, beta2) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("beta2", [0.3, 0.5, 0.9, 0.999])
def test_the_papers_bound_grows_as_the_root_of_n_on_the_boundary_and_is_void_at_its_first_step(beta2):
    beta1 = level_curve(0.0, beta2)
    n = 64
    unbias = np.sqrt(1 - beta2 ** (n + 1)) / (1 - beta1 ** (n + 1))
    expected = unbias * (1 - beta1) / beta1 * np.sqrt(beta2 / (1 - beta2)) * 8
    assert update_bound(n, beta1, beta2) == pytest.approx(expected, rel=1e-9)
    assert update_bound(0, beta1, beta2) == np.inf


def test_without_momentum_the_margins_are_infinite_and_only_the_exact_bound_speaks():
    assert margin(0.0, 0.99) == exact_margin(0.0, 0.99) == np.inf
    assert growth_rate(0.0, 0.99) == growth_rate(0.0, 0.99, exact=True) == 0.0
    assert update_bound(30, 0.0, 0.99) == np.inf
    assert update_bound(30, 0.0, 0.99, exact=True) == pytest.approx(np.sqrt((1 - 0.99**31) / 0.01))


@pytest.mark.parametrize("offset", [0.0, 1e-15, -1e-15, 1e-9, -1e-9, 1e-4, -1e-4])
def test_the_exact_sum_stays_accurate_where_its_ratio_is_at_or_near_1(offset):
    beta1, beta2, n = 0.5, 0.25 * (1 + offset), 400
    total = np.sum((beta1**2 / beta2) ** np.arange(n + 1, dtype=np.longdouble))
    expected = (
        np.sqrt(1 - beta2 ** (n + 1)) / (1 - beta1 ** (n + 1)) * (1 - beta1) / np.sqrt(1 - beta2) * np.sqrt(total)
    )
    assert update_bound(n, beta1, beta2, exact=True) == pytest.approx(float(expected), rel=1e-12)


def test_growth_beyond_the_range_of_a_float_is_inf_without_a_warning():
    assert update_bound(10**6, 0.99, 0.5) == np.inf
    assert update_bound(10**6, 0.99, 0.5, exact=True) == np.inf
    assert np.isfinite(update_bound(2000, 0.99, 0.5, exact=True))  # its square would not be


def test_the_bound_takes_arrays_of_steps_and_of_betas():
    n, beta1 = np.arange(4), np.array([[0.0], [0.5], [0.9]])
    table = update_bound(n, beta1, 0.8, exact=True)
    assert table.shape == (3, 4)
    assert table[2, 3] == update_bound(3, 0.9, 0.8, exact=True)
    assert isinstance(update_bound(3, 0.9, 0.8), float)


def test_margins_are_the_closed_forms():
    assert margin(0.9, 0.999) == pytest.approx(2 / 0.9 - 1 / 0.999 - 1, rel=1e-13)
    assert exact_margin(0.9, 0.999) == pytest.approx(np.log(0.999 / 0.81), rel=1e-13)


@given(beta1=positive_beta1s, beta2=beta2s)
def test_the_exact_stable_region_contains_the_papers(beta1, beta2):
    if margin(beta1, beta2) > 0:
        assert exact_margin(beta1, beta2) > 0


def test_between_the_two_boundaries_the_discrete_step_is_stable_although_the_paper_says_it_is_not():
    beta1, beta2 = 0.9, 0.815  # β1² = 0.81 < β2 < β1/(2-β1) = 0.818
    assert margin(beta1, beta2) < 0 < exact_margin(beta1, beta2)


def test_both_margins_agree_to_first_order_as_the_betas_go_to_1():
    sizes = 2.0 ** -np.arange(4, 12)
    gap = margin(1 - sizes, 1 - sizes / 3) - exact_margin(1 - sizes, 1 - sizes / 3)
    order = np.polyfit(np.log(sizes), np.log(np.abs(gap)), 1)[0]
    assert order == pytest.approx(2.0, abs=0.1)
    assert margin(1 - sizes, 1 - sizes / 3)[-1] / sizes[-1] == pytest.approx(2 - 1 / 3, rel=1e-2)


def test_growth_is_zero_where_stable_and_half_the_missing_margin_where_not():
    assert growth_rate(0.9, 0.999) == growth_rate(0.9, 0.999, exact=True) == 0.0
    assert growth_rate(0.99, 0.9) == pytest.approx(-margin(0.99, 0.9) / 2)
    assert growth_rate(0.99, 0.9, exact=True) == pytest.approx(np.log(0.99**2 / 0.9) / 2)


@given(beta1=positive_beta1s, beta2=beta2s)
def test_the_exact_growth_never_exceeds_the_papers(beta1, beta2):
    assert growth_rate(beta1, beta2, exact=True) <= growth_rate(beta1, beta2) + 1e-15


@pytest.mark.parametrize("exact", [False, True])
def test_late_bounds_grow_by_the_growth_rate(exact):
    early, late = np.asarray(update_bound(np.array([2000, 3000]), 0.99, 0.95, exact=exact))
    assert np.log(late / early) / 1000 == pytest.approx(growth_rate(0.99, 0.95, exact=exact), rel=1e-9)


@given(c=st.floats(0.0, 50.0), beta2=beta2s)
def test_the_margin_on_a_level_curve_is_its_level(c, beta2):
    assert margin(level_curve(c, beta2), beta2) == pytest.approx(c, rel=1e-9, abs=1e-9)


def test_negative_levels_exist_up_to_the_beta2_that_brings_beta1_to_1():
    beta2 = np.linspace(0.05, 0.49, 9)  # c = -1 needs 1 - 1/beta2 < -1
    assert margin(level_curve(-1.0, beta2), beta2) == pytest.approx(-1.0)


@given(beta1=st.floats(0.3, 0.95), beta2=st.floats(0.3, 0.99))
def test_a_normal_curve_passes_through_its_point(beta1, beta2):
    assert normal_curve(beta1, beta2, beta2) == pytest.approx(beta1, rel=1e-14)


@given(beta1=st.floats(0.5, 0.95), beta2=st.floats(0.3, 0.95), step=st.floats(-0.005, 0.005))
def test_a_normal_curve_is_orthogonal_to_the_level_curves_it_meets(beta1, beta2, step):
    b, h = beta2 + step, 1e-6
    g = normal_curve(beta1, beta2, b)
    c = margin(g, b)
    along_normal = (normal_curve(beta1, beta2, b + h) - normal_curve(beta1, beta2, b - h)) / (2 * h)
    along_level = (level_curve(c, b + h) - level_curve(c, b - h)) / (2 * h)
    assert along_normal * along_level == pytest.approx(-1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("strategy", "stage"),
    [
        ("inverse_exp", (1 - 0.1 ** (1 / 3), 0.9)),
        ("exp", (0.729, 0.997002999)),
        ("scaled", (0.3, 0.333)),
        ("naive", (0.9, 0.999)),
    ],
)
def test_a_strategy_gives_every_stage_of_k_adam_the_papers_betas(strategy, stage):
    assert np.array(stability.kadam_betas(strategy, 3, (0.9, 0.999))) == pytest.approx(np.array([stage] * 3), rel=1e-12)


@pytest.mark.parametrize("strategy", stability.STRATEGIES)
def test_one_stage_is_adam_under_every_strategy(strategy):
    assert stability.kadam_betas(strategy, 1, (0.9, 0.999)) == [pytest.approx((0.9, 0.999), rel=1e-12)]


@settings(max_examples=30, deadline=None)
@given(strategy=st.sampled_from(sorted(stability.STRATEGIES)), k=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_the_output_of_every_stage_of_k_adam_stays_within_its_own_bound(strategy, k, seed):
    rng, n = np.random.default_rng(seed), 50
    stages = stability.kadam_betas(strategy, k, (0.9, 0.999))
    signal = rng.standard_normal((n + 1, 100)) * np.exp(3 * rng.standard_normal((n + 1, 100)))
    for stage in stages:
        signal = np.array(list(adam_updates(signal, *stage)))
        bounds = update_bound(np.arange(n + 1), *stage, exact=True)
        assert np.all(np.abs(signal) <= bounds[:, None] * (1 + 1e-12))


@pytest.mark.parametrize("beta1", [-0.1, 1.0, float("nan")])
def test_a_beta1_outside_its_range_is_quoted(beta1):
    for call in (margin, exact_margin, growth_rate, lambda *betas: update_bound(3, *betas)):
        with pytest.raises(ValueError, match=rf"beta1={beta1!r} must be at least 0 and below 1"):
            call(beta1, 0.999)


@pytest.mark.parametrize("beta2", [0.0, -0.1, 1.0, float("nan")])
def test_a_beta2_outside_its_range_is_quoted(beta2):
    for call in (margin, exact_margin, growth_rate, lambda *betas: update_bound(3, *betas)):
        with pytest.raises(ValueError, match=rf"beta2={beta2!r} must be above 0 and below 1"):
            call(0.9, beta2)


def test_a_level_that_no_beta1_reaches_names_the_lowest_one():
    with pytest.raises(ValueError, match=r"c=-2.0 is not a possible margin at beta2=0.5: choose c above .* = -1"):
        level_curve(-2.0, 0.5)


@pytest.mark.parametrize("at_beta2", [0.75, 0.98])
def test_a_point_off_the_normal_curve_names_the_part_of_beta2_it_covers(at_beta2):
    low, high = 0.752538362, 0.974759265  # where the curve through (0.3, 0.97) reaches beta1 = 1 and beta1 = 0
    assert normal_curve(0.3, 0.97, low + 1e-8) == pytest.approx(1.0, abs=1e-7)
    assert normal_curve(0.3, 0.97, high) == pytest.approx(0.0, abs=2e-3)
    with pytest.raises(ValueError, match=rf"at_beta2={at_beta2} is off .* above {low}\d* and at most {high}"):
        normal_curve(0.3, 0.97, at_beta2)


def test_an_unknown_strategy_lists_those_that_exist():
    with pytest.raises(
        ValueError, match="strategy='inverse' is unknown: choose one of inverse_exp, exp, scaled, naive"
    ):
        stability.kadam_betas("inverse", 2, (0.9, 0.999))


@pytest.mark.parametrize("k", [0, 1.5])
def test_a_number_of_stages_that_is_none_is_quoted(k):
    with pytest.raises(ValueError, match=rf"k={k} must be a number of stages"):
        stability.kadam_betas("exp", k, (0.9, 0.999))
