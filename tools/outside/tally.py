"""Count what a check tried and what failed."""

import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

# Exit code of a forked child whose function raised an exception. No command of the library uses it.
RAISED = 70


@dataclass
class Tally:
    """The number of attempts, and one line for each that failed."""

    tried: int = 0
    failures: list[str] = field(default_factory=list)

    @contextmanager
    def attempt(self, label: str) -> Iterator[None]:
        """Count one attempt, which fails if the body raises anything."""
        self.tried += 1
        try:
            yield
        except Exception as error:
            message = " ".join(str(error).split())[:300]
            self.failures.append(f"{label}: {type(error).__name__}: {message}")

    def close(self, label: str, found: Any, expected: Any, tolerance: float) -> None:
        """Count one comparison, which fails if any entry differs by more than `tolerance` of the largest one."""
        with self.attempt(label):
            found = np.asarray(found, dtype=np.float64)
            expected = np.asarray(expected, dtype=np.float64)
            error = np.max(np.abs(found - expected)) / np.max(np.abs(expected))
            require(error <= tolerance, f"relative error {error:.2e}")


def require(condition: Any, message: str) -> None:
    """Raise AssertionError unless a condition holds. Unlike `assert` it is not removed by python -O."""
    if not condition:
        raise AssertionError(message)


class Ended(NamedTuple):
    """How a forked child ended: exit code (minus the signal if it was killed), what it printed, and seconds."""

    code: int
    output: str
    seconds: float


def forked(function: Callable[[], int], limit: float) -> Ended:
    """Run a function in a forked child, which a crash does not take along, and end it after `limit` seconds."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            _run_child(function, output.fileno())
        status = _wait(child, start + limit)
        output.seek(0)
        return Ended(os.waitstatus_to_exitcode(status), output.read(), time.monotonic() - start)


def _run_child(function: Callable[[], int], output: int) -> None:
    """Run the function with its output in a file, and end this process without the parent's exit handlers."""
    code = RAISED
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = function()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int, end: float) -> int:
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1]
        time.sleep(0.005)
