"""Rules with L2 in the gradient: only the part of the loss turns (RE section 3, the special variant)."""

from functools import partial

import pytest
import torch
from torch import nn

from gyroscope.optim import Rotational
from gyroscope.optim.loss_gradient_part import CoupledStep, radam
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
    "NAdam": (torch.optim.NAdam, reference.NAdamL2Direction()),
    "RAdam": (torch.optim.RAdam, reference.RAdamL2Direction()),
    "RAdam that never adapts": (
        partial(torch.optim.RAdam, betas=(0.9, 0.6)),
        reference.RAdamL2Direction((0.9, 0.6)),
    ),
    "Adamax": (torch.optim.Adamax, reference.AdamaxL2Direction()),
    "RMSprop": (torch.optim.RMSprop, reference.RMSpropL2Direction()),
    "RMSprop with momentum": (partial(torch.optim.RMSprop, momentum=0.9), reference.RMSpropL2Direction(0.9)),
    "RMSprop, centered": (
        partial(torch.optim.RMSprop, momentum=0.9, centered=True),
        reference.RMSpropL2Direction(0.9, centered=True),
    ),
    "Adagrad": (partial(torch.optim.Adagrad, lr_decay=0.1), reference.AdagradL2Direction(lr_decay=0.1)),
    "Adadelta": (torch.optim.Adadelta, reference.AdadeltaL2Direction()),
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
    if name == "NAdam":  # torch keeps the product of its momenta in float32
        tolerance = max(tolerance, 1e-7)
    twin = turned(direction, LR, WEIGHT_DECAY, l2=True)([w.clone() for w in weights])
    for now, stepped in zip(grads, run(partial(special, name=name), dtype), strict=True):
        twin.step(now)
        for p, expected in zip(stepped, twin.weights, strict=True):
            assert distance(p, expected) <= tolerance


@compiles
@pytest.mark.parametrize("name", ["Adam", "NAdam", "RMSprop with momentum"])
def test_a_compiled_step_is_the_eager_step(name):
    make = partial(special, name=name)
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


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.6)], ids=["adapts", "never adapts"])
def test_radam_on_a_device_is_radam_on_the_host_and_waits_for_nothing(betas):
    """The state of capturable=True has its steps on the device. A tensor of "meta" has no number to wait for."""
    torch.manual_seed(0)
    options = {"beta1": betas[0], "beta2": betas[1], "eps": 1e-8}
    for t in (1.0, 5.0, 6.0, 100.0):  # before, at and after the first step that adapts
        numbers = {"exp_avg": torch.randn(4, 8), "exp_avg_sq": torch.rand(4, 8)}
        w, grad = torch.randn(4, 8), torch.randn(4, 8)
        updates = []
        for steps in (t, torch.tensor(t)):
            state = {name: moment.clone() for name, moment in numbers.items()}
            updates.append(radam(CoupledStep(state, w, grad, 0.0, 0.1, {"t": steps, **options})))
        torch.testing.assert_close(updates[0], updates[1], rtol=2e-6, atol=0)
        state = {name: moment.to("meta") for name, moment in numbers.items()}
        numbers_there = {"t": torch.empty((), device="meta"), **options}
        waiting = radam(CoupledStep(state, w.to("meta"), grad.to("meta"), 0.0, 0.1, numbers_there))
        assert waiting.is_meta
        assert waiting.shape == (4, 8)
        assert waiting.dtype == torch.float32
