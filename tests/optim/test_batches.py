"""Pieces, batches and company: how tensors are laid together must not change what becomes of them."""

import pytest
import torch
from torch import nn

from gyroscope.optim import AdamSRT, KAdam, Lion, Rotational, RotationalAdamW, RotationalSGD, rotation
from gyroscope.optim._engine import memory
from tests.optim.catalogue import CATALOGUE, compiles

pytestmark = pytest.mark.compile

SHAPES = [(40, 6), (7,), (9, 30), (3, 50), (5, 4, 3), (1, 33), (2, 2), (60,), ()]
COMPILED = {
    "RotationalAdamW": lambda params: RotationalAdamW(params, lr=0.02, compile=True),
    "RotationalSGD": lambda params: RotationalSGD(params, lr=0.1, weight_decay=0.1, compile=True),
    "Rotational": lambda params: Rotational(
        torch.optim.AdamW(params, lr=0.02, weight_decay=0.1, fused=True), compile=True
    ),
    "AdamSRT": lambda params: AdamSRT(params, lr=0.02, weight_decay=0.1, compile=True),
    "KAdam": lambda params: KAdam(params, lr=0.02, compile=True),
}


def weights(shapes=SHAPES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]


def train(optimizer, params, steps=4):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        optimizer.step()
    return [p.detach() for p in params]


def assert_the_same_in_pieces(make, monkeypatch):
    params = weights()
    whole = train(make(params), params)
    monkeypatch.setattr(memory, "PIECE", 20)
    monkeypatch.setattr(memory, "BATCH", 70)
    monkeypatch.setattr(memory, "SMALL", 10)
    params = weights()
    for found, expected in zip(train(make(params), params), whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.name)
def test_pieces_and_batches_change_nothing(row, monkeypatch):
    assert_the_same_in_pieces(row.make, monkeypatch)


@compiles
def test_pieces_change_nothing_in_a_compiled_step_entry_by_entry(monkeypatch):
    assert_the_same_in_pieces(COMPILED["KAdam"], monkeypatch)


@compiles
@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_step_allocates_no_memory_of_the_weights_size(name):
    params = weights([(60, 40)])
    optimizer = COMPILED[name](params)
    train(optimizer, params, steps=2)
    with torch.profiler.profile(profile_memory=True) as profile:
        optimizer.step()
    events = profile.profiler.kineto_results.events()
    allocated = [event.nbytes() for event in events if event.name() == "[memory]"]
    assert max(allocated) <= 8 * 60


def test_pieces_of_a_tensor_cover_it_once_and_none_is_a_single_row(monkeypatch):
    monkeypatch.setattr(memory, "PIECE", 10)
    for shape in ((1, 100), (2, 3), (3, 40), (7, 5), (11, 7), (64, 1), (65, 2)):
        x = torch.arange(shape[0])[:, None].expand(shape)
        pieces = [x[part] for part in memory.pieces(x)]
        assert torch.equal(torch.cat(pieces), x)
        assert min(len(piece) for piece in pieces) >= min(2, shape[0])


def test_groups_with_their_own_options_step_as_they_would_alone():
    options = [
        {"lr": 0.01},
        {"lr": 0.03, "centre": False},
        {"lr": 0.03, "granularity": "tensor"},
        {"lr": 0.02, "beta": 0.5},
        {"lr": 0.02, "granularity": "none"},
    ]

    def groups(chosen):
        return [{"params": weights(seed=number), **options[number]} for number in chosen]

    together = groups(range(len(options)))
    train(RotationalAdamW(together), [p for group in together for p in group["params"]], steps=1)
    # The same gradients for each group alone: those of all groups are drawn, and one group's are used.
    for number, expected in enumerate(together):
        every = groups(range(len(options)))
        alone = every[number]
        train(RotationalAdamW([alone]), [p for group in every for p in group["params"]], steps=1)
        for found, known in zip(alone["params"], expected["params"], strict=True):
            torch.testing.assert_close(found, known, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("lr", "betas"), [(0.01, (0.9, 0.9)), (0.0, (0.5, 0.999))])
def test_groups_that_turn_by_the_same_angle_keep_betas_of_their_own(lr, betas):
    """The angle does not depend on β2, nor on β1 while lr = 0."""
    shape = [(6, 10)]
    first, second, alone = (weights(shape) for _ in range(3))
    optimizer = RotationalAdamW([{"params": first}, {"params": second, "betas": betas}], lr=lr)
    expected = RotationalAdamW(alone, lr=lr, betas=betas)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        gradient = torch.randn(6, 10, generator=generator, dtype=torch.float64)
        for p in (*first, *second, *alone):
            p.grad = gradient
        optimizer.step()
        expected.step()
    assert torch.equal(second[0], alone[0])
    for moment in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(optimizer.state[second[0]][moment], expected.state[alone[0]][moment])


def test_low_and_high_precision_in_one_step():
    params = [nn.Parameter(torch.randn(6, 20).to(dtype)) for dtype in (torch.float32, torch.float64, torch.bfloat16)]
    norms = [p.detach().float().norm(dim=1) for p in params]
    optimizer = RotationalAdamW(params, lr=0.05, weight_decay=0.5)
    for _ in range(5):
        for p in params:
            p.grad = torch.randn_like(p)
        optimizer.step()
    for p, norm in zip(params, norms, strict=True):
        torch.testing.assert_close(p.detach().float().norm(dim=1), norm, rtol=5e-3, atol=0)


@pytest.mark.parametrize("cls", [RotationalAdamW, AdamSRT, Lion, KAdam])
def test_a_refused_gradient_leaves_every_tensor_as_it_was(cls):
    params = weights([(4, 6), (5, 3)])
    params[0].grad, params[1].grad = torch.ones(4, 6).double(), torch.ones(5, 3).double().to_sparse()
    optimizer = cls(params)
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    assert not optimizer.state
    for found, expected in zip(params, weights([(4, 6), (5, 3)]), strict=True):
        assert torch.equal(found, expected)


def test_an_interrupted_step_leaves_nothing_behind_for_the_next(monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    params = weights([(4, 6), (5, 3)])
    optimizer = RotationalAdamW(params)
    for p in params:
        p.grad = torch.ones_like(p)
    with monkeypatch.context() as patched:
        patched.setattr(rotation, "move_", interrupted)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
    params[0].grad = None
    optimizer.step()
    before, now = weights([(4, 6), (5, 3)]), params
    assert torch.equal(now[0], before[0])
    assert not torch.equal(now[1], before[1])


def test_memory_between_steps_is_that_of_a_few_pieces(monkeypatch):
    monkeypatch.setattr(memory, "PIECE", 1000)
    monkeypatch.setattr(memory, "BATCH", 4000)
    params = [nn.Parameter(torch.randn(400, 100)), nn.Parameter(torch.randn(2, 50_000)), nn.Parameter(torch.randn(99))]
    for optimizer in (RotationalAdamW(params), Lion(params)):
        for p in params:
            p.grad = torch.randn_like(p)
        optimizer.step()
        assert sum(buffer.numel() for buffer in optimizer._step_cache.scratch.buffers.values()) <= 4 * 4000


@compiles
@pytest.mark.parametrize("cls", [AdamSRT, RotationalAdamW])
def test_a_vector_of_zeros_takes_the_plain_step_in_a_program_too(cls):
    def stepped(compile):
        params = weights([(6, 10)])
        params[0].data[2:4] = 0
        return train(cls(params, lr=0.02, compile=compile), params)[0]

    torch.testing.assert_close(stepped(True), stepped(False), rtol=1e-12, atol=1e-14)


@compiles
def test_groups_that_are_compiled_and_groups_that_are_not_share_no_memory():
    def trained(compiles):
        params = weights([(6, 10), (8, 10), (5, 7), (4, 12)])
        groups = [{"params": [p], "compile": compile} for p, compile in zip(params, compiles, strict=True)]
        return train(RotationalAdamW(groups, lr=0.02), params)

    for found, expected in zip(trained([False, True, False, True]), trained(4 * [False]), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
