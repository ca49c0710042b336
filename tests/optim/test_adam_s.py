"""Adam-S and Adam-SRT: their literal twin, their reductions to Adam, and the theory's angle."""

from functools import partial

import pytest
import torch
from gyroscope_lab.sp._sphere import rescale_transport
from torch import nn

from gyroscope import theory
from gyroscope.optim.adam_s import AdamS, AdamSRT
from tests.optim.catalogue import compiles
from tests.optim.torch_walk import walk
from tests.reference_sphere import AdamSTwin, check_twin, distance, run

SETTINGS = {"lr": 1e-2, "weight_decay": 0.1}
TWIN = partial(AdamSTwin, lr=1e-2, wd=0.1)
both = pytest.mark.parametrize(("cls", "transport"), [(AdamS, False), (AdamSRT, True)], ids=["AdamS", "AdamSRT"])


@both
def test_each_step_is_the_twins_step(cls, transport):
    check_twin(partial(cls, **SETTINGS), partial(TWIN, transport=transport))


@compiles
@pytest.mark.parametrize(("cls", "dtype", "tolerance"), [(AdamS, torch.float32, 1e-6), (AdamSRT, torch.float64, 1e-12)])
def test_a_compiled_step_is_the_eager_step(cls, dtype, tolerance):
    make = partial(cls, **SETTINGS)
    assert distance(run(make, dtype, compile=True), run(make, dtype)) <= tolerance


@both
@pytest.mark.parametrize("eps", [1e-8, 1e-3])
def test_what_does_not_turn_takes_adams_step(cls, transport, eps):
    torch.manual_seed(0)
    start = [torch.randn(5), torch.randn(4, 1), torch.randn(3, 4), torch.tensor(0.7)]
    runs = []
    for make in (partial(cls, granularity="none"), partial(torch.optim.Adam)):
        weights = [nn.Parameter(w.double().clone()) for w in start]
        optimizer = make(weights, lr=1e-2, betas=(0.8, 0.95), eps=eps, weight_decay=0.3)
        generator = torch.Generator().manual_seed(1)
        for _ in range(30):
            for w in weights:
                w.grad = torch.randn(w.shape, generator=generator, dtype=torch.float64)
            optimizer.step()
        runs.append([w.detach() for w in weights])
    for found, expected in zip(*runs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@both
def test_one_entry_vectors_and_biases_take_adams_step_without_being_asked(cls, transport):
    runs = []
    for make in (cls, torch.optim.Adam):
        weights = [nn.Parameter(torch.full(shape, 0.5)) for shape in ((3,), (3, 1))]
        optimizer = make(weights, lr=0.1)
        for w in weights:
            w.grad = torch.tensor([0.1, 1.0, -2.0]).view(w.shape)
        optimizer.step()
        runs.append(weights)
    for found, expected in zip(*runs, strict=True):
        torch.testing.assert_close(found, expected)


@both
def test_a_vector_of_norm_zero_takes_adams_step_and_turns_from_then_on(cls, transport):
    torch.manual_seed(0)
    start = torch.randn(3, 6, dtype=torch.float64)
    start[1] = 0
    ours, adams = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizers = [cls([ours], lr=0.1, weight_decay=0.1), torch.optim.Adam([adams], lr=0.1, weight_decay=0.1)]
    silent, first, second = torch.zeros(3, 6), torch.randn(3, 6), torch.randn(3, 6)
    for g in (silent, first):
        for w, optimizer in zip((ours, adams), optimizers, strict=True):
            w.grad = g.double()
            optimizer.step()
    torch.testing.assert_close(ours[1], adams[1], rtol=1e-12, atol=1e-12)
    before = ours.detach()[1].clone()
    ours.grad = second.double()
    optimizers[0].step()
    assert optimizers[0].state[ours]["exp_avg_sq"].shape == (3,)
    assert ours.isfinite().all()
    assert not torch.equal(ours.detach()[1], before)


def test_transported_memory_is_the_theorys_rescale_and_transport():
    torch.manual_seed(0)
    plain, moved = (nn.Parameter(torch.ones(2, 5, dtype=torch.float64) + torch.eye(2, 5)) for _ in range(2))
    optimizers = [AdamS([plain], **SETTINGS), AdamSRT([moved], **SETTINGS)]
    old, g = plain.detach().clone(), torch.randn(2, 5, dtype=torch.float64)
    for w, optimizer in zip((plain, moved), optimizers, strict=True):
        w.grad = g
        optimizer.step()
    m, transported = optimizers[0].state[plain]["exp_avg"], optimizers[1].state[moved]["exp_avg"]
    torch.testing.assert_close(transported.numpy(), rescale_transport(m, old, plain.detach()), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close((transported * moved.detach()).sum(1), torch.zeros(2).double(), atol=1e-14, rtol=0)
    ratio = old.square().sum(1) / plain.detach().square().sum(1)
    expected = optimizers[0].state[plain]["exp_avg_sq"] * ratio
    torch.testing.assert_close(optimizers[1].state[moved]["exp_avg_sq"], expected)


@pytest.mark.parametrize(("cls", "rule"), [(AdamS, theory.AdamS), (AdamSRT, theory.AdamSRT)])
def test_on_noise_it_turns_by_the_theorys_angle_at_the_theorys_norm(cls, rule):
    settings = {"lr": 1e-2, "weight_decay": 0.2, "betas": (0.9, 0.99)}
    expected = rule(**settings).equilibrium(fan_in=256, unit_grad_norm=1.0)
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(32, 256, generator=generator)
    w = nn.Parameter(w * expected.norm / w.norm(dim=1, keepdim=True))
    angles, norms = walk(w, cls([w], **settings), 1000, generator)
    assert sum(angles[300:]) / 700 == pytest.approx(expected.angular_update, rel=0.01)
    assert sum(norms[300:]) / 700 == pytest.approx(expected.norm, rel=0.01)


@both
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("betas", (0.9, 1.0), "beta2=1.0 must be"), ("betas", 0.9, "pair"), ("eps", -1.0, "eps=-1.0 must be")],
)
def test_a_bad_value_is_an_error_that_quotes_it(cls, transport, option, value, message):
    with pytest.raises(ValueError, match=message):
        cls([nn.Parameter(torch.ones(2, 2))], **{option: value})


@both
def test_low_precision_weights_keep_a_float32_second_moment(cls, transport):
    w, b = (nn.Parameter(torch.ones(shape, dtype=torch.bfloat16)) for shape in ((2, 3), (3,)))
    optimizer = cls([w, b], lr=0.1)
    w.grad, b.grad = torch.full_like(w, 1e-3), torch.full_like(b, 1e-3)
    optimizer.step()
    assert {optimizer.state[p]["exp_avg_sq"].dtype for p in (w, b)} == {torch.float32}
    assert optimizer.state[w]["exp_avg_sq"].shape == (2,)
    torch.testing.assert_close(w, torch.full_like(w, 0.9), atol=0.01, rtol=0)


@both
def test_each_split_has_its_own_second_moment(cls, transport):
    for options, vectors in (
        ({"axis": 1}, 6),
        ({"granularity": "tensor"}, 1),
        ({"granularity": "group", "group_size": 2}, 2),
    ):
        w = nn.Parameter(torch.ones(4, 6, 3))
        optimizer = cls([{"params": [w], **options}])
        w.grad = torch.ones_like(w)
        optimizer.step()
        assert optimizer.state[w]["exp_avg_sq"].shape == (vectors,)
