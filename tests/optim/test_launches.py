"""Steps on an accelerator: few launches, no waiting for the device, and the numbers of a CPU.

Tensors on the meta device have no data. A step that reads a value from them raises, whether by item, nonzero or a copy
to the CPU, and its operations can be counted without a GPU.
"""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gyroscope.optim import Rotational, RotationalAdamW
from gyroscope.optim._engine import compiled, memory
from tests.optim.catalogue import CATALOGUE, every_optimizer
from tests.optim.test_batches import train, weights

# Norms that settle take 20 more launches, whatever the number of tensors.
LIMITS = {**{row.name: 150 if row.keeps_norms else 175 for row in CATALOGUE}, "KAdam": 50, "Lion": 20}


class CountKernels(TorchDispatchMode):
    """Counts the operations on tensors outside of the CPU, without views and allocations."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        is_view = any(
            each.alias_info is not None and not each.alias_info.is_write for each in operation._schema.returns
        )
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        is_launched = not is_view and "empty" not in str(operation) and operation.namespace == "aten"
        if is_launched and any(x.device.type != "cpu" for x in tensors):
            self.counts[str(operation)] += 1
        return result


def gpt_shapes(layers=12, width=48):
    """Shapes of a GPT: 146 tensors if it has 12 layers."""
    matrices = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    vectors = [(3 * width,), (width,), (4 * width,), *5 * [(width,)]]
    return [(65, width), (64, width), *layers * (matrices + vectors)]


def optimizer_without_data(row, shapes, dtype=torch.float32):
    params = [nn.Parameter(torch.zeros(shape, device="meta", dtype=dtype)) for shape in shapes]
    # A wrapped optimizer chooses its one-kernel step by device, and does not know this one.
    optimizer = row.make(params, **({"foreach": True} if row.wraps else {}))
    for p in params:
        p.grad = torch.zeros_like(p)
    return optimizer


@every_optimizer
def test_a_step_of_146_tensors_launches_few_kernels(row):
    optimizer = optimizer_without_data(row, gpt_shapes())
    optimizer.step()
    with CountKernels() as launched:
        optimizer.step()
    assert launched.counts.total() <= LIMITS[row.name], launched.counts.most_common(8)


@pytest.mark.filterwarnings("ignore:the angular update is below")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_optimizer
def test_no_step_waits_for_the_device(row, dtype):
    shapes = [(6, 8), (6, 8), (8,), (4, 3, 3, 3), (5, 7)]
    optimizer = optimizer_without_data(row, shapes, dtype)
    for _ in range(3):
        optimizer.step()


@pytest.mark.filterwarnings("ignore:the angular update is below")
@pytest.mark.parametrize("name", ["Rotational(AdamW)", *(row.name for row in CATALOGUE if not row.wraps)])
def test_no_compiled_step_waits_for_the_device(name, monkeypatch):
    # As on CUDA. A program runs its function as it is, because Inductor has no kernels for this device.
    runs = []
    monkeypatch.setattr(compiled, "pays", lambda w: True)
    monkeypatch.setattr(compiled, "PROGRAMS", {})
    monkeypatch.setattr(
        compiled, "_by_inductor", lambda flat, *_: lambda tensors: runs.append(len(tensors)) or flat(*tensors)
    )
    params = [nn.Parameter(torch.zeros(shape, device="meta")) for shape in [(6, 8), (8,), (4, 3, 3, 3), (5, 7)]]
    for p in params:
        p.grad = torch.zeros_like(p)
    if name == "Rotational(AdamW)":
        inner = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.1, foreach=True)
        optimizer = Rotational(inner, compile="auto")
    else:
        row = next(row for row in CATALOGUE if row.name == name)
        if "compile" not in row.make(params).defaults:
            pytest.skip("has no compiled step")
        optimizer = row.make(params, compile="auto")
    for _ in range(3):
        optimizer.step()
    assert runs


def test_a_rate_on_the_device_is_not_read():
    params = [nn.Parameter(torch.zeros(6, 8, device="meta")), nn.Parameter(torch.zeros(6, device="meta"))]
    optimizer = RotationalAdamW(params, lr=1e-3)
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(1e-3).to("meta")
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.step()


@every_optimizer
def test_joined_tensors_take_the_steps_of_each_alone(row, monkeypatch):
    def trained():
        params = weights([(40, 6), (7,), (9, 30), (9, 6), (3, 2, 3), (1, 30), (2, 2), (60,), (5, 6)])
        params[3].data[2] = 0
        params.append(nn.Parameter(torch.randn(6, 8, dtype=torch.float64, generator=torch.manual_seed(0)).t()))
        optimizer = row.make(params)
        found = train(optimizer, params)
        return found, [x for p in params for x in optimizer.state[p].values() if isinstance(x, torch.Tensor)]

    expected = trained()
    monkeypatch.setattr(memory, "on_accelerator", lambda x: True)
    monkeypatch.setattr(memory, "DEVICE_SMALL", 250)
    monkeypatch.setattr(memory, "DEVICE_BATCH", 400)
    for found, known in zip(trained(), expected, strict=True):
        torch.testing.assert_close(found, known, rtol=1e-11, atol=1e-12)
