"""Training runs: killed at any moment they end with the same weights, and nothing is lost."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import gyroscope as gyro
from gyroscope.lab.training import checkpoint
from gyroscope.lab.training.config import TrainConfig
from gyroscope.lab.training.loop import train
from gyroscope.lab.training.optimizers import make_optimizer

QUICK = TrainConfig(
    task="digits", model="cnn:width=8,convolutions=2", optimizer="rotational-adamw", lr=1e-2, steps=24, batch_size=64
)


def weights(folder):
    return torch.load(checkpoint.paths(folder / "checkpoints")[-1], weights_only=True)["model"]


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    return train(QUICK, folder)


def test_a_run_learns_and_says_how_it_ended(tmp_path):
    result = train(replace(QUICK, model="cnn:width=16", optimizer="adamw", steps=150), tmp_path)
    assert result.scores["validation_accuracy"] > 0.8
    assert len(result.history) == QUICK.evaluations
    assert json.loads((tmp_path / "result.json").read_text())["scores"] == result.scores
    with gyro.store.open_run(tmp_path / "rotation") as run:
        assert set(run.scalars) == {"loss", "accuracy", "validation_loss", "validation_accuracy"}
        steps, losses = run.scalar("loss")
        assert steps.tolist() == list(range(result.steps))
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("optimizer", ["rotational-adamw", "sgd", "k-adam", "adam-srt"])
def test_a_run_stopped_by_ctrl_c_goes_on_bit_for_bit(tmp_path, optimizer):
    config = replace(QUICK, optimizer=optimizer, lr=None, augment=True)
    train(config, tmp_path / "whole")

    def interrupt(progress):
        if progress.step == 13:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", on_step=interrupt)
    train(config, tmp_path / "cut", resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))


def test_a_run_killed_at_any_moment_goes_on_bit_for_bit(tmp_path, whole):
    """kill -9, again and again, at moments that nobody chose."""
    folder = tmp_path / "killed"
    folder.mkdir()
    (folder / "trial.json").write_text(json.dumps(QUICK.as_dict()))
    command = [sys.executable, "-m", "gyroscope.lab.sweeps.trial", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = 0
    for attempt in range(40):
        process = subprocess.Popen(command, env=environment)
        start = time.monotonic()
        while process.poll() is None and time.monotonic() - start < 60:
            # Wait for a sign of work, then a little longer each time.
            if killed < 3 and len(checkpoint.paths(folder / "checkpoints")) > killed:
                time.sleep(0.003 * attempt)
                process.send_signal(signal.SIGKILL)
                killed += 1
            time.sleep(0.001)
        process.wait()
        if process.returncode == 0:
            break
    assert killed >= 1
    assert same(weights(whole.path), weights(folder))


def test_a_diverged_run_says_when_and_keeps_the_checkpoint_before(tmp_path):
    result = train(replace(QUICK, optimizer="sgd", lr=1e30, weight_decay=0.0, steps=50), tmp_path)
    assert result.diverged_at is not None
    assert json.loads((tmp_path / "result.json").read_text())["diverged_at"] == result.diverged_at


def test_a_folder_with_another_run_is_not_overwritten(tmp_path, whole):
    with pytest.raises(ValueError, match="has a run already: go on with it by --resume"):
        train(QUICK, whole.path)
    with pytest.raises(ValueError, match=r"other settings \(lr\)"):
        train(replace(QUICK, lr=0.5), whole.path, resume=True)


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    checkpoint.save(tmp_path, 1, {"step": 1})
    path = checkpoint.save(tmp_path, 2, {"step": 2})
    path.write_bytes(path.read_bytes()[:100])
    assert checkpoint.load_newest(tmp_path) == {"step": 1}


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    for step in range(5):
        checkpoint.save(tmp_path, step, {"step": step})
    assert [path.name for path in checkpoint.paths(tmp_path)] == ["step-000000003.pt", "step-000000004.pt"]


def test_a_disk_without_room_leaves_the_older_checkpoint(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, {"step": 1})

    def full(state, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(ValueError, match=r"cannot write the checkpoint .*step-000000002.*No space left"):
        checkpoint.save(tmp_path, 2, {"step": 2})
    assert checkpoint.load_newest(tmp_path) == {"step": 1}
    assert [path.name for path in Path(tmp_path).iterdir()] == ["step-000000001.pt"]


def test_accumulated_batches_count_as_one_step(tmp_path):
    layer_norm = replace(QUICK, norm="layer", optimizer="sgd", lr=0.1, steps=4, track=False)
    one = train(replace(layer_norm, batch_size=64), tmp_path / "one")
    assert one.steps == 4
    two = train(replace(layer_norm, batch_size=32, accumulate=2), tmp_path / "two")
    assert two.steps == 4


def test_an_unknown_optimizer_lists_the_known_ones():
    with pytest.raises(ValueError, match="did you mean 'rotational-adamw'"):
        make_optimizer("rotational-adam", torch.nn.Linear(4, 4))
    with pytest.raises(ValueError, match="choose one of adamw"):
        make_optimizer("zzz", torch.nn.Linear(4, 4))


def test_settings_that_make_no_run_are_errors():
    with pytest.raises(ValueError, match="in one of them"):
        TrainConfig()
    with pytest.raises(ValueError, match="schedule='linea' is unknown"):
        TrainConfig(steps=3, schedule="linea")
    with pytest.raises(ValueError, match="unknown setting 'learning_rate'"):
        TrainConfig.from_dict({"learning_rate": 3, "steps": 3})
