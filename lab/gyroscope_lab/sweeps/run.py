"""Execution of a sweep. Each trial has a run directory. Finished trials are not repeated, and failures are recorded."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyroscope.tools import write_text
from gyroscope_lab.sweeps.plan import Sweep, SweepTrial

# Attempts at a trial whose process dies. More would not help on a machine that kills it every time.
ATTEMPTS = 3
POLL_SECONDS = 0.2
# Time for a trial to write a checkpoint after the sweep is interrupted.
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial: its scores, or the reason why it has none."""

    trial: SweepTrial
    scores: dict[str, float]
    problem: str = ""


def outcome(trial: SweepTrial, out: Path) -> Outcome | None:
    """Return the outcome stored in a trial's folder, or None if it is not finished."""
    try:
        result = json.loads((out / trial.name / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    diverged = result.get("diverged_at")
    problem = result.get("problem") or ("" if diverged is None else f"diverged at step {diverged}")
    return Outcome(trial, result.get("scores", {}), problem)


def forget_failures(sweep: Sweep, out: Path) -> None:
    """Remove the results of failed trials, so that they run again. Diverged trials would diverge again."""
    for trial in sweep.trials:
        ended = outcome(trial, out)
        if ended is not None and ended.problem and not ended.problem.startswith("diverged"):
            (out / trial.name / "result.json").unlink()


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shared_cores(jobs: int, available: int) -> tuple[int, int]:
    """Return the number of parallel trials and the threads of each. Their product is at most the number of cores.

    >>> shared_cores(2, available=8), shared_cores(3, available=8), shared_cores(16, available=8)
    ((2, 4), (3, 2), (8, 1))
    """
    at_once = min(jobs, available)
    return at_once, available // at_once


def run_local(sweep: Sweep, out: Path, jobs: int, data_root: Path | None = None) -> Generator[Outcome, None, None]:
    """Run the remaining trials in `jobs` processes, and yield each outcome when it is ready.

    Every trial has its own process. If one is killed, the others continue, and it is resumed from its checkpoint.
    """
    at_once, threads = shared_cores(jobs, cores())
    waiting = [trial for trial in sweep.trials if outcome(trial, out) is None]
    running: dict[subprocess.Popen[bytes], tuple[SweepTrial, int]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                trial = waiting.pop(0)
                running[_start(trial, out, threads, data_root)] = (trial, 1)
            time.sleep(POLL_SECONDS)
            for process in [process for process in running if process.poll() is not None]:
                trial, attempt = running.pop(process)
                ended = outcome(trial, out)
                if ended is None and process.returncode < 0 and attempt < ATTEMPTS:  # killed by a signal
                    running[_start(trial, out, threads, data_root)] = (trial, attempt + 1)
                    continue
                yield ended or _failed(trial, out, _reason(out / trial.name, process.returncode))
    finally:  # also after Ctrl-C: no process is left behind, and each has written a checkpoint
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(trial: SweepTrial, out: Path, threads: int, data_root: Path | None) -> "subprocess.Popen[bytes]":
    folder = _prepare(trial, out)
    roots = [] if data_root is None else [str(data_root)]
    with open(folder / "log.txt", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "gyroscope_lab.sweeps.trial", str(folder), *roots],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            # Ctrl-C in a terminal reaches the whole session, and a second one would interrupt the checkpoint.
            start_new_session=True,
        )


def _prepare(trial: SweepTrial, out: Path) -> Path:
    folder = (out / trial.name).absolute()
    write_text(folder / "trial.json", json.dumps(trial.config.as_dict()))
    return folder


def _reason(folder: Path, code: int) -> str:
    """Return why a process left no result: the signal that killed it, or the last line of its log."""
    if code < 0:
        return f"killed by signal {-code}, {ATTEMPTS} times"
    lines = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {code} without a message"


def _failed(trial: SweepTrial, out: Path, problem: str) -> Outcome:
    """Record and return the failure of a trial."""
    write_text(out / trial.name / "result.json", json.dumps({"scores": {}, "problem": problem}))
    return Outcome(trial, {}, problem)


def run_ray(sweep: Sweep, out: Path, address: str, data_root: Path | None = None) -> Generator[Outcome, None, None]:
    """Run the remaining trials on Ray: on this machine ("local"), or on the cluster at `address`.

    All machines of the cluster must have access to the folder `out`.
    """
    from gyroscope.integrations.extras import extra
    from gyroscope_lab.sweeps.trial import run_trial

    ray = extra("ray", "lab")
    begun = not ray.is_initialized()
    if begun:
        _connect(ray, address)
    # One core each, and one thread by Ray's own setting. Ray restarts a worker that dies, and the trial resumes from
    # its checkpoint.
    remote = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(run_trial)
    root = None if data_root is None else str(data_root.absolute())
    running = {
        remote.remote(str(_prepare(trial, out)), root): trial for trial in sweep.trials if outcome(trial, out) is None
    }
    try:
        while running:
            ready, _ = ray.wait(list(running), num_returns=1)
            trial = running.pop(ready[0])
            try:
                ray.get(ready[0])
            except ray.exceptions.WorkerCrashedError:
                yield _failed(trial, out, f"its worker died {ATTEMPTS} times")
            except Exception as error:
                yield _failed(trial, out, str(error).strip().splitlines()[-1].removeprefix("ValueError: "))
            else:
                ended = outcome(trial, out)
                yield ended or _failed(trial, out, f"a worker wrote no result: check that all have access to {out}")
    finally:
        for task in running:
            ray.cancel(task, force=True)
        if begun:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    options = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, **options)
    except (ConnectionError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"no Ray at {address!r} ({reason}): use --ray local, or the address of a cluster") from None
