"""Programs for kinds of tensors: the same program for every size, and the right one for every layout."""

import pytest
import torch
from torch import nn

from gyroscope.optim import AdamSRT, KAdam, Rotational, RotationalAdamW
from gyroscope.optim._engine.compiled import PROGRAMS
from tests.optim.catalogue import compiles

LAYOUTS = {
    "square": lambda: torch.randn(24, 24),
    "entries as many as rows of others": lambda: torch.randn(11, 24),
    "one vector": lambda: torch.randn(1, 30),
    "channels last": lambda: torch.randn(6, 5, 3, 3).to(memory_format=torch.channels_last),
    "columns of another's memory": lambda: torch.randn(9, 14).t(),
    "every other entry of another's memory": lambda: torch.randn(12, 18)[::2, ::3],
    "the left half of another's memory": lambda: torch.randn(8, 20)[:, :10],
}
MAKERS = {
    "RotationalAdamW": lambda p, compile: RotationalAdamW(p, lr=0.05, compile=compile),
    "AdamSRT": lambda p, compile: AdamSRT(p, lr=0.05, weight_decay=0.1, compile=compile),
    "KAdam": lambda p, compile: KAdam(p, lr=0.05, compile=compile),
    "Rotational": lambda p, compile: Rotational(torch.optim.AdamW(p, lr=0.05, weight_decay=0.1), compile=compile),
}


def trained(make, layout, compile, **options):
    torch.manual_seed(0)
    made = layout()
    # As a parameter in the very memory: detach keeps strides, a copy would not.
    weight = nn.Parameter(made.detach())
    optimizer = make([{"params": [weight], **options}], compile)
    for _ in range(3):
        weight.grad = torch.empty_like(weight).normal_()
        optimizer.step()
    return weight.detach()


CASES = [("RotationalAdamW", layout) for layout in LAYOUTS]
CASES += [(name, layout) for name in ("AdamSRT", "KAdam", "Rotational") for layout in ("square", "channels last")]


@compiles
@pytest.mark.parametrize(("name", "layout"), CASES)
def test_every_layout_steps_as_it_does_eagerly(name, layout):
    found, expected = (trained(MAKERS[name], LAYOUTS[layout], compile) for compile in (True, False))
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


@compiles
@pytest.mark.parametrize("options", [{"axis": 1}, {"granularity": "tensor"}, {"granularity": "group", "group_size": 2}])
def test_every_split_steps_as_it_does_eagerly(options):
    for name in ("RotationalAdamW", "AdamSRT", "Rotational"):
        found, expected = (
            trained(MAKERS[name], lambda: torch.randn(6, 8), compile, **options) for compile in (True, False)
        )
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


@compiles
def test_sizes_share_a_program():
    counts = set()
    for shape in ((16, 16), (16, 32), (32, 16), (3, 4, 5), (2053, 7), (7, 1031)):
        trained(MAKERS["RotationalAdamW"], lambda shape=shape: torch.randn(shape), True)
        counts.add(len(PROGRAMS))
    assert len(counts) == 1


@compiles
def test_a_compiled_wrapper_keeps_norms_and_rounds_low_precision_once():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(32, 64).bfloat16())
    norms = weight.detach().float().norm(dim=1)
    optimizer = Rotational(torch.optim.AdamW([weight], lr=0.01, weight_decay=0.5), compile=True)
    for _ in range(20):
        weight.grad = torch.randn_like(weight)
        optimizer.step()
    torch.testing.assert_close(weight.detach().float().norm(dim=1), norms, rtol=1e-2, atol=0)


@compiles
@pytest.mark.parametrize("name", MAKERS)
def test_autograd_notices_a_compiled_step_between_forward_and_backward(name):
    weight = nn.Parameter(torch.randn(16, 600))
    optimizer = MAKERS[name]([weight], True)
    loss = weight.square().sum()
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
