"""The maps of SMD: fixed points, and real vectors whose measured gradients they must reproduce."""

import numpy as np
import pytest
from gyroscope_lab.smd import next_norm, sgd_map, sgdm_map, sgdm_modes

from gyroscope.theory import SGDM


@pytest.mark.parametrize("unit_grad2", [0.2, 5.0])
def test_sgd_settles_where_the_paper_says(unit_grad2):
    path = sgd_map(np.full(20_000, unit_grad2), lr=0.1, weight_decay=5e-3, norm2=3.0)
    assert path.norm2[-1] == pytest.approx((unit_grad2 * 0.1 / 1e-2) ** 0.5, rel=1e-9)
    assert path.norm[-1] == path.norm2[-1] ** 0.5


def test_both_maps_settle_at_the_exact_equilibrium():
    L = np.full(40_000, 0.49)
    plain = sgd_map(L, lr=0.1, weight_decay=1e-2, norm2=1.0, keep_square=True)
    heavy = sgdm_map(L, lr=0.1, weight_decay=1e-2, momentum=0.9, norm2=1.0)
    for path, rule in ((plain, SGDM(0.1, 1e-2)), (heavy, SGDM(0.1, 1e-2, 0.9))):
        eq = rule.equilibrium(unit_grad_norm=0.7)
        assert path.norm[-1] == pytest.approx(eq.norm, rel=1e-9)
        assert path.angular_update[-1] == pytest.approx(eq.angular_update, rel=1e-6)


def test_without_momentum_the_two_maps_are_one():
    L = np.random.default_rng(0).uniform(0.5, 1.5, 300)
    plain = sgd_map(L, lr=0.1, weight_decay=1e-2, norm2=2.0, keep_square=True)
    heavy = sgdm_map(L, lr=0.1, weight_decay=1e-2, momentum=0.0, norm2=2.0)
    np.testing.assert_allclose(heavy.norm2, plain.norm2, rtol=1e-12)
    np.testing.assert_allclose(heavy.angular_update, plain.angular_update, rtol=1e-6)
    np.testing.assert_allclose(heavy.state, plain.state, rtol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_real_vector_is_followed_exactly_also_when_the_rate_changes(momentum):
    rng, wd = np.random.default_rng(1), 0.02
    lr = np.where(np.arange(200) < 100, 0.1, 0.03)
    w, v, h, norms, angles = rng.standard_normal(20), np.zeros(20), [], [], []
    start = w @ w
    for rate in lr:
        g = rng.standard_normal(20) / np.linalg.norm(w)
        g -= (g @ w) / (w @ w) * w
        h.append((g @ g + 2 * momentum * (v @ g)) * (w @ w))
        v = momentum * v + g + wd * w
        new = w - rate * v
        angles.append(np.arccos(new @ w / np.sqrt((new @ new) * (w @ w))))
        w = new
        norms.append(w @ w)
    path = sgdm_map(h, lr=lr, weight_decay=wd, momentum=momentum, norm2=start)
    np.testing.assert_allclose(path.norm2, norms, rtol=1e-10)
    np.testing.assert_allclose(path.angular_update, angles, rtol=1e-6)
    if momentum == 0:
        plain = sgd_map(h, lr=lr, weight_decay=wd, norm2=start, keep_square=True)
        np.testing.assert_allclose(plain.norm2, norms, rtol=1e-10)
        np.testing.assert_allclose(plain.angular_update, angles, rtol=1e-6)


def test_runs_side_by_side_are_the_runs_alone():
    L = np.random.default_rng(2).uniform(0.5, 1.5, (100, 3))
    starts, wds = np.array([1.0, 2.0, 3.0]), np.array([[1e-3, 1e-2, 1e-1]])
    together = sgdm_map(L, lr=0.1, weight_decay=wds, momentum=0.5, norm2=starts)
    plain = sgd_map(L, lr=0.1, weight_decay=wds, norm2=starts)
    for i in range(3):
        alone = sgdm_map(L[:, i], lr=0.1, weight_decay=wds[0, i], momentum=0.5, norm2=starts[i])
        np.testing.assert_allclose(together.norm2[:, i], alone.norm2)
        np.testing.assert_allclose(together.angular_update[:, i], alone.angular_update)
        alone = sgd_map(L[:, i], lr=0.1, weight_decay=wds[0, i], norm2=starts[i])
        np.testing.assert_allclose(plain.norm2[:, i], alone.norm2)
    many = sgd_map(L[:, 0], lr=0.1, weight_decay=1e-2, norm2=starts)
    assert many.norm2.shape == (100, 3)


def test_a_path_goes_on_where_another_ended():
    L, lr = np.random.default_rng(3).uniform(0.5, 1.5, 100), np.where(np.arange(100) < 40, 0.1, 0.02)
    options = {"weight_decay": 0.02, "momentum": 0.9}
    whole = sgdm_map(L, lr=lr, norm2=2.0, **options)
    first = sgdm_map(L[:40], lr=lr[:40], norm2=2.0, **options)
    rest = sgdm_map(L[40:], lr=lr[40:], state=first.state, lr_before=0.1, **options)
    np.testing.assert_allclose(rest.norm2, whole.norm2[40:])
    np.testing.assert_allclose(rest.angular_update, whole.angular_update[40:])


@pytest.mark.parametrize(
    ("call", "quoted"),
    [
        (lambda: sgd_map([1.0, -1.0], lr=0.1, weight_decay=0.1, norm2=1.0), "falls to -1.0"),
        (lambda: sgd_map([], lr=0.1, weight_decay=0.1, norm2=1.0), "for each step"),
        (lambda: sgd_map([1.0], lr=0.0, weight_decay=0.1, norm2=1.0), "lr=0.0"),
        (lambda: sgd_map([1.0], lr=0.1, weight_decay=-0.1, norm2=1.0), "weight_decay=-0.1"),
        (lambda: sgd_map([1.0, 1.0], lr=[0.1] * 3, weight_decay=0.1, norm2=1.0), "These differ"),
        (lambda: sgdm_map([1.0], lr=0.1, weight_decay=0.1, momentum=1.0, norm2=1.0), "momentum=1.0"),
        (lambda: sgdm_map([1.0], lr=0.1, weight_decay=0.1, momentum=0.9), "pass norm2"),
    ],
)
def test_bad_input_is_quoted(call, quoted):
    with pytest.raises(ValueError, match=quoted):
        call()


def test_one_starting_norm_serves_all_runs():
    unit_grad2 = np.full((50, 3), [0.5, 1.0, 2.0])
    together = sgdm_map(unit_grad2, lr=0.1, weight_decay=1e-2, momentum=0.9, norm2=4.0)
    for run in range(3):
        alone = sgdm_map(unit_grad2[:, run], lr=0.1, weight_decay=1e-2, momentum=0.9, norm2=4.0)
        np.testing.assert_array_equal(together.norm2[:, run], alone.norm2)
        np.testing.assert_array_equal(together.angular_update[:, run], alone.angular_update)


def test_the_approximate_step_of_the_norm_is_right_to_second_order():
    """SMD 15 against a real step, w' = w - lr·(g + λw): the error falls 4 times where lr·λ and lr²L/‖w‖⁴ are halved."""
    rng = np.random.default_rng(3)
    w = rng.standard_normal(30)
    g = rng.standard_normal(30)
    g -= (g @ w) / (w @ w) * w
    norm = np.linalg.norm(w)
    errors = []
    for halving in range(5):
        lr, wd = 0.1 * 2 ** (-halving / 2), 2.0 * 2 ** (-halving / 2)
        after = np.linalg.norm(w - lr * (g + wd * w))
        errors.append(abs(next_norm(norm, lr=lr, weight_decay=wd, unit_grad_norm=np.linalg.norm(g) * norm) - after))
    assert np.diff(np.log2(errors))[-2:] == pytest.approx(-2, abs=0.1)


@pytest.mark.parametrize(("lr", "weight_decay", "momentum"), [(0.1, 5e-4, 0.9), (0.2, 0.01, 0.5), (0.1, 0.3, 0.0),
                                                              (1.0, (1 - 0.81**0.5) ** 2 * 0.99, 0.81)])  # fmt: skip
def test_the_modes_are_the_eigenvalues_of_the_map(lr, weight_decay, momentum):
    b = 1 + momentum - lr * weight_decay
    A = [[b * b, -2 * momentum * b, momentum**2], [b, -momentum, 0], [1, 0, 0]]
    eigenvalues = sorted(np.linalg.eigvals(A).real, reverse=True)
    modes = sgdm_modes(lr, weight_decay, momentum)
    assert list(modes) == pytest.approx(eigenvalues, rel=1e-6, abs=1e-9)
    assert 0 <= modes.fast <= modes.momentum <= modes.slow < 1  # SMD 70


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_the_modes_have_the_papers_first_order(momentum):
    """SMD 67, 69: what is left of them falls 4 times where lr·λ is halved."""
    rest = []
    for halving in range(4):
        product = 1e-3 * (1 - momentum) / 2**halving
        slow, _, fast = sgdm_modes(1.0, product, momentum)
        first_order = 2 * product / (1 - momentum)
        rest.append([slow - 1 + first_order, fast - momentum**2 * (1 + first_order)])
    assert np.diff(np.log2(np.abs(rest)), axis=0) == pytest.approx(-2, abs=0.1)


def test_modes_that_swing_are_refused():
    with pytest.raises(ValueError, match=r"must be at most 0\.00263 at momentum=0\.9"):
        sgdm_modes(0.1, 0.03, 0.9)
