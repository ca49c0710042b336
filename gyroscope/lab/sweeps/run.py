"""Carrying a sweep out: each trial is a run directory; what is finished is never repeated, what failed is a row."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from gyroscope._files import write_text
from gyroscope.lab.sweeps.plan import Sweep, SweepTrial

# Times that a trial is begun or resumed when its process dies: a machine that kills it every time will not change.
ATTEMPTS = 3
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Outcome:
    """How a trial ended: its scores, or why it has none."""

    trial: SweepTrial
    path: Path
    scores: dict[str, float]
    problem: str = ""


def outcome(trial: SweepTrial, out: Path) -> Outcome | None:
    """What a trial's folder says; None where it is not finished."""
    path = out / trial.name
    try:
        result = json.loads((path / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    diverged = result.get("diverged_at")
    problem = result.get("problem") or ("" if diverged is None else f"diverged at step {diverged}")
    return Outcome(trial, path, result.get("scores", {}), problem)


def run_local(sweep: Sweep, out: Path, jobs: int, data_root: Path | None = None) -> Generator[Outcome, None, None]:
    """Run the trials that are left in `jobs` processes, and give each outcome when it is there.

    Every trial has a process of its own: one that is killed takes no other with it, and is resumed from its checkpoint.
    """
    threads = max((os.cpu_count() or 1) // jobs, 1)
    waiting = [trial for trial in sweep.trials if outcome(trial, out) is None]
    running: dict[subprocess.Popen[bytes], tuple[SweepTrial, int]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                trial = waiting.pop(0)
                running[_start(trial, out, threads, data_root)] = (trial, 1)
            time.sleep(POLL_SECONDS)
            for process in [process for process in running if process.poll() is not None]:
                trial, attempt = running.pop(process)
                ended = outcome(trial, out)
                if ended is None and process.returncode < 0 and attempt < ATTEMPTS:  # killed by a signal
                    running[_start(trial, out, threads, data_root)] = (trial, attempt + 1)
                    continue
                yield ended or _failed(trial, out, process.returncode)
    finally:  # also at Ctrl-C: no process is left behind, and each resumes from its last checkpoint
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def _start(trial: SweepTrial, out: Path, threads: int, data_root: Path | None) -> "subprocess.Popen[bytes]":
    folder = out / trial.name
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "trial.json", json.dumps(trial.config.as_dict()))
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [
        sys.executable,
        "-m",
        "gyroscope.lab.sweeps.trial",
        str(folder),
        *([str(data_root)] if data_root else []),
    ]
    with open(folder / "log.txt", "ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def _failed(trial: SweepTrial, out: Path, code: int) -> Outcome:
    """A row for a trial without a result, with the last line of its log."""
    folder = out / trial.name
    lines = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    problem = f"exit {code}: {lines[-1] if lines else 'no output'}"
    write_text(folder / "result.json", json.dumps({"scores": {}, "problem": problem}))
    return Outcome(trial, folder, {}, problem)


def run_ray(
    sweep: Sweep, out: Path, address: str | None, data_root: Path | None = None
) -> Generator[Outcome, None, None]:
    """The same on Ray: on this machine, or on the cluster at `address`, which must see the folder `out`."""
    from gyroscope.integrations.extras import extra

    ray = extra("ray", "lab")
    from gyroscope.lab.sweeps.trial import run_trial

    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False)
    # A worker that dies is started again by Ray, and the trial resumes from its checkpoint.
    remote = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(run_trial)
    folders = {}
    for trial in sweep.trials:
        if outcome(trial, out) is None:
            folder = (out / trial.name).absolute()
            write_text(folder / "trial.json", json.dumps(trial.config.as_dict()))
            folders[remote.remote(str(folder), None if data_root is None else str(data_root.absolute()))] = trial
    while folders:
        ready, _ = ray.wait(list(folders), num_returns=1)
        trial = folders.pop(ready[0])
        try:
            ray.get(ready[0])
        except Exception as error:
            problem = str(error).strip().splitlines()[-1]
            write_text(out / trial.name / "result.json", json.dumps({"scores": {}, "problem": problem}))
        ended = outcome(trial, out)
        assert ended is not None
        yield ended
