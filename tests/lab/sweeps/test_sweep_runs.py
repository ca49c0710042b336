"""Sweeps as they run, in processes and on Ray: every trial once, whatever is interrupted or killed."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from gyroscope_lab.sweeps.run import outcome, run_local, run_ray
from gyroscope_lab.training import train

from gyroscope.cli import main
from tests.lab.sweeps.test_sweeps import FILE, ONE, plan

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread_per_trial")]

# Long enough that a fast machine does not finish it before it is killed.
LONG = ONE.replace("steps = 12", "steps = 10000")


def processes_of(out):
    """Ids of the processes that train below a folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                words = file.read()
        except OSError:
            continue
        if str(out) in words and "sweeps.trial" in words:
            found.append(int(pid))
    return found


def wait_for(condition, seconds=300):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return found


def checkpoints(out):
    return sorted(out.glob("*/checkpoints/*"))


def test_a_sweep_continues_where_it_stopped_and_repeats_nothing(tmp_path):
    sweep = plan(tmp_path, ONE.replace("lr = [1e-3]", "lr = [1e-3, 1e-2]"))
    out = tmp_path / "out"
    first = run_local(sweep, out, jobs=1)
    assert not next(first).problem
    first.close()
    assert processes_of(out) == []
    done, left = sweep.trials
    made = (out / done.name / "result.json").stat().st_mtime_ns
    assert outcome(left, out) is None
    assert [ended.trial for ended in run_local(sweep, out, jobs=2)] == [left]
    assert all(outcome(trial, out).scores for trial in sweep.trials)
    assert (out / done.name / "result.json").stat().st_mtime_ns == made
    assert list(run_local(sweep, out, jobs=2)) == []


@pytest.fixture
def sweeping(tmp_path):
    """A sweep of one long trial in a process of its own, once it has written a checkpoint: (process, folder)."""
    file = tmp_path / "long.toml"
    file.write_text(LONG)
    out = tmp_path / "out"
    # In the background of a shell this process has interrupts ignored, and so has what it starts.
    heed = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    one_thread = "from gyroscope_lab.sweeps import run; run.cores = lambda: 1"
    code = f"{heed}; {one_thread}; from gyroscope.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "sweep", str(file), "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(lambda: checkpoints(out))
            yield process, out
        finally:
            process.kill()


def test_an_interrupted_sweep_ends_its_trials_and_prints_how_to_continue(sweeping, tmp_path):
    process, out = sweeping
    process.send_signal(signal.SIGINT)
    printed, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "")
    assert "The same command continues the sweep" in printed
    assert processes_of(out) == []
    assert outcome(plan(tmp_path, LONG).trials[0], out) is None


def test_a_sweep_that_is_killed_leaves_no_process_behind(sweeping, tmp_path):
    process, out = sweeping
    process.kill()
    wait_for(lambda: not processes_of(out))
    assert outcome(plan(tmp_path, LONG).trials[0], out) is None


def kill_once(out, find, killed):
    """SIGKILL the first process that trains, once it has written a checkpoint."""
    wait_for(lambda: checkpoints(out))
    pid = wait_for(lambda: find(out))[0]
    os.kill(pid, signal.SIGKILL)
    killed.append(pid)


def test_a_killed_worker_is_resumed_and_the_sweep_ends_whole(tmp_path):
    sweep = plan(tmp_path, FILE.replace("seeds = 2", "seeds = 1").replace("steps = 12", "steps = 200"))
    out = tmp_path / "out"
    killed = []
    thread = threading.Thread(target=kill_once, daemon=True, args=(out, processes_of, killed))
    thread.start()
    outcomes = list(run_local(sweep, out, jobs=1))
    thread.join()
    assert killed
    assert [ended.problem for ended in outcomes] == ["", ""]
    # In this process, which has one thread too: another number of threads adds in another order.
    undisturbed = [train(trial.config, tmp_path / "again" / trial.name) for trial in sweep.trials]
    assert [ended.scores for ended in outcomes] == [result.scores for result in undisturbed]


def test_a_trial_that_is_killed_every_time_is_a_row(tmp_path):
    sweep = plan(tmp_path, LONG)
    out = tmp_path / "out"
    stop = threading.Event()

    def kill_all():
        while not stop.is_set():
            for pid in processes_of(out):
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    thread = threading.Thread(target=kill_all, daemon=True)
    thread.start()
    (ended,) = run_local(sweep, out, jobs=1)
    stop.set()
    thread.join()
    assert ended.problem == "killed by signal 9, 3 times"
    assert outcome(sweep.trials[0], out) == ended


def ray_workers(out):
    """Ids of Ray's processes that run a trial: their title is the task's name."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                title = file.read()
        except OSError:
            continue
        if title.startswith("ray::run_trial"):
            found.append(int(pid))
    return found


def test_the_same_on_ray_with_a_worker_killed_and_a_trial_that_fails(tmp_path):
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        text = FILE.replace("seeds = 2", "seeds = 1").replace("steps = 12", "steps = 200")
        sweep = plan(tmp_path, text.replace("lr = [", 'optimizer = ["adamw", "nonsense"]\nlr = ['))
        out = tmp_path / "out"
        killed = []
        thread = threading.Thread(target=kill_once, daemon=True, args=(out, ray_workers, killed))
        thread.start()
        outcomes = list(run_ray(sweep, out, "local"))
        thread.join()
        assert killed
        assert sorted(ended.problem[:29] for ended in outcomes) == ["", "", *2 * ["unknown optimizer 'nonsense':"]]
        assert list(run_ray(sweep, out, "local")) == []
        undisturbed = list(run_ray(plan(tmp_path, text), tmp_path / "again", "local"))
    finally:
        ray.shutdown()
    scores = {ended.trial.config.lr: ended.scores for ended in outcomes if not ended.problem}
    # Here and not against local processes: another number of threads adds in another order.
    assert scores == {ended.trial.config.lr: ended.scores for ended in undisturbed}


def test_a_trial_that_fails_is_a_row_and_is_tried_again_on_request_only(tmp_path, capsys):
    file = tmp_path / "plan.toml"
    file.write_text(ONE.replace("lr = [1e-3]", 'optimizer = ["adamw", "nonsense"]'))
    command = ["sweep", str(file), "--out", str(tmp_path / "out"), "--jobs", "2"]
    assert main(command) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 of 2 trials succeeded, 1 failed" in printed
    assert "✗ optimizer nonsense, seed 0: unknown optimizer 'nonsense'" in printed
    files = sorted((tmp_path / "out").glob("*/result.json"))
    before = [path.stat().st_mtime_ns for path in files]
    assert main(command) == 0
    assert [path.stat().st_mtime_ns for path in files] == before
    assert main([*command, "--retry-failed"]) == 0
    changed = [path for path, made in zip(files, before, strict=True) if path.stat().st_mtime_ns != made]
    assert len(changed) == 1
    assert "nonsense" in changed[0].parent.name
