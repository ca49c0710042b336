"""kill -9 at random moments: a training run, a sweep's worker and a sweep itself go on and lose nothing."""

import importlib.util
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

import gyroscope as gyro
from outside.tally import Tally, require

KILLS = 4
STEPS = 400
TRAIN = ["--task", "digits", "--model", "cnn:width=8,convolutions=2", "--batch-size", "32", "--steps", str(STEPS)]
SWEEP = """
seeds = 1
[base]
task = "digits"
model = "cnn:width=8,convolutions=2"
steps = 200
batch_size = 32
track = false
[grid]
lr = [1e-3, 1e-2]
"""
LIMIT = 120.0


def check(tally: Tally) -> None:
    """Kill what trains, go on, and compare with what was never disturbed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kill_training(tally, folder)
        plan = folder / "plan.toml"
        plan.write_text(SWEEP)
        kinds = {"local": ["--jobs", "1"]}
        if importlib.util.find_spec("ray"):
            kinds["ray"] = ["--ray", "local"]
        for kind, options in kinds.items():
            with tally.attempt(f"sweep, {kind}: undisturbed"):
                expected = finished_table(start(["sweep", plan, "--out", folder / kind, *options]), folder / kind)
                for victim in ("worker", "sweep") if kind == "local" else ("worker",):
                    with tally.attempt(f"sweep, {kind}: {victim} killed"):
                        kill_sweep(plan, folder / f"{kind}-{victim}", options, victim, expected)


def start(arguments: Sequence[Any]) -> "subprocess.Popen[bytes]":
    """Start the command line in a process of its own."""
    command = [sys.executable, "-m", "gyroscope", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(condition: Callable[[], Any], process: "subprocess.Popen[bytes]") -> Any:
    """Wait until a condition holds. Raise if the process ends first or nothing happens for long."""
    end = time.monotonic() + LIMIT
    while not (found := condition()):
        require(process.poll() is None, f"ended with {process.returncode} before it could be killed")
        require(time.monotonic() < end, "waited in vain")
        time.sleep(0.01)
    return found


def kill_training(tally: Tally, folder: Path) -> None:
    """Kill one run again and again, and check that it ends with the same weights and every loss."""
    whole = folder / "whole"
    killed = folder / "killed"
    with tally.attempt("train: undisturbed"):
        require(start(["train", *TRAIN, "--out", whole]).wait(LIMIT) == 0, "training failed")
    moments = random.Random(0)
    for number in range(KILLS):
        with tally.attempt(f"train: kill {number}"):
            kill_once(killed, moments)
    with tally.attempt("train: ends after the kills"):
        resume = ["--resume"] if killed.exists() else []
        require(start(["train", *TRAIN, "--out", killed, *resume]).wait(LIMIT) == 0, "the resumed run failed")
    with tally.attempt("train: same weights"):
        first, second = weights(whole), weights(killed)
        require(all(torch.equal(first[name], second[name]) for name in first), "other weights")
    with tally.attempt("train: every loss is logged"):
        expected, found = losses(whole), losses(killed)
        missing = sorted(expected.keys() - found.keys())
        require(not missing, f"{len(missing)} losses are missing, from step {missing[:1]}")
        require(expected == found, "other losses")


def kill_once(folder: Path, moments: random.Random) -> None:
    """Start or resume the run, and kill it at a random moment after it has gone on."""
    before = newest(folder)
    resume = ["--resume"] if before else []
    process = start(["train", *TRAIN, "--out", folder, *resume])
    try:
        wait_for(lambda: newest(folder) != before, process)
        time.sleep(moments.uniform(0, 0.25))
    finally:
        process.kill()
        process.wait()
    require(process.returncode == -signal.SIGKILL, f"ended with {process.returncode} before it could be killed")


def newest(folder: Path) -> str:
    """Return the name of the newest checkpoint, or nothing."""
    return max((path.name for path in (folder / "checkpoints").glob("step-*.pt")), default="")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of the newest checkpoint."""
    state = torch.load(folder / "checkpoints" / newest(folder), weights_only=True)
    found: dict[str, torch.Tensor] = state["model"]
    return found


def losses(folder: Path) -> dict[int, float]:
    """Return the logged loss of each step."""
    with gyro.store.open_run(folder / "rotation") as run:
        steps, values = run.scalar("loss")
        return dict(zip(steps.tolist(), values.tolist(), strict=True))


def kill_sweep(plan: Path, out: Path, options: list[str], victim: str, expected: list[Any]) -> None:
    """Kill a worker of a sweep, or the sweep itself, and compare the table in the end."""
    arguments = ["sweep", plan, "--out", out, *options]
    process = start(arguments)
    try:
        wait_for(lambda: list(out.glob("*/checkpoints/*.pt")), process)
        if victim == "worker":
            os.kill(wait_for(lambda: workers(process.pid), process)[0], signal.SIGKILL)
        else:
            below = descendants(process.pid)
            process.kill()
            process.wait()
            end_all(below)
            process = start(arguments)
        require(finished_table(process, out) == expected, "another table")
    finally:
        below = descendants(process.pid)
        process.kill()
        process.wait()
        end_all(below)


def finished_table(process: "subprocess.Popen[bytes]", out: Path) -> list[Any]:
    """Wait for a sweep's end and return its table without times."""
    require(process.wait(LIMIT) == 0, f"the sweep ended with {process.returncode}")
    with closing(sqlite3.connect(out / "sweep.sqlite")) as database:
        database.row_factory = sqlite3.Row
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = [dict(row) for table in sorted(tables) for row in database.execute(f'SELECT * FROM "{table}"')]
    return sorted(str({key: value for key, value in row.items() if "seconds" not in key}) for row in rows)


def parents() -> dict[int, int]:
    """Return the parent of every process."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            # The name in parentheses may contain spaces.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(pid)] = int(fields[1])
    return found


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    by_child = parents()
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for child, parent in by_child.items() if parent in level]
        found += level
    return found


def workers(pid: int) -> list[int]:
    """Return the processes below a sweep that train: local ones by their module, Ray's by the title of the task."""
    found = []
    for child in descendants(pid):
        try:
            words = Path(f"/proc/{child}/cmdline").read_text()
        except OSError:
            continue
        if "sweeps.trial" in words or words.startswith("ray::run_trial"):
            found.append(child)
    return found


def end_all(pids: list[int]) -> None:
    """End what a killed process of ours has left behind, by id."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
