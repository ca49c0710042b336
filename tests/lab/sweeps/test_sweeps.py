"""Sweeps: the plan, the share of cores, and numbers that statistics' textbooks give."""

import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
from gyroscope_lab.sweeps.console import TimeLeft
from gyroscope_lab.sweeps.plan import read_sweep
from gyroscope_lab.sweeps.run import Outcome, _connect, run_local, shared_cores
from gyroscope_lab.sweeps.table import best, compare, good_region, settings_of, width, write_table
from rich.progress import Progress

from gyroscope.cli import main
from tests.lab.make_sweep import sweep_at

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
ONE = FILE.replace("seeds = 2", "seeds = 1").replace("lr = [1e-3, 1e-2]", "lr = [1e-3]")


def plan(tmp_path, text=FILE):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return read_sweep(path)


@pytest.fixture
def sweep(tmp_path):
    return plan(tmp_path)


def test_a_grid_is_every_combination_with_every_seed(sweep):
    assert [(t.varied["lr"], t.varied["seed"]) for t in sweep.trials] == [(1e-3, 0), (1e-3, 1), (1e-2, 0), (1e-2, 1)]
    assert sweep.axes == {"lr": [1e-3, 1e-2]}
    assert len({trial.name for trial in sweep.trials}) == 4


def test_a_table_of_the_list_that_leaves_a_setting_out_has_that_of_the_base(tmp_path):
    text = '[base]\nsteps = 3\nlr = 0.5\n[[list]]\noptimizer = "sgd"\n[[list]]\noptimizer = "adamw"\nlr = 0.1\n'
    found = plan(tmp_path, text)
    assert found.axes == {"optimizer": ["sgd", "adamw"], "lr": [0.5, 0.1]}
    assert [each.settings["lr"] for each in settings_of(found, [])] == [0.5, 0.1]


def test_no_cluster_at_an_address_is_one_sentence():
    class Ray:
        """What ray.init does after its timeouts, which take minutes."""

        def init(self, **options):
            raise ConnectionError(f"Could not find any running Ray instance at {options['address']}.\nMore words.")

    with pytest.raises(
        ValueError, match=r"^no Ray at 'host:1' \(Could not .* host:1\.\): use --ray local, or the address"
    ):
        _connect(Ray(), "host:1")


def test_trials_times_threads_are_at_most_the_cores():
    for available in range(1, 17):
        for jobs in range(1, 20):
            at_once, threads = shared_cores(jobs, available)
            assert at_once * threads <= available
            assert at_once == min(jobs, available)
            assert (threads + 1) * at_once > available, "a core is left that every trial could use"


def test_a_trial_has_as_many_threads_as_its_share_of_the_cores(tmp_path, monkeypatch):
    threads = []
    start = subprocess.Popen

    def record(command, **options):
        threads.append(options["env"]["OMP_NUM_THREADS"])
        return start([sys.executable, "-c", ""], **options)

    monkeypatch.setattr("gyroscope_lab.sweeps.run.cores", lambda: 7)
    monkeypatch.setattr("gyroscope_lab.sweeps.run.subprocess.Popen", record)
    ended = list(run_local(plan(tmp_path), tmp_path / "out", jobs=3))
    assert threads == ["2"] * 4
    assert {each.problem for each in ended} == {"exit code 0 without a message"}


def test_an_interrupt_reaches_a_trial_once_and_the_sweep_waits_for_its_checkpoint(tmp_path, monkeypatch):
    code = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: None)
pathlib.Path(sys.argv[1], "ready").touch()
signal.pause()
time.sleep(0.5)
pathlib.Path(sys.argv[1], "checkpoint").touch()
"""
    start = subprocess.Popen
    monkeypatch.setattr(
        "gyroscope_lab.sweeps.run.subprocess.Popen",
        lambda command, **options: start([sys.executable, "-c", code, str(tmp_path)], **options),
    )
    running = run_local(plan(tmp_path, ONE), tmp_path / "out", jobs=1)

    def interrupt(seconds):
        if (tmp_path / "ready").exists():
            raise KeyboardInterrupt
        time.sleep(seconds)

    monkeypatch.setattr("gyroscope_lab.sweeps.run.time", SimpleNamespace(sleep=interrupt))
    with pytest.raises(KeyboardInterrupt):
        next(running)
    assert (tmp_path / "checkpoint").exists()


def test_the_time_left_follows_from_the_mean_of_all_trials_however_long_each_takes():
    now = [0.0]
    with Progress(get_time=lambda: now[0], disable=True) as progress:
        progress.add_task("", total=10)
        (task,) = progress.tasks
        assert str(TimeLeft().render(task)) == "-:--:-- left"
        for done in range(1, 5):
            now[0] = 600.0 * done
            progress.advance(task.id)
        assert str(TimeLeft().render(task)) == "1:00:00 left"


def outcomes(sweep, values):
    return [Outcome(trial, {"validation_loss": each}) for trial, each in zip(sweep.trials, values, strict=True)]


def test_mean_deviation_and_interval_are_the_textbooks_in_the_database_too(sweep, tmp_path):
    ended = outcomes(sweep, [1.0, 3.0, 0.5, 0.7])
    low, high = settings_of(sweep, ended)
    assert low.mean == 2.0
    assert low.deviation == pytest.approx(2**0.5)
    assert low.interval == pytest.approx(12.706 * 2**0.5 / 2**0.5, rel=1e-4)  # t of 1 degree of freedom
    assert best(sweep, [low, high]) is high
    assert good_region(sweep, [low, high]) == [high]
    write_table(tmp_path / "sweep.sqlite", sweep, ended)
    with closing(sqlite3.connect(tmp_path / "sweep.sqlite")) as database:
        rows = database.execute("SELECT settings, mean, deviation, interval, n, failures FROM setting").fetchall()
        folders = [row[0] for row in database.execute("SELECT folder FROM trial")]
    assert json.loads(rows[0][0]) == {"lr": 1e-3}
    assert rows[0][1:] == (2.0, low.deviation, low.interval, 2, 0)
    assert folders == [trial.name for trial in sweep.trials]


def test_welchs_test_distinguishes_settings(sweep):
    first, second = settings_of(sweep, outcomes(sweep, [1.0, 1.1, 2.0, 2.1]))
    # t = 1/sqrt(2 · 0.005/2) = 14.14 with 2 degrees of freedom: p = 1 - t/sqrt(2 + t²)
    assert compare(first, second) == pytest.approx(1 - 14.1421 / (2 + 14.1421**2) ** 0.5, rel=1e-3)
    assert compare(first, first) == pytest.approx(1.0)


def test_the_good_region_is_one_piece_around_the_best(tmp_path):
    text = "[base]\nsteps = 3\n[grid]\nlr = [0.0001, 0.001, 0.01, 0.1, 1.0]\nweight_decay = [0.1, 1.0]\n"
    sweep = plan(tmp_path, text)
    losses = {1e-4: (0.505, 9), 1e-3: (2, 3), 1e-2: (2, 0.509), 0.1: (0.5, 1), 1.0: (0.6, 0.7)}
    settings = settings_of(sweep, outcomes(sweep, [value for pair in losses.values() for value in pair]))
    found = width(sweep, settings, "lr")
    assert (found.low, found.high, found.decades) == (0.01, 0.1, pytest.approx(1.0))
    assert (found.at_low_end, found.at_high_end) == (False, False)  # 0.0001 is good, but beyond a bad one
    assert len(good_region(sweep, settings)) == 3
    found = width(sweep, settings, "weight_decay")
    assert (found.low, found.high, found.at_low_end, found.at_high_end) == (0.1, 1.0, True, True)


AXIS = list(range(1, 2001))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[grid\n", "is not TOML"),
        ("bases = 3\n", "unknown key 'bases'"),
        ("[base]\nspeed = 3\n", "unknown setting 'speed'"),
        ("[base]\nlr = 3\n", "give the length of the run"),
        ("[base]\nsteps = 3\nlr = [1, 2]\n", r"lists of values belong in \[grid\]"),
        ("[base]\nsteps = 3\n[grid]\n", r"\[grid\] is empty"),
        ("[base]\nsteps = 3\n[grid]\nlr = []\n", "must be a list of values"),
        ("[grid]\nlr = 3\n", "must be a list of values"),
        ("[base]\nsteps = 3\n[grid]\nlr = [1, 1]\n", "the trial lr = 1, seed = 0 is listed twice"),
        ("base = 3\n", "base=3: seeds is a number or a list"),
        ("list = [3]\n", "must be tables of settings"),
        ("list = []\n", "makes 0 trials"),
        ("seeds = 0\n", "seeds=0 must be the number of seeds"),
        ("seeds = ['a']\n", "must be the number of seeds"),
        ("metric = 'beauty'\n", "metric='beauty' is unknown: choose validation_loss or validation_accuracy"),
        ("seeds = 20000\n[base]\nsteps = 3\n", "makes 20,000 trials"),
        ("seeds = 100000000\n[base]\nsteps = 3\n", "makes 100,000,000 trials"),
        ("seeds = true\n", "seeds=True must be the number of seeds"),
        (f"[grid]\nlr = {AXIS}\nclip = {AXIS}\nwarmup = {AXIS}\n", "makes 8,000,000,000 trials"),
        ("[base]\nsteps = 3\nlr = true\n", "lr=True must be a finite number"),
        ("[base]\nsteps = true\n", "steps=True must be a whole number"),
        (f"[base]\nsteps = {'9' * 5000}\n", "a number of more than 4,300 digits"),
        (f"[base]\nsteps = {'[' * 3000}{']' * 3000}\n", "more than 20 levels of tables or lists"),
    ],
)
def test_a_file_that_makes_no_sweep_is_one_sentence_that_names_it(tmp_path, text, words):
    with pytest.raises(ValueError, match=words) as error:
        plan(tmp_path, text)
    assert "plan.toml" in str(error.value)


def test_a_sweep_that_cannot_begin_is_one_sentence(tmp_path, capsys):
    for arguments, words in [
        ([tmp_path / "none.toml"], "cannot read"),
        ([tmp_path / "plan.toml", "--jobs", "0"], "jobs=0 must be a whole number"),
        ([tmp_path / "plan.toml", "--jobs", "2", "--ray", "local"], "give one of them"),
    ]:
        plan(tmp_path)
        assert main(["sweep", *map(str, arguments)]) == 2
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1


def test_a_sweep_without_the_wanted_score_lists_the_scores(tmp_path, capsys):
    text = FILE.replace("seeds = 2", 'seeds = 2\nmetric = "validation_accuracy"')
    folder = sweep_at(tmp_path / "text", text, lambda config: 1.0)
    assert main(["report", str(folder), "--json"]) == 0
    trials = json.loads(capsys.readouterr().out)["settings"][0]["trials"]
    assert trials[0]["problem"] == "no validation_accuracy, only validation_loss: choose another metric"


def test_a_sweep_on_ray_without_ray_is_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # importing it fails
    file = tmp_path / "plan.toml"
    file.write_text("[base]\nsteps = 2\n")
    assert main(["sweep", str(file), "--ray", "local", "--out", str(tmp_path / "swept")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "ray is not installed: pip install 'gyroscope[lab]'" in err
