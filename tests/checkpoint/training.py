"""A small training run with a tracker beside it, and the forms in which people save one."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

import gyroscope as gyro
from gyroscope._types import Array
from gyroscope.checkpoint.checkpoint_autopsy import Autopsy

STEPS = 60


class Block(nn.Module):
    """A residual layer with norm, as transformers have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


@dataclass
class Trained:
    """A model after its last step, which the tracker has measured."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler | None
    rotations: dict[str, Array]
    """of the last step by layer, neuron by neuron"""
    lr: float
    """of the last step"""


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 48), Block(48), Block(48), nn.Linear(48, 10))


def train(
    folder: Path, optimizer, schedule=None, *, steps=STEPS, model=None, groups=None, every_step=None, every=None
) -> Trained:
    """Train on a task that is never solved, so that gradients stay; every vector of the last step is tracked.

    `every` is the tracker's, if more steps than the first and the last are to be measured.
    """
    model = network() if model is None else model
    stepping = optimizer(model.parameters() if groups is None else groups(model))
    scheduler = None if schedule is None else schedule(stepping)
    generator = torch.Generator().manual_seed(1)
    lr = 0.0
    with gyro.Tracker(model, stepping, folder, every=max(steps - 1, 1) if every is None else every, raw="."):
        for step in range(steps):
            x = torch.randn(64, 32, generator=generator)
            y = torch.randint(10, (64,), generator=generator)
            stepping.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            if every_step is not None:
                every_step(step, stepping)
            lr = stepping.param_groups[0]["lr"]
            stepping.step()
            if scheduler is not None:
                scheduler.step()
    run = gyro.store.open_run(folder)
    rotations = {name: np.asarray(run.raw(name, "angular_update"))[-1] for name in run.layers}
    return Trained(model, stepping, scheduler, rotations, lr)


def assert_same_rotation(autopsy: Autopsy, trained: Trained, tolerance: float = 1e-4, resolution: float = 0.0) -> None:
    """The same angle of every neuron; `resolution`, in radians, is that of the tracker's, by rounded weights."""
    assert set(autopsy.layers) == set(trained.rotations)
    for name, measured in trained.rotations.items():
        rotations = autopsy.layers[name].rotations
        np.testing.assert_allclose(rotations, measured, rtol=tolerance, atol=resolution, err_msg=name)
