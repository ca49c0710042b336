"""The hooks of a tracker do not wait for the device.

Tensors on the meta device have no data: reading one by item, nonzero or a copy to the CPU raises. The copy to pinned
memory itself needs CUDA and is replaced, so the test covers what the hooks compute before it.
"""

import warnings
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope.measure._pipeline import host_copy, measurement, scalar_log
from tests.optim.catalogue import CATALOGUE


class StandIn:
    """A copy from a device without data."""

    devices: ClassVar[list[str]] = []

    def __init__(self, numbers):
        self.devices.append(numbers.device.type)
        self.num_bytes = numbers.nbytes
        self._shape = numbers.shape

    def wait(self):
        return np.ones(tuple(self._shape))


# A wrapped optimizer chooses its one-kernel step by device, and does not know this one.
MAKERS = {row.name: (row.make, {"foreach": True} if row.wraps else {}) for row in CATALOGUE}
MAKERS |= {make.__name__: (make, {"lr": 1e-3, "weight_decay": 0.1}) for make in (torch.optim.AdamW, torch.optim.SGD)}


@pytest.mark.parametrize("name", MAKERS)
def test_hooks_wait_for_no_device(name, tmp_path, monkeypatch):
    monkeypatch.setattr(StandIn, "devices", [])
    for module in (host_copy, measurement, scalar_log):
        monkeypatch.setattr(module, "HostCopy", StandIn)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.LayerNorm(8), nn.Linear(8, 6), nn.Linear(6, 4)).to("meta")
    make, options = MAKERS[name]
    optimizer = make(model.parameters(), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a tracker that fails gives a warning
        with gyro.Tracker(model, optimizer, tmp_path / "run", every=1) as tracker:
            for _ in range(3):
                for p in model.parameters():
                    p.grad = torch.zeros_like(p)
                optimizer.step()
                tracker.log(loss=torch.zeros((), device="meta"))
    assert set(StandIn.devices) == {"meta"}
    assert gyro.store.open_run(tmp_path / "run").steps.tolist() == [0, 1, 2]
