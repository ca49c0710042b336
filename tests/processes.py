"""Processes of torch.distributed for tests: started together, ended safely, and started once more if one is killed."""

import os
import socket
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.multiprocessing.spawn import ProcessExitedException

from tests.forked import start_processes

# worker(rank, ports, folder)
Worker = Callable[[int, list[int], Path], None]
ATTEMPTS = 2


def run_processes(worker: Worker, folder: Path, *, world: int) -> Path:
    """Run `worker` in `world` processes and return the folder in which they did their work, within `folder`.

    If a process is killed by a signal, all of them start again in another folder, once, and pytest's summary shows a
    warning. An exception in a worker is a failure at once.
    """
    for attempt in range(1, ATTEMPTS + 1):
        made = folder / f"attempt-{attempt}"
        made.mkdir(parents=True)
        try:
            start_processes(_run, (worker, [free_port()], made), world)
        except ProcessExitedException as error:
            if attempt == ATTEMPTS:
                raise
            _report_retry(f"{worker.__name__}: {error}")
        else:
            break
    return made


def _report_retry(reason: str) -> None:
    # pyproject.toml lets this warning pass, where others are errors.
    warnings.warn(f"processes were started again: {reason}", UserWarning, stacklevel=3)


def _run(rank: int, worker: Worker, ports: list[int], folder: Path) -> None:
    worker(rank, ports, folder)
    # Python's finalization is skipped. A thread of gloo may still hold the tensors of the last collective. It needs the
    # GIL to drop them, Python unwinds a thread that asks for it during finalization, and C++ then aborts the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def free_port() -> int:
    """Return a port that no process uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def delay_other_threads() -> None:
    """Let the threads of this process other than the main one run only when it waits: what gloo does comes late."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    nothing: Any = os.sched_param(0)
    for thread in map(int, os.listdir("/proc/self/task")):
        if thread != os.getpid():
            os.sched_setscheduler(thread, os.SCHED_IDLE, nothing)
