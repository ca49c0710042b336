"""At lr = 0 nothing rotates, around every inner optimizer, and the run goes on as if that step had not been."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from gyroscope.geometry import Split
from gyroscope.optim import Rotational
from gyroscope.optimizers import SPECS
from tests.optim.catalogue import compiles

STEPS = 6


class Renamed(torch.optim.AdamW):
    """A bare subclass, which takes AdamW's steps."""


class Overridden(torch.optim.SGD):
    """A subclass with a step of its own, of which nothing is known."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * (p.grad.sign() + 0.1 * p.grad))


class Overdue(torch.optim.Optimizer):
    """An optimizer that moves weights by its last learning rate, also at lr = 0, and divides by the present one."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                last = self.state[p].get("last", group["lr"])
                p.sub_(last * p.grad)
                self.state[p]["last"] = group["lr"]


def transformers_adafactor(params, lr):
    library = pytest.importorskip("transformers.optimization")
    return library.Adafactor(params, lr=lr, relative_step=False, scale_parameter=False)


TABLE = {spec.name: spec.load() for spec in SPECS if not spec.keeps_norms}
OUTSIDE = {
    "Rprop": torch.optim.Rprop,
    "transformers": transformers_adafactor,
    "Renamed": Renamed,
    "Overridden": Overridden,
    "Overdue": Overdue,
}
INNER = {**TABLE, **OUTSIDE}
every_inner = pytest.mark.parametrize("inner", INNER)
every_zero = pytest.mark.parametrize("zero", [0, 3, STEPS - 1], ids=["first", "middle", "last"])


def weight():
    return nn.Parameter(torch.randn(4, 16, generator=torch.Generator().manual_seed(0)))


def run(inner, zero, make_lr=float, inner_alone=False, **options):
    """Return the weights after each step. At step `zero` lr is 0, and only the inner optimizer steps if it is alone."""
    p = weight()
    optimizer = Rotational(INNER[inner]([p], lr=make_lr(0.01)), **{"angular_update": 0.1, **options})
    generator = torch.Generator().manual_seed(1)
    weights = [p.detach().clone()]
    for step in range(STEPS):
        p.grad = torch.randn(4, 16, generator=generator)
        optimizer.param_groups[0]["lr"] = make_lr(0.0 if step == zero else 0.01)
        if step == zero and inner_alone:
            optimizer.inner.step()
            p.data.copy_(weights[-1])
        else:
            optimizer.step()
        weights.append(p.detach().clone())
    return weights


@pytest.mark.filterwarnings("ignore:.*weights are zero")
@every_zero
@every_inner
@pytest.mark.parametrize("make_lr", [float, torch.tensor], ids=["float", "tensor"])
def test_nothing_moves_and_nothing_is_nan(inner, zero, make_lr):
    weights = run(inner, zero, make_lr)
    assert torch.equal(weights[zero], weights[zero + 1])
    assert all(w.isfinite().all() for w in weights)


@compiles
@every_zero
@every_inner
def test_compiled_steps_are_the_eager_steps(inner, zero):
    for compiled, eager in zip(run(inner, zero, compile=True), run(inner, zero), strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=2e-6)


@every_zero
@every_inner
def test_the_run_goes_on_as_if_the_step_had_not_been(inner, zero):
    weights = run(inner, zero, beta=0.0)
    expected = run(inner, zero, beta=0.0, inner_alone=True)
    for ours, theirs in zip(weights, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@every_zero
@pytest.mark.parametrize("inner", ["Adafactor", "transformers", "Overridden"])
def test_the_average_of_lengths_goes_on_too(inner, zero):
    """Their updates have one length. An average that took the step for an update of 0 would be up to 1.4 too small."""
    angles, expected = (angles_of(run(inner, zero, inner_alone=alone)) for alone in (False, True))
    torch.testing.assert_close(angles, expected, rtol=0.05, atol=0)


@every_zero
@every_inner
def test_hyperball_does_not_move_either(inner, zero):
    weights = run(inner, zero, mode="hyperball", angular_update=None)
    assert torch.equal(weights[zero], weights[zero + 1])
    assert all(w.isfinite().all() for w in weights)


def angles_of(weights):
    return torch.stack([Split().angle(*pair) for pair in pairwise(weights)])


def test_a_bare_subclass_keeps_all_digits_at_tiny_learning_rates():
    ours, theirs = weight(), weight()
    for optimizer, p in (
        (Rotational(Renamed([ours], lr=1e-8), angular_update=0.1), ours),
        (Rotational(torch.optim.AdamW([theirs], lr=1e-8), angular_update=0.1), theirs),
    ):
        p.grad = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
        optimizer.step()
    assert torch.equal(ours, theirs)


def test_a_learning_rate_on_a_device_is_not_read():
    p = nn.Parameter(torch.ones(4, 16, device="meta"))
    lr = torch.tensor(0.0, device="meta")
    optimizer = Rotational(Overridden([p], lr=0.1), angular_update=0.1)
    optimizer.param_groups[0]["lr"] = lr
    p.grad = torch.ones_like(p)
    optimizer.step()  # the meta device raises if a value is read


@pytest.mark.parametrize("angle", [0.1, lambda step: 0.1])
def test_a_tensor_lr_leaves_a_given_angle_exact(angle):
    runs = []
    for lr in (0.01, torch.tensor(0.01)):
        p = nn.Parameter(torch.randn(4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
        optimizer = Rotational(torch.optim.SGD([p], lr=lr), angular_update=angle)
        p.grad = torch.randn(4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        optimizer.step()
        runs.append(p.detach())
    torch.testing.assert_close(*runs, rtol=1e-14, atol=1e-15)
