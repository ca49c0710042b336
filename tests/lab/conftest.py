"""What tests of the lab share."""

import pytest
from gyroscope_lab.sweeps import run


@pytest.fixture
def one_thread_per_trial(monkeypatch):
    """Two threads of one tiny training wait for each other, for longest if other tests use the second core."""
    monkeypatch.setattr(run, "shared_cores", lambda jobs, available: (jobs, 1))
