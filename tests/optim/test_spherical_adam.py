"""SphericalAdam: its literal twins, the sphere it keeps to, and SGD followed by AdamG* (SP Theorem 4)."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from gyroscope_lab.sp._sphere import parallel_transport
from torch import nn

from gyroscope.optim.spherical_adam import SphericalAdam
from gyroscope.theory.sphere import adam_g_star
from tests.optim.catalogue import compiles
from tests.reference_sphere import AdamGStarTwin, AdamGTwin, check_twin, distance, run

STAR = {"lr": 0.7, "betas": (0.0, 0.99), "v0": 50.0, "eps": 0.0}
CASES = {
    "AdamG": (
        partial(SphericalAdam, betas=(0.9, 0.999), weight_decay=0.1),
        partial(AdamGTwin, lr=1e-2, betas=(0.9, 0.999), wd=0.1),
    ),
    "AdamG*": (partial(SphericalAdam, **STAR), partial(AdamGStarTwin, **STAR)),
}


@pytest.mark.parametrize("case", CASES)
def test_each_step_is_the_twins_step(case):
    check_twin(*CASES[case])


@compiles
def test_a_compiled_step_is_the_eager_step():
    make, _ = CASES["AdamG"]
    assert distance(run(make, torch.float32, compile=True), run(make, torch.float32)) <= 1e-6


def noisy(optimizer, w, steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        w.grad = torch.randn(w.shape, generator=generator).to(w.dtype)
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_stay_and_the_momentum_is_tangent(dtype):
    torch.manual_seed(0)
    w = nn.Parameter(torch.randn(8, 40).to(dtype))
    norms, optimizer = w.detach().float().norm(dim=1), SphericalAdam([w], lr=0.05)
    noisy(optimizer, w, 300)
    low = dtype == torch.bfloat16
    torch.testing.assert_close(w.detach().float().norm(dim=1), norms, rtol=5e-3 if low else 1e-6, atol=0)
    m = optimizer.state[w]["exp_avg"].float()
    along = (m * w.detach().float()).sum(1) / (m.norm(dim=1) * norms)
    assert along.abs().max() < (1e-2 if low else 1e-6)


@pytest.mark.parametrize("factor", [1.0, -3.0])
def test_a_radial_gradient_turns_nothing(factor):
    torch.manual_seed(0)
    w = nn.Parameter(torch.randn(8, 40))
    before, optimizer = w.detach().clone(), SphericalAdam([w], lr=0.05)
    for _ in range(5):
        w.grad = factor * w.detach()
        optimizer.step()
    torch.testing.assert_close(w.detach(), before, rtol=1e-6, atol=1e-7)


def test_the_momentum_is_carried_by_parallel_transport():
    torch.manual_seed(0)
    w = nn.Parameter(torch.randn(2, 5, dtype=torch.float64))
    optimizer = SphericalAdam([w], lr=0.3)
    old, g = w.detach().clone(), torch.randn(2, 5, dtype=torch.float64)
    w.grad = g
    optimizer.step()
    n, u = old.norm(dim=1, keepdim=True), old / old.norm(dim=1, keepdim=True)
    h = 0.1 * n * (g - (g * u).sum(1, keepdim=True) * u)
    expected = parallel_transport(h, old, w.detach())
    np.testing.assert_allclose(optimizer.state[w]["exp_avg"], expected, rtol=1e-12, atol=1e-14)


def test_a_rescaled_scale_invariant_weight_follows_the_same_directions():
    torch.manual_seed(0)
    start, x, target = torch.randn(6, 10).double(), torch.randn(32, 10).double(), torch.randn(32, 6).double()
    outputs = []
    for factor in (1, 10):
        w = nn.Parameter(factor * start)
        optimizer, trajectory = SphericalAdam([w], eps=1e-30), []
        for _ in range(60):
            optimizer.zero_grad()
            out = nn.functional.normalize(w, dim=1) @ x.T
            (out.T - target).square().mean().backward()
            optimizer.step()
            trajectory.append(out.detach())
        outputs.append(torch.stack(trajectory))
    torch.testing.assert_close(*outputs, rtol=1e-10, atol=1e-12)
    assert (outputs[0][0] - outputs[0][-1]).abs().max() > 0.1


def test_weights_replaced_from_outside_keep_their_own_norm():
    torch.manual_seed(0)
    w = nn.Parameter(torch.randn(4, 16))
    optimizer = SphericalAdam([w])
    noisy(optimizer, w, 3)
    with torch.no_grad():
        w.copy_(3 * torch.randn(4, 16))
    norms = w.detach().norm(dim=1)
    noisy(optimizer, w, 3)
    torch.testing.assert_close(w.detach().norm(dim=1), norms)


def test_what_does_not_turn_takes_adams_step_with_l2():
    runs = []
    for make in (partial(SphericalAdam, granularity="none"), torch.optim.Adam):
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in ((5,), (4, 1), (3, 4), ())]
        optimizer = make(weights, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
        for _ in range(20):
            for w in weights:
                w.grad = torch.randn_like(w)
            optimizer.step()
        runs.append(weights)
    for found, expected in zip(*runs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"betas": (0.0, 0.9), "v0": 2.0}], ids=["AdamG", "AdamG*"])
def test_a_vector_of_norm_zero_takes_adams_first_step_and_has_a_radius_from_then_on(options):
    torch.manual_seed(0)
    start = torch.randn(3, 6)
    start[1] = 0
    w = nn.Parameter(start)
    optimizer = SphericalAdam([w], lr=0.1, **options)
    g = torch.randn(3, 6)
    w.grad = g
    optimizer.step()
    torch.testing.assert_close(w.detach()[1], -0.1 * g[1].sign())
    norms = w.detach().norm(dim=1)
    noisy(optimizer, w, 5)
    torch.testing.assert_close(w.detach().norm(dim=1), norms)
    assert optimizer.state[w]["exp_avg_sq"].isfinite().all()


def theorem4_gap(lr, steps):
    """Angle between SGD with decay and the AdamG* of Theorem 4, on a scale-invariant quadratic."""
    torch.manual_seed(0)
    spectrum, start = torch.linspace(1, 2, 6, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
    radius = start.norm(dim=1)
    star = adam_g_star(lr, 0.5, radius.numpy())
    sgd_w, star_w = nn.Parameter(start.clone()), nn.Parameter(start / radius[:, None])
    sgd = torch.optim.SGD([sgd_w], lr=lr, weight_decay=0.5)
    options = {"lr": star.lr, "betas": (0.0, star.beta), "eps": 0.0, "v0": torch.from_numpy(np.asarray(star.v0))}
    adam_g = SphericalAdam([star_w], **options)
    for _ in range(steps):
        for w, optimizer in ((sgd_w, sgd), (star_w, adam_g)):
            optimizer.zero_grad()
            (nn.functional.normalize(w, dim=1).square() * spectrum).sum().backward()
            optimizer.step()
    return (nn.functional.normalize(sgd_w.detach(), dim=1) - star_w.detach()).norm(dim=1).max().item()


def test_with_the_theorems_settings_adam_g_star_follows_sgd_to_third_order():
    gaps = [theorem4_gap(0.1 / 2**i, 10 * 2**i) for i in range(4)]
    ratios = [a / b for a, b in pairwise(gaps)]
    assert ratios[-1] == pytest.approx(8, rel=0.15)
    assert gaps[-1] < 1e-5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"v0": -1.0, "betas": (0.0, 0.9)}, "v0=-1.0 must be above 0"),
        ({"v0": 1.0}, r"beta1=0\.9 with v0=1\.0.*betas=\(0\.0, beta2\)"),
        ({"betas": (0.9, 1.0)}, "beta2=1.0 must be"),
    ],
)
def test_a_bad_value_is_an_error_that_quotes_it(options, message):
    with pytest.raises(ValueError, match=message):
        SphericalAdam([nn.Parameter(torch.ones(2, 2))], **options)


def test_a_step_at_lr_zero_leaves_every_bit_of_the_weights():
    torch.manual_seed(0)
    w = nn.Parameter(torch.randn(5, 7))
    before, optimizer = w.detach().clone(), SphericalAdam([w], lr=0.0)
    noisy(optimizer, w, 3)
    assert torch.equal(w.detach(), before)
