"""SGD-MRT: its literal twin, its reductions to SGD, and the theory's angle."""

from functools import partial

import pytest
import torch
from torch import nn

from gyroscope import theory
from gyroscope.optim._engine.compiled import PROGRAMS
from gyroscope.optim.sgd_mrt import SGDMRT
from tests.optim.catalogue import compiles
from tests.optim.torch_walk import walk
from tests.reference_sphere import SGDMRTTwin, check_twin, distance, run

MAKE = partial(SGDMRT, lr=0.1, weight_decay=0.01)


def test_each_step_is_the_twins_step():
    check_twin(MAKE, partial(SGDMRTTwin, lr=0.1, wd=0.01))


@compiles
def test_a_compiled_step_is_the_eager_step():
    assert distance(run(MAKE, compile=True), run(MAKE)) <= 1e-12


@compiles
def test_neither_a_schedule_nor_another_shape_recompiles():
    weights = [nn.Parameter(torch.rand(shape, dtype=torch.float64)) for shape in ((4, 8), (3, 5, 2, 2), (7, 6, 4))]
    optimizer = MAKE(weights, compile=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    counts = []
    for step in range(10):
        for w in weights[: step + 1]:
            w.grad = torch.randn_like(w)
        optimizer.step()
        scheduler.step()
        counts.append(len(PROGRAMS))
    assert counts[0] == counts[-1]


def sgd_pair(shape, ours, **options):
    """The same gradients to SGD-MRT and to torch's SGD."""
    torch.manual_seed(0)
    start = torch.randn(shape, dtype=torch.float64)
    weights = [nn.Parameter(start.clone()) for _ in range(2)]
    settings = {"lr": 0.1, "weight_decay": 0.01, **options}
    optimizers = [SGDMRT(weights[:1], **settings, **ours), torch.optim.SGD(weights[1:], **settings)]
    for _ in range(20):
        g = torch.randn(shape, dtype=torch.float64)
        for w, optimizer in zip(weights, optimizers, strict=True):
            w.grad = g
            optimizer.step()
    return weights


@pytest.mark.parametrize(
    ("shape", "ours", "momentum"),
    [((5,), {}, 0.9), ((4, 1), {}, 0.9), ((3, 4), {"granularity": "none"}, 0.9), ((), {}, 0.9), ((3, 4), {}, 0.0)],
    ids=["bias", "one entry", "none", "number", "no momentum"],
)
def test_without_vectors_or_momentum_it_is_sgd(shape, ours, momentum):
    found, expected = sgd_pair(shape, ours, momentum=momentum)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_vector_of_norm_zero_takes_sgds_step_and_keeps_its_momentum():
    w = nn.Parameter(torch.zeros(2, 3))
    optimizer = SGDMRT([w], lr=0.5)
    g = torch.randn(2, 3)
    w.grad = g.clone()
    optimizer.step()
    torch.testing.assert_close(w.detach(), -0.5 * g)
    torch.testing.assert_close(optimizer.state[w]["momentum_buffer"], g)


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_on_noise_it_turns_by_the_theorys_angle_at_the_theorys_norm(momentum):
    settings = {"lr": 0.1, "weight_decay": 0.05, "momentum": momentum}
    expected = theory.SGDMRT(**settings).equilibrium(unit_grad_norm=1.0)
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(32, 256, generator=generator)
    w = nn.Parameter(w * expected.norm / w.norm(dim=1, keepdim=True))
    angles, norms = walk(w, SGDMRT([w], **settings), 1000, generator)
    assert sum(angles[300:]) / 700 == pytest.approx(expected.angular_update, rel=0.01)
    assert sum(norms[300:]) / 700 == pytest.approx(expected.norm, rel=0.01)


def test_a_bad_momentum_is_an_error_that_quotes_it():
    with pytest.raises(ValueError, match=r"momentum=1.0 must be .*0\.9"):
        SGDMRT([nn.Parameter(torch.ones(2, 2))], lr=0.1, momentum=1.0)


def test_a_float16_weight_has_a_float32_buffer():
    w = nn.Parameter(torch.ones(2, 4, dtype=torch.float16))
    optimizer = SGDMRT([w], lr=0.1)
    w.grad = torch.full_like(w, 1e-3)
    optimizer.step()
    assert optimizer.state[w]["momentum_buffer"].dtype == torch.float32
    assert w.isfinite().all()
