"""Adam with L2 in the gradient: only the part of the loss turns (RE section 3, the special variant)."""

from functools import partial

import pytest
import torch
from torch import nn

from gyroscope.optim import Rotational
from gyroscope.optim.loss_gradient_part import loss_part, numbers, rotates_loss_part
from gyroscope.theory import AdamW
from tests import reference
from tests.optim.catalogue import compiles, turned
from tests.optim.test_reference import distance, recorded, run

# L2 as large as the gradients: a part of it that turned would be seen.
LR = 2e-3
WEIGHT_DECAY = 0.5
SETTINGS = {"lr": LR, "weight_decay": WEIGHT_DECAY}
RULES = {
    "Adam": (torch.optim.Adam, reference.AdamL2Direction()),
    "Adam without momentum": (
        partial(torch.optim.Adam, betas=(0.0, 0.999)),
        reference.AdamL2Direction((0.0, 0.999)),
    ),
    "Adam, amsgrad": (partial(torch.optim.Adam, amsgrad=True), reference.AdamL2Direction(amsgrad=True)),
    "Adam, fused": (partial(torch.optim.Adam, fused=True), reference.AdamL2Direction()),
}
every_rule = pytest.mark.parametrize("name", RULES)


def special(params, name, compile=False, **options):
    inner, _ = RULES[name]
    inner = inner(params, **{**SETTINGS, **options})
    return Rotational(inner, angular_update=AdamW(lr=LR, weight_decay=WEIGHT_DECAY), compile=compile)


@every_rule
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 2e-5)])
def test_each_step_is_the_twins_step(name, dtype, tolerance):
    weights, grads = recorded()
    _, direction = RULES[name]
    twin = turned(direction, LR, WEIGHT_DECAY, l2=True)([w.clone() for w in weights])
    for now, stepped in zip(grads, run(partial(special, name=name), dtype), strict=True):
        twin.step(now)
        for p, expected in zip(stepped, twin.weights, strict=True):
            assert distance(p, expected) <= tolerance


@compiles
def test_a_compiled_step_is_the_eager_step():
    make = partial(special, name="Adam")
    for eager, compiled in zip(run(make, torch.float64), run(make, torch.float64, compile=True), strict=True):
        for p, expected in zip(compiled, eager, strict=True):
            assert distance(p, expected) <= 1e-12


@every_rule
def test_a_vector_of_zeros_takes_the_inner_step_with_its_l2(name):
    torch.manual_seed(0)
    w = torch.randn(3, 8, dtype=torch.float64)
    w[1] = 0
    turning, plain = nn.Parameter(w.clone()), nn.Parameter(w.clone())
    inner, _ = RULES[name]
    optimizers = special([turning], name), inner([plain], **SETTINGS)
    for _ in range(5):
        g = torch.randn(3, 8, dtype=torch.float64)
        for p, optimizer in zip((turning, plain), optimizers, strict=True):
            p.grad = g.clone()
            optimizer.step()
    torch.testing.assert_close(turning[1], plain[1], rtol=1e-10, atol=1e-12)
    assert not torch.allclose(turning[0], plain[0], rtol=1e-4)


@every_rule
def test_maximising_turns_the_other_way(name):
    ways = []
    for sign, maximize in ((1, False), (-1, True)):
        torch.manual_seed(0)
        p = nn.Parameter(torch.randn(4, 8, dtype=torch.float64))
        optimizer = special([p], name, maximize=maximize)
        for _ in range(4):
            p.grad = sign * torch.randn(4, 8, dtype=torch.float64)
            optimizer.step()
        ways.append(p.detach())
    torch.testing.assert_close(ways[0], ways[1], rtol=1e-12, atol=0)


def test_the_state_is_no_larger_than_the_inner_optimizers():
    p = nn.Parameter(torch.randn(4, 8))
    optimizer = special([p], "Adam")
    p.grad = torch.randn(4, 8)
    optimizer.step()
    assert {key for key, value in optimizer.state[p].items() if value.shape == p.shape} == {"exp_avg", "exp_avg_sq"}


def test_decoupled_decay_is_no_part_of_a_direction():
    """Adam with decoupled decay is AdamW, and stays what it was."""
    results = []
    for make in (torch.optim.AdamW, partial(torch.optim.Adam, decoupled_weight_decay=True)):
        torch.manual_seed(0)
        p = nn.Parameter(torch.randn(4, 8))
        optimizer = Rotational(make([p], **SETTINGS))
        for _ in range(3):
            p.grad = torch.randn(4, 8)
            optimizer.step()
        results.append(p.detach())
    assert torch.equal(*results)


@pytest.mark.parametrize("other", [torch.optim.NAdam, torch.optim.RMSprop], ids=lambda cls: cls.__name__)
def test_other_rules_with_l2_rotate_by_all_of_their_update(other):
    p = nn.Parameter(torch.randn(4, 8, dtype=torch.float64, generator=torch.manual_seed(0)))
    plain = nn.Parameter(p.detach().clone())
    turning = Rotational(other([p], **SETTINGS), angular_update=0.01, centre=False)
    stepping = other([plain], **SETTINGS)
    assert not rotates_loss_part(turning.inner, turning.param_groups[0])
    before = p.detach().clone()
    p.grad = torch.randn(4, 8, dtype=torch.float64)
    plain.grad = p.grad.clone()
    turning.step()
    stepping.step()
    # Up to rounding the weight stays in the plane of itself and the inner step.
    plane = torch.linalg.qr(torch.stack([before, plain.detach()], 2))[0]
    outside = p.detach() - (plane @ (plane.mT @ p.detach().unsqueeze(2))).squeeze(2)
    assert outside.abs().max() < 1e-9


def test_a_count_on_the_device_is_not_read():
    """The state of fused=True has its count on the device. A tensor of "meta" has no number to wait for."""
    group = {"weight_decay": 0.1, "betas": (0.9, 0.999), "eps": 1e-8}
    entries = [torch.zeros(4, 8, device="meta") for _ in range(4)]
    out = torch.empty(4, 8, device="meta")
    loss_part(entries, out, **numbers(group, torch.empty((), device="meta")))
    assert numbers(group, torch.tensor(3.0))["t"] == 3.0
