"""Processes that start with torch imported: one server imports it once, in seconds, and forks for each of them."""

import atexit
import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch.multiprocessing as mp

# For functions that run in processes of their own. They cannot be forks of the tests' process: autograd refuses to run
# in a fork of a process that has used it. torch._dynamo is what the first optimizer of a process imports.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["torch._dynamo", "gyroscope_lab.sweeps.trial", "sklearn.datasets"])


def start_processes(function: Callable[..., None], arguments: tuple[Any, ...], number: int) -> None:
    """Run a function of its rank and the arguments in so many processes, and raise what one of them raised."""
    mp.start_processes(function, arguments, number, start_method="forkserver")  # type: ignore[attr-defined]


# A fork that leaves the loop runs its program and ends as an interpreter does, with everything registered for its exit.
SERVER = """
import gc, importlib, json, os, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
gc.freeze()
program = None
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        program = json.loads(line)
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
if program is not None:
    errors = os.open(program["errors"], os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    os.environ.update(program["environment"])
    os.chdir(program["folder"] or os.getcwd())
    sys.argv = ["-c", *program["arguments"]]
    exec(program["code"], {"__name__": "__main__"})
"""


class Ended(NamedTuple):
    """How a program ended: its exit code (negative: a signal), and what it wrote."""

    code: int
    written: str


# What the first optimizer of a process and a tracker import; and what the trainers are, with what they report to.
OWN = ("torch._dynamo", "gyroscope.measure")
TRAINERS = (*OWN, "lightning.pytorch", "transformers.trainer", "transformers.integrations", "accelerate", "wandb")


def run_program(code: str, folder: Path, *arguments: str) -> Ended:
    """Run a program as `python -c` would, in a fork of the server. What it writes is kept in the folder."""
    return _run_in(program_server(OWN), code, folder, arguments)


def run_script(code: str, folder: Path, *arguments: str, preload: Sequence[str] = OWN, **environment: str) -> Ended:
    """Run a program in the folder, in a fork of a server that has imported the modules of `preload`."""
    installed = tuple(module for module in preload if find_spec(module.partition(".")[0]) is not None)
    return _run_in(program_server(installed), code, folder, arguments, str(folder), environment)


def _run_in(
    server: "subprocess.Popen[str]",
    code: str,
    output: Path,
    arguments: Sequence[str],
    folder: str = "",
    environment: Mapping[str, str] | None = None,
) -> Ended:
    assert server.stdin is not None
    assert server.stdout is not None
    errors = output / "written.txt"
    program = {
        "code": code,
        "arguments": [str(argument) for argument in arguments],
        "errors": str(errors),
        "folder": folder,
        "environment": dict(environment or {}),
    }
    server.stdin.write(json.dumps(program) + "\n")
    server.stdin.flush()
    return Ended(int(server.stdout.readline()), errors.read_text(encoding="utf-8"))


@cache
def program_server(preload: tuple[str, ...]) -> "subprocess.Popen[str]":
    """Start a server of this process, which ends with it."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, *preload], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.communicate, timeout=60)  # the server ends with its input
    return server
