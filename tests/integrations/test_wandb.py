"""Weights & Biases gets what the tracker measured; the real package runs offline where it is installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from gyroscope.integrations.extras import extra
from gyroscope.integrations.wandb import WandB
from tests.measure.test_sinks import tracked

REPOSITORY = Path(__file__).parent.parent.parent


class Run:
    """What a run of Weights & Biases is to the sink."""

    def __init__(self):
        self.logged, self.metrics, self.finished = [], {}, False

    def define_metric(self, name, step_metric=None):
        self.metrics[name] = step_metric

    def log(self, numbers):
        self.logged.append(numbers)

    def finish(self):
        self.finished = True


def test_a_run_of_ones_own_gets_the_numbers_on_an_axis_of_their_own_and_stays_open(tmp_path):
    theirs = Run()
    run = tracked(tmp_path, WandB(theirs))
    assert theirs.metrics == {"gyroscope/step": None, "gyroscope/*": "gyroscope/step"}
    assert [numbers["gyroscope/step"] for numbers in theirs.logged] == run.steps.tolist()
    assert all("gyroscope/angular_update" in numbers for numbers in theirs.logged)
    assert not theirs.finished


def test_what_training_logged_has_its_own_name_on_the_same_axis():
    theirs = Run()
    sink = WandB(theirs)
    for step in (0, 1):
        sink(step, {"loss": 0.5})
    assert theirs.metrics["loss"] == "gyroscope/step"
    assert theirs.logged == [{"loss": 0.5, "gyroscope/step": step} for step in (0, 1)]


def test_the_real_package_works_offline(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'gyroscope[wandb]'")
    code = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from gyroscope.integrations.wandb import WandB
from gyroscope.measure import sinks
from tests.measure.test_sinks import tracked
sinks.PATIENCE = 60.0  # a busy machine is not what is tested
tracked("run", WandB(mode="offline", settings={{"console": "off", "x_disable_stats": True, "silent": True}}))
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    stored = list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert len(stored) == 1
    assert b"gyroscope/angular_update" in stored[0].read_bytes()


def test_a_package_that_is_missing_is_told_with_the_way_to_get_it():
    with pytest.raises(ImportError, match=r"wandb is not installed: pip install 'gyroscope\[wandb\]'"):
        extra("a_package_that_nobody_has", "wandb")
