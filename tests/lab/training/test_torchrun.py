"""Training over two processes, started as torchrun starts them: the same numbers as one process."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gyroscope_lab.training import checkpoint, console, train
from gyroscope_lab.training.config import TrainConfig
from gyroscope_lab.training.processes import Processes

from gyroscope.cli import main
from gyroscope.store import open_run
from tests.processes import run_processes

pytestmark = pytest.mark.distributed

WORLD = 2
EXAMPLE = Path(__file__).parents[3] / "examples" / "torchrun.py"
IMAGES = TrainConfig(
    task="digits",
    model="cnn:width=4,convolutions=2",
    optimizer="rotational-adamw",
    steps=6,
    batch_size=32,
    evaluations=2,
)
TEXT = replace(IMAGES, task="stdlib", model="gpt:layers=1,width=16,heads=2,context=16", optimizer="adam-s", clip=0.5)
# Shares of a batch have different numbers of characters. Not Adam: it steps by the rounding errors of the bias of keys,
# whose gradient is zero.
TRANSLATION = replace(
    IMAGES, task="translation", model="transformer:layers=1,width=16,heads=2,hidden=16", optimizer="rotational-sgd"
)
RESUMED = "images, begun by one process"
CASES = {
    "images": (IMAGES, False),
    "images, fsdp": (IMAGES, True),
    "text, fsdp": (TEXT, True),
    "translation": (TRANSLATION, False),
    RESUMED: (IMAGES, True),
}


def worker(rank: int, ports: list[int], folder: Path) -> None:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": WORLD}
    os.environ.update({name: str(number) for name, number in numbers.items()}, MASTER_ADDR="127.0.0.1")
    for port, (name, (config, fsdp)) in zip(ports, CASES.items(), strict=True):
        os.environ["MASTER_PORT"] = str(port)
        # A run of one process is there already, and goes on in two.
        train(config, folder / name, fsdp=fsdp, resume=name == RESUMED)


def train_alone(folder: Path) -> None:
    alone = {"images alone": IMAGES, "text alone": TEXT, "translation alone": TRANSLATION}
    for name, config in {RESUMED: IMAGES, **alone}.items():
        train(config, folder / name)
    checkpoint.paths(folder / RESUMED / "checkpoints")[-1].unlink()  # as if it had been killed a step earlier


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    # One port for each training: the processes of the next must not meet those of the last.
    made = tmp_path_factory.mktemp("torchrun")
    return run_processes(worker, made, world=WORLD, ports=len(CASES), prepare=train_alone)


def weights(folder):
    return torch.load(checkpoint.paths(folder / "checkpoints")[-1], weights_only=True)["model"]


def assert_same(together: Path, alone: Path) -> None:
    for (name, ours), theirs in zip(weights(together).items(), weights(alone).values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4, msg=name)
    ours, theirs = (json.loads((path / "result.json").read_text())["scores"] for path in (together, alone))
    assert ours == pytest.approx(theirs, rel=1e-3)
    with open_run(together / "rotation") as run, open_run(alone / "rotation") as other:
        assert run.layers == other.layers
        for layer in run.layers:
            angles = (each.series(layer, "angular_update") for each in (run, other))
            np.testing.assert_allclose(*angles, rtol=1e-2)
        np.testing.assert_allclose(run.scalar("loss")[1], other.scalar("loss")[1], rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_as_one_does(name, folder):
    assert_same(folder / name, folder / f"{name.partition(',')[0]} alone")


def test_a_batch_that_processes_cannot_share_is_an_error():
    processes = Processes(torch.device("cpu"), 0, 3)
    with pytest.raises(ValueError, match="batch_size=32 is not a multiple of the 3 processes"):
        processes.check(IMAGES)


def test_fsdp_in_one_process_is_an_error_that_names_torchrun(capsys, tmp_path):
    assert main(["train", "--steps", "2", "--fsdp", "--out", str(tmp_path / "run")]) == 2
    assert "torchrun --nproc-per-node 2 -m gyroscope train --fsdp" in capsys.readouterr().err


RACE = """
import sys
import torch
import torch.distributed as dist
from gyroscope_lab.training.processes import end_process
from tests.processes import delay_other_threads

dist.init_process_group("gloo")
group = dist.group.WORLD  # as DDP and FSDP2 keep it, so that its threads outlive it
delay_other_threads()
for _ in range(20):
    dist.all_reduce(torch.ones(1000))
dist.destroy_process_group()
print("done")
end_process(0)
"""


def run_with_torchrun(script: Path, *options: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*torchrun, str(script), *options], cwd=folder, env=quiet, capture_output=True, encoding="utf-8", timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system cannot delay a thread")
def test_a_process_ends_in_order_though_gloo_drops_its_last_tensors_late(tmp_path):
    script = tmp_path / "race.py"
    script.write_text(RACE, encoding="utf-8")
    done = run_with_torchrun(script, folder=tmp_path)
    assert done.stdout.count("done") == 2


@pytest.mark.parametrize("diverges", [False, True])
def test_the_command_ends_its_process_so(diverges, monkeypatch, tmp_path):
    codes: list[int] = []
    monkeypatch.setattr(console, "end_process", lambda code: codes.append(code) or code)
    config = replace(IMAGES, optimizer="sgd", steps=3, lr=1e30 if diverges else None)
    code = console.train_in_terminal(config, tmp_path / "run", resume=False, data_root=None, device="cpu", fsdp=False)
    assert codes == [code] == [int(diverges)]


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
