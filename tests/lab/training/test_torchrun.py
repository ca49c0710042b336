"""Training over two processes, started as torchrun starts them: the same numbers as one process."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gyroscope_lab.training import checkpoint, train
from gyroscope_lab.training.config import TrainConfig
from gyroscope_lab.training.processes import Processes

from gyroscope.cli import main
from gyroscope.store import open_run
from tests.forked import start_processes

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
    torch.set_num_threads(1)
    for port, (name, (config, fsdp)) in zip(ports, CASES.items(), strict=True):
        os.environ["MASTER_PORT"] = str(port)
        # A run of one process is there already, and goes on in two.
        train(config, folder / name, fsdp=fsdp, resume=name == RESUMED)


def free_ports(number: int) -> list[int]:
    """One for each training: the processes of the next must not meet those of the last."""
    sockets = [socket.socket() for _ in range(number)]
    for free in sockets:
        free.bind(("127.0.0.1", 0))
    ports = [free.getsockname()[1] for free in sockets]
    for free in sockets:
        free.close()
    return ports


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("torchrun")
    alone = {"images alone": IMAGES, "text alone": TEXT, "translation alone": TRANSLATION}
    for name, config in {RESUMED: IMAGES, **alone}.items():
        train(config, made / name)
    checkpoint.paths(made / RESUMED / "checkpoints")[-1].unlink()  # as if it had been killed a step earlier
    start_processes(worker, (free_ports(len(CASES)), made), WORLD)
    return made


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
    with pytest.raises(ValueError, match="batch_size=32 is no multiple of the 3 processes"):
        processes.check(IMAGES)


def test_fsdp_in_one_process_is_an_error_that_names_torchrun(capsys, tmp_path):
    assert main(["train", "--steps", "2", "--fsdp", "--out", str(tmp_path / "run")]) == 2
    assert "torchrun --nproc-per-node 2 -m gyroscope train --fsdp" in capsys.readouterr().err


def test_the_example_runs_under_torchrun_and_measures_sharded_weights(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    options = {"check": True, "capture_output": True, "encoding": "utf-8", "timeout": 300}
    done = subprocess.run([*torchrun, str(EXAMPLE), "--fsdp"], cwd=tmp_path, env=quiet, **options)
    run = open_run(tmp_path / "runs" / "torchrun")
    assert run.layers == ["0.weight", "2.weight", "4.weight"]
    _, losses = run.scalar("loss")
    assert losses[-1] < 0.5 * losses[0]
    assert "after 100 steps of 2 processes" in done.stdout
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 60
