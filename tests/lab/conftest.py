"""What tests of the lab share."""

import math

import pytest
from gyroscope_lab.sweeps import run

from tests.lab.make_sweep import sweep_at


@pytest.fixture
def one_thread_per_trial(monkeypatch):
    """Two threads of one tiny training wait for each other, for longest if other tests use the second core."""
    monkeypatch.setattr(run, "shared_cores", lambda jobs, available: (jobs, 1))


# A sweep that several files look at and none changes.
GRID = """
seeds = 2
[base]
steps = 10
[grid]
optimizer = ["adamw", "sgd"]
lr = [0.001, 0.01, 0.1]
weight_decay = [0.01, 0.1]
"""


def loss(config):
    """Lowest at lr 0.01 and weight decay 0.1 with AdamW; SGD fails at lr 0.1, and one setting has not run."""
    if config.optimizer == "sgd" and config.lr == 0.1:
        return "<b>diverged</b> at step 7" if config.weight_decay == 0.1 else None
    far = (math.log10(config.lr) + 2) ** 2 + 0.1 * (math.log10(config.weight_decay) + 1) ** 2
    return 0.5 + far + 0.01 * config.seed + (0.05 if config.optimizer == "sgd" else 0.0)


@pytest.fixture(scope="session")
def swept(tmp_path_factory):
    return sweep_at(tmp_path_factory.mktemp("swept") / "swept", GRID, loss, tracked=(0,))
