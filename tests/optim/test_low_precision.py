"""float16 and bfloat16 weights: moments are float32, whatever the size of the gradients."""

import pytest
import torch
from torch import nn

from gyroscope.optim import RotationalAdamW
from tests.optim.catalogue import CATALOGUE, compiles, every_own

pytestmark = pytest.mark.filterwarnings("ignore:the angular update is below")
HALF = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
COMPILING = [row for row in CATALOGUE if not row.wraps and row.name in ("RotationalAdamW", "AdamSRT", "KAdam")]


def stepped(make, dtype, scale, steps=3, **options):
    """A matrix and a bias after steps along gradients of this scale, in `dtype`, and in float32 at the same numbers."""
    results = []
    for of in (dtype, torch.float32):
        generator = torch.Generator().manual_seed(0)
        params = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype).to(of)) for shape in ((6, 16), (16,))]
        optimizer = make(params, **options)
        for _ in range(steps):
            for p in params:
                p.grad = (scale * torch.randn(p.shape, generator=generator)).to(dtype).to(of)
            optimizer.step()
        results.append((params, optimizer))
    return results


@HALF
@every_own
@pytest.mark.parametrize("scale", [1e-5, 1e-4, 1.0, 1000.0])
def test_steps_are_those_of_float32_up_to_the_rounding_of_the_weights(row, dtype, scale):
    (half, optimizer), (full, _) = stepped(row.make, dtype, scale)
    for p, exact in zip(half, full, strict=True):
        moved = (p.float() - exact).abs().max()
        assert moved <= 4 * torch.finfo(dtype).eps * max(1.0, exact.abs().max().item())
        tensors = [value for key, value in optimizer.state[p].items() if key != "step"]
        assert {value.dtype for value in tensors} == {torch.float32}


@compiles
@pytest.mark.parametrize("row", COMPILING, ids=lambda row: row.name)
@pytest.mark.parametrize("scale", [1e-5, 1000.0])
def test_a_compiled_step_has_float32_moments_too(row, scale):
    (half, optimizer), (full, _) = stepped(row.make, torch.float16, scale, compile=True)
    for p, exact in zip(half, full, strict=True):
        assert (p.float() - exact).abs().max() <= 4 * torch.finfo(torch.float16).eps * max(1.0, exact.abs().max())
        assert {v.dtype for k, v in optimizer.state[p].items() if k != "step"} == {torch.float32}


@every_own
def test_a_state_with_moments_in_the_weights_dtype_still_loads(row):
    (params, optimizer), _ = stepped(row.make, torch.bfloat16, 1.0)
    saved = optimizer.state_dict()
    for state in saved["state"].values():
        for key, value in state.items():
            if value.shape and value.shape[-1] == 16:
                state[key] = value.bfloat16()
    other = row.make(params)
    other.load_state_dict(saved)
    for p in params:
        assert {v.dtype for k, v in other.state[p].items() if k != "step"} == {torch.float32}
        p.grad = torch.ones_like(p)
    other.step()
    assert all(p.isfinite().all() for p in params)


def test_copies_of_a_weight_are_rounded_alike_whatever_else_their_processes_hold():
    """Two processes with uneven shards of one weight, 5 rows and 4, and a copy each of another."""
    copies = []
    for rows in (5, 4):
        generator = torch.Generator().manual_seed(0)
        copy = nn.Parameter(torch.randn(6, 16, generator=generator).bfloat16())
        shard = nn.Parameter(torch.randn(rows, 16).bfloat16())
        optimizer = RotationalAdamW([shard, copy], lr=1e-4, stochastic_rounding=True)
        for _ in range(3):
            copy.grad = torch.randn(6, 16, generator=generator).bfloat16()
            shard.grad = torch.randn(rows, 16).bfloat16()
            optimizer.step()
        copies.append(copy.detach())
    assert torch.equal(*copies)
