"""Weights & Biases gets what the tracker measured; the real package runs offline where it is installed."""

import json
from pathlib import Path

import pytest

from gyroscope.integrations.extras import extra
from gyroscope.integrations.loggers import WandB
from tests.forked import TRAINERS, run_script
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


QUIET = {
    "WANDB_MODE": "offline",
    "WANDB_CONSOLE": "off",
    "WANDB_X_DISABLE_STATS": "true",
    "WANDB_SILENT": "true",
}


def offline(code, folder):
    """Run the code in a process of its own with Weights & Biases offline. Return its one run, and its last JSON."""
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'gyroscope[wandb]'")
    start = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from gyroscope.measure import sinks
sinks.PATIENCE = 60.0  # a busy machine is not what is tested
"""
    ended = run_script(start + code, folder, preload=TRAINERS, **QUIET)
    assert ended.code == 0, ended.written
    (stored,) = folder.glob("**/offline-run-*/*.wandb")
    # Libraries may write notes of their own after it.
    lists = [line for line in ended.written.splitlines() if line.startswith("[")]
    return stored.read_bytes(), lists[-1] if lists else ""


@pytest.mark.slow
def test_the_real_package_works_offline(tmp_path):
    code = """
from gyroscope.integrations.loggers import WandB
from tests.measure.test_sinks import tracked
tracked("run", WandB(mode="offline"))
"""
    stored, _ = offline(code, tmp_path)
    assert b"gyroscope/angular_update" in stored


# A sink beside the trainer's own; and at the end one line of JSON: what it got last, and what the trainer's run has.
BESIDE = """
import json
got = {}
beside = lambda step, numbers: got.update(numbers)
"""
COMPARED = """
import wandb
summary = {name: value for name, value in dict(wandb.run.summary).items() if isinstance(value, float | int)}
print(json.dumps([got, summary]))
wandb.finish()
"""


def check_same_numbers(line):
    """What the trainer's run has of each number is what our own sink got last; all that the run has."""
    got, summary = json.loads(line)
    measured = {name: value for name, value in got.items() if name.startswith("gyroscope/")}
    assert len(measured) > 10
    assert {name: summary[name] for name in measured} == pytest.approx(measured)
    return summary


@pytest.mark.slow
def test_the_real_package_gets_the_numbers_in_the_run_of_the_hugging_face_trainer(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'gyroscope[transformers]'")
    code = """
from tests.integrations.test_transformers import callback, gpt2, train
train(gpt2(), "trained", steps=3, callbacks=[callback(every=1, sinks=[beside])], report_to="wandb")
"""
    stored, line = offline(BESIDE + code + COMPARED, tmp_path)
    numbers = check_same_numbers(line)
    assert numbers["gyroscope/step"] == 2
    assert numbers["train/global_step"] == 3, "the run is the Trainer's own"
    assert b"gyroscope/angular_update" in stored


@pytest.mark.slow
def test_the_real_package_gets_the_numbers_in_the_run_of_lightnings_logger(tmp_path):
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed: pip install 'gyroscope[lightning]'")
    code = """
from pathlib import Path
from lightning.pytorch.loggers import WandbLogger
from tests.integrations.test_lightning import Net, callback, fit
logger = WandbLogger(save_dir=".", offline=True)
fit(Net(), Path("fitted"), callback("measured", every=1, sinks=[beside]), steps=3, logger=logger, log_every_n_steps=1)
"""
    stored, line = offline(BESIDE + code + COMPARED, tmp_path)
    numbers = check_same_numbers(line)
    assert numbers["trainer/global_step"] == 2, "the step is that of the sample"
    assert b"gyroscope/angular_update" in stored


def test_a_package_that_is_missing_is_told_with_the_way_to_get_it():
    with pytest.raises(
        ImportError, match=r"a_package_that_nobody_has is not installed: pip install 'gyroscope\[wandb\]'"
    ):
        extra("a_package_that_nobody_has", "wandb")
