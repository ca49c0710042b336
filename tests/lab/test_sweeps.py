"""Sweeps: every trial once, whatever is killed; and numbers that statistics' textbooks give."""

import os
import signal
import threading
import time

import pytest

from gyroscope.lab.sweeps.plan import read_sweep
from gyroscope.lab.sweeps.run import Outcome, outcome, run_local
from gyroscope.lab.sweeps.table import Arm, arms, best, compare, good_region, write_table

FILE = """
seeds = 2
[base]
task = "digits"
model = "cnn:width=8,convolutions=2"
steps = 12
batch_size = 32
track = false
[grid]
lr = [1e-3, 1e-2]
"""


@pytest.fixture
def sweep(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(FILE)
    return read_sweep(path)


def test_a_grid_is_every_combination_with_every_seed(sweep):
    assert [(t.varied["lr"], t.varied["seed"]) for t in sweep.trials] == [(1e-3, 0), (1e-3, 1), (1e-2, 0), (1e-2, 1)]
    assert sweep.axes == {"lr": [1e-3, 1e-2]}
    assert len({trial.name for trial in sweep.trials}) == 4


def test_a_sweep_goes_on_where_it_stopped_and_repeats_nothing(sweep, tmp_path):
    out = tmp_path / "out"
    first = run_local(sweep, out, jobs=1)
    assert not next(first).problem
    first.close()
    done = {
        trial.name: (out / trial.name / "result.json").stat().st_mtime_ns
        for trial in sweep.trials
        if outcome(trial, out)
    }
    assert done
    list(run_local(sweep, out, jobs=2))
    assert all(outcome(trial, out).scores for trial in sweep.trials)
    assert all((out / name / "result.json").stat().st_mtime_ns == made for name, made in done.items())


def test_a_killed_worker_is_resumed_and_the_sweep_ends_whole(sweep, tmp_path):
    out = tmp_path / "out"
    killed = []

    def kill_one():
        deadline = time.monotonic() + 60
        while not killed and time.monotonic() < deadline:
            for pid in [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]:
                try:
                    with open(f"/proc/{pid}/cmdline") as file:
                        mine = str(out) in file.read()
                except OSError:
                    continue
                if mine and not killed:
                    time.sleep(0.5)
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
            time.sleep(0.05)

    thread = threading.Thread(target=kill_one)
    thread.start()
    outcomes = list(run_local(sweep, out, jobs=1))
    thread.join()
    assert killed
    assert [ended.problem for ended in outcomes] == ["", "", "", ""]


def test_a_trial_that_fails_is_a_row(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(
        FILE.replace("lr = [1e-3, 1e-2]", 'optimizer = ["adamw", "nonsense"]').replace("seeds = 2", "seeds = 1")
    )
    outcomes = list(run_local(read_sweep(path), tmp_path / "out", jobs=2))
    problems = {ended.trial.varied["optimizer"]: ended.problem for ended in outcomes}
    assert problems["adamw"] == ""
    assert "unknown optimizer 'nonsense'" in problems["nonsense"]


def test_mean_deviation_and_interval_are_the_textbooks(sweep, tmp_path):
    outcomes = [
        Outcome(trial, tmp_path, {"validation_loss": value})
        for trial, value in zip(sweep.trials, [1.0, 3.0, 0.5, 0.7], strict=True)
    ]
    low, high = arms(sweep, outcomes)
    assert low.mean == 2.0
    assert low.deviation == pytest.approx(2**0.5)
    assert low.interval == pytest.approx(12.706 * 2**0.5 / 2**0.5, rel=1e-4)  # t of 1 degree of freedom
    assert best(sweep, [low, high]) is high
    assert good_region(sweep, [low, high]) == [high]
    write_table(tmp_path / "sweep.sqlite", sweep, outcomes)


def test_welchs_test_tells_arms_apart():
    first = Arm({}, (1.0, 1.1, 0.9, 1.0), 0, ())
    second = Arm({}, (2.0, 2.1, 1.9, 2.0), 0, ())
    assert compare(first, second) < 1e-3
    assert compare(first, first) == pytest.approx(1.0)


def test_a_file_that_makes_no_sweep_is_named(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("[grid]\nlr = 3\n")
    with pytest.raises(ValueError, match="must be a list"):
        read_sweep(path)
    path.write_text("bases = 3\n")
    with pytest.raises(ValueError, match="unknown key 'bases'"):
        read_sweep(path)
