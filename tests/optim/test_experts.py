"""Experts [experts, outputs, inputs]: with axis=(0, 1) an optimizer treats them as the matrix of all their neurons."""

import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope.geometry import Split
from tests.optim.catalogue import compiles, every_compiling, every_optimizer

SHAPE = (3, 5, 7)


def trained(make, shape, axis, transposed=False, **options):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(SHAPE).reshape(shape))
    optimizer = make([{"params": [weight], "axis": axis}], **options)
    for _ in range(4):
        grad = torch.randn(SHAPE).reshape(shape)
        # The same numbers with inputs before outputs in memory, as a product of matrices may leave them.
        weight.grad = grad.transpose(-1, -2).contiguous().transpose(-1, -2) if transposed else grad
        optimizer.step()
    return weight.detach().reshape(SHAPE)


@pytest.mark.parametrize("transposed", [False, True])
@every_optimizer
def test_experts_step_as_the_matrix_of_their_neurons_does(row, transposed):
    matrix = trained(row.make, (15, 7), 0)
    assert torch.equal(trained(row.make, SHAPE, (0, 1), transposed), matrix)
    if row.rotates:
        assert not torch.allclose(trained(row.make, SHAPE, 0), matrix)


@compiles
@every_compiling
def test_compiled_experts_step_as_they_do_eagerly(row):
    compiled = trained(row.make, SHAPE, (0, 1), compile=True)
    torch.testing.assert_close(compiled, trained(row.make, SHAPE, (0, 1)), rtol=1e-5, atol=2e-6)


def test_an_autopsy_reads_the_values_of_experts():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(SHAPE))
    optimizer = gyro.optim.RotationalAdamW([{"params": [weight], "param_names": ["experts"], "axis": (0, 1)}], lr=0.01)
    for _ in range(4):
        weight.grad = torch.randn(SHAPE)
        before = weight.detach().clone()
        optimizer.step()
    assert optimizer.state[weight]["radius"].shape == SHAPE[:2]
    layer = gyro.autopsy({"model": {"experts": weight.detach()}, "optimizer": optimizer.state_dict()}).layers["experts"]
    angles = Split(axis=(0, 1)).angle(before, weight.detach())
    assert layer.exact
    assert layer.rotation == pytest.approx(float(angles.mean()), rel=1e-4)
