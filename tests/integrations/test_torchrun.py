"""The example of torchrun trains in two processes, which end in order."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gyroscope.store import open_run

pytestmark = pytest.mark.distributed

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrun.py"

# Runs a script whose gloo threads come late. Without the last lines of the example it aborts in nine of ten runs.
DELAYED = """
import runpy
import sys
import torch.distributed.fsdp as fsdp
from tests.processes import delay_other_threads

shard = fsdp.fully_shard


def shard_and_delay(model):
    sharded = shard(model)
    delay_other_threads()
    return sharded


fsdp.fully_shard = shard_and_delay
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_with_torchrun(script: Path, *options: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*torchrun, str(script), *options], cwd=folder, env=paths, capture_output=True, encoding="utf-8", timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_example_runs_under_torchrun_and_measures_sharded_weights(tmp_path):
    script = EXAMPLE
    options = ["--fsdp"]
    if hasattr(os, "SCHED_IDLE"):
        script = tmp_path / "delayed.py"
        script.write_text(DELAYED, encoding="utf-8")
        options = [str(EXAMPLE), "--fsdp"]
    done = run_with_torchrun(script, *options, folder=tmp_path)
    run = open_run(tmp_path / "runs" / "torchrun")
    assert run.layers == ["0.weight", "2.weight", "4.weight"]
    _, losses = run.scalar("loss")
    assert losses[-1] < 0.5 * losses[0]
    assert "after 100 steps of 2 processes" in done.stdout
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 60
